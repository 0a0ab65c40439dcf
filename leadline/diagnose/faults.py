"""What is wrongly coded: one rule a mistake, over the connections found and the weights' initial size. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leadline.diagnose import theory
from leadline.diagnose.connection import Connection, layers_of

UNNORMALISED = ("Pre-LN", "Sandwich-LN", "Sub-LN", "branch-norm")  # the stream leaves these as it is
TOLERANCE = 0.01  # of α; of a weight's std it is 0.2, as small matrices scatter


@dataclass(frozen=True)
class Finding:
    """A mistake ("fault"), or something unusual that does no harm ("note")."""

    name: str
    where: str
    message: str
    severity: Literal["fault", "note"] = "fault"
    places: int = 1  # how many times it was found; `where` and `message` are of the first


@dataclass(frozen=True)
class Size:
    """Of one weight: its shape and how widely its values spread."""

    shape: tuple[int, ...]
    std: float
    bias_std: float | None = None  # of the bias beside it, if there is one

    @property
    def to_xavier(self) -> float:
        return self.std / (2 / (self.shape[0] + self.shape[1])) ** 0.5

    @property
    def bias_to_default(self) -> float | None:
        """Against PyTorch's own initialisation of a bias, U(±1/√inputs)."""
        return None if self.bias_std is None else self.bias_std * (3 * self.shape[1]) ** 0.5


def findings(connections: Sequence[Connection], sizes: Mapping[str, Size], initial: bool = True) -> list[Finding]:
    """`initial`: the weights are as they were drawn, so that their size can be judged."""
    results = [finding for rule in RULES for finding in rule(connections)]
    if initial:
        results += _deepnorm_weights(connections, sizes)
    places = Counter(f.name for f in results)
    first = {f.name: f for f in reversed(results)}
    return [replace(first[name], places=count) for name, count in places.items()]


def _alpha_on_branch(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.branch_scale > 1 + TOLERANCE and not c.branch_learned:
            yield Finding(
                "alpha_on_branch",
                c.where,
                f"the {c.sublayer} branch is multiplied by {c.branch_scale:.3g}: DeepNorm's α belongs on the skip, "
                f"norm(α·x + f(x))",
            )


def _alpha_without_norm(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        begins = c.previous < 0  # what scales the embedding is not of the connection
        if c.skip_scale > 1 + TOLERANCE and not c.after_add and not c.skip_learned and not begins:
            yield Finding(
                "skip_scaled_without_norm",
                c.where,
                f"the skip is multiplied by {c.skip_scale:.3g} and no norm follows, so the stream grows with every "
                f"layer: normalise after the addition or leave the skip as it is",
            )


def _norm_twice(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if max(c.before, c.after_add, c.after_branch) > 1:
            yield Finding("norm_twice", c.where, "two norms follow each other directly: remove one of them")
        elif c.before and c.after_add:
            yield Finding(
                "norm_twice",
                c.where,
                "the stream is normalised after the addition and again before the next sublayer: use Post-LN or Pre-LN",
            )
        if c.last and c.after_add and c.final:
            yield Finding(
                "final_norm_redundant",
                c.stack,
                "a final norm follows a stack that ends in a norm already: it does no harm and can go",
                "note",
            )


def _final_norm_missing(connections: Sequence[Connection]) -> Iterator[Finding]:
    placements = {c.position: c.placement for c in connections}
    for c in connections:
        ends_bare = c.placement in UNNORMALISED or (
            c.placement in ("no norm", "Pre-LN") and placements.get(c.previous) in ("Post-LN", "DeepNorm")
        )
        if c.last and ends_bare and not c.closed:
            yield Finding(
                "final_norm_missing",
                c.stack,
                f"the {c.placement} stack ends without a norm: what reads it sees a stream that grows with depth; "
                f"add one norm after the last layer",
            )


def _residual_missing(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.bare_weights:
            yield Finding(
                "residual_missing",
                c.where,
                f"the stream passes {c.bare_weights[-1]} on its way here without a residual connection: "
                f"add what goes into that sublayer to what comes out",
            )


def _norm_on_skip(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.on_skip:
            yield Finding(
                "norm_on_skip",
                c.where,
                "the skip has a norm of its own that the branch does not pass: add the stream as it is",
            )


def _skip_detached(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.skip_detached:
            yield Finding(
                "skip_detached", c.where, "no gradient flows back through the skip: leave it attached to the graph"
            )


def _is_bare(c: Connection, members: Sequence[Connection]) -> bool:
    if not c.last or c.previous < 0:
        return c.placement in ("no norm", "ReZero")
    # The norm behind a stack may be that of its last connection or of the stack: those like it tell
    alike = [o for o in members if o.sublayer == c.sublayer and not o.last]
    return not c.before and not c.after_branch and bool(alike) and all(o.before or o.after_branch for o in alike)


def _norm_missing(connections: Sequence[Connection]) -> Iterator[Finding]:
    for stack in dict.fromkeys(c.stack for c in connections):
        members = [c for c in connections if c.stack == stack]
        bare = [c for c in members if not c.enters_normed and _is_bare(c, members)]
        if bare and len(bare) < len(members) / 2:
            for c in bare:
                yield Finding(
                    "norm_missing", c.where, f"the {c.sublayer} has no norm, but the rest of {stack} has: add one here"
                )


def _mixed(connections: Sequence[Connection]) -> Iterator[Finding]:
    for stack in dict.fromkeys(c.stack for c in connections):
        kinds = list(dict.fromkeys(c.placement for c in connections if c.stack == stack and not c.last))
        if len(kinds) > 1 and "no norm" not in kinds:
            yield Finding("mixed_placements", stack, f"{stack} mixes {' and '.join(kinds)}", "note")


def _norm_shared(connections: Sequence[Connection]) -> Iterator[Finding]:
    first: dict[str, tuple[int, Connection]] = {}
    for c in connections:
        for node, weight in c.norm_gains:
            at, other = first.setdefault(weight, (node, c))
            if node != at and not set(other.weights) & set(c.weights):  # ALBERT shares whole layers
                yield Finding(
                    "norm_shared", c.where, f"its norm ({weight}) is also the norm of {other.where}: give it its own"
                )


def _deepnorm_constants(connections: Sequence[Connection]) -> Iterator[Finding]:
    for stack, (alpha, _) in deepnorm_expected(connections).items():
        members = [c for c in connections if c.stack == stack and c.placement == "DeepNorm"]
        admin = theory.admin_constant(sum(c.stack == stack for c in connections))
        wrong = [c for c in members if min(abs(c.skip_scale / known - 1) for known in (alpha, admin)) > TOLERANCE]
        if wrong:
            given = wrong[0].skip_scale
            yield Finding(
                "deepnorm_constants",
                wrong[0].where if len(wrong) < len(members) else stack,
                f"α is {given:.4g}, but DeepNorm at this depth asks for {alpha:.4g} "
                f"({given:.4g} would suit about {layers_of(connections)[stack] * (given / alpha) ** 4:.0f} layers)",
            )


def deepnorm_expected(connections: Sequence[Connection]) -> dict[str, tuple[float, float]]:
    """α and β of each stack in which DeepNorm was found, from the number of its layers."""
    layers = layers_of(connections)
    decoders = {c.stack for c in connections if c.sublayer == "cross-attention"}
    encoders = [s for s in layers if s not in decoders]
    result: dict[str, tuple[float, float]] = {}
    for stack, count in layers.items():
        if not any(c.stack == stack and c.placement == "DeepNorm" for c in connections):
            continue
        if decoders and encoders:
            constants = theory.deepnet_constants(layers[encoders[0]], layers[min(decoders)])
            side = "decoder" if stack in decoders else "encoder"
        else:
            constants, side = theory.deepnet_constants(count, 0), "encoder"
        result[stack] = (constants[f"{side}_alpha"].value, constants[f"{side}_beta"].value)
    return result


def _deepnorm_weights(connections: Sequence[Connection], sizes: Mapping[str, Size]) -> Iterator[Finding]:
    """β multiplies Xavier's std of the out and feed-forward matrices, and nothing else."""
    expected = deepnorm_expected(connections)
    for c in connections:
        if c.placement != "DeepNorm" or c.stack not in expected:
            continue
        alpha, beta = expected[c.stack]
        if abs(c.skip_scale / alpha - 1) > TOLERANCE:
            continue  # said already
        scaled = c.weights if c.sublayer == "feed-forward" else c.weights[-1:]
        for name in scaled:
            size = sizes.get(name)
            if size is None or len(size.shape) != 2:
                continue
            ratio = size.to_xavier
            if abs(ratio / beta - 1) > 0.2:
                what = "is not scaled by β" if abs(ratio - 1) < 0.2 else f"starts at {ratio:.3g} × Xavier's std"
                key = "beta_missing" if abs(ratio - 1) < 0.2 else "beta_wrong"
                yield Finding(key, name, f"{name} {what}, but DeepNorm asks for β = {beta:.3g} × Xavier")
            bias = size.bias_to_default
            if bias and abs(bias / beta - 1) < 0.2:
                yield Finding(
                    "beta_on_biases", name, f"β was also applied to the bias beside {name}: scale the matrix only"
                )


RULES = (
    _alpha_on_branch,
    _alpha_without_norm,
    _norm_twice,
    _final_norm_missing,
    _residual_missing,
    _norm_on_skip,
    _skip_detached,
    _norm_missing,
    _norm_shared,
    _mixed,
    _deepnorm_constants,
)
