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
RESCALED = 0.05  # behind a norm: a norm's size is measured and scatters
EPSILON = 0.03  # Keras has 1e-3, the largest in wide use
KNOWN_STARTS = (1, 0.5**0.5, 3**-0.5)  # × Xavier: its own, of three matrices drawn as one, torch's for a linear layer
DROWNED = 3  # times: Vaswani et al.'s positions and scaled embeddings are of like size


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
    parts: tuple[float, ...] = ()  # the spread of queries, keys and values that share one matrix

    @property
    def to_xavier(self) -> float:
        return self.std / (2 / (self.shape[0] + self.shape[1])) ** 0.5

    @property
    def bias_to_default(self) -> float | None:
        """Against PyTorch's own initialisation of a bias, U(±1/√inputs)."""
        return None if self.bias_std is None else self.bias_std * (3 * self.shape[1]) ** 0.5


def findings(connections: Sequence[Connection], sizes: Mapping[str, Size], initial: bool = True) -> list[Finding]:
    """`initial`: the weights are as they were drawn, so that their size can be judged."""
    misplaced = [c for c in connections if c.leapt or c.skip_twice]  # nothing else can be said of them
    sound = [c for c in connections if not (c.leapt or c.skip_twice)]
    results = [finding for rule in RULES for finding in rule(sound)]
    results += [finding for rule in (_leapt, _skip_twice) for finding in rule(misplaced)]
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
    both = Counter(c.stack for c in connections if c.before and c.after_add)
    counts = Counter(c.stack for c in connections)
    for c in connections:
        if max(c.before, c.after_add, c.after_branch) > 1:
            yield Finding("norm_twice", c.where, "two norms follow each other directly: remove one of them")
        elif c.before and c.after_add and both[c.stack] > counts[c.stack] / 3:  # Conformer's layers end in a norm
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
        if c.last and ends_bare and not c.closed and c.previous >= 0:
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


def _norm_axis(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.wrong_axes:
            what = (
                "several axes at once"
                if len(c.wrong_axes) > 1
                else f"axis {c.wrong_axes[0]}, which is not the features'"
            )
            yield Finding(
                "norm_axis",
                c.where,
                f"a norm is over {what}, so tokens are mixed: normalise each token over its features",
            )


def _norm_epsilon(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.epsilon > EPSILON:
            yield Finding(
                "norm_epsilon",
                c.where,
                f"a norm adds about {c.epsilon:.2g} to the mean square, so that it hardly normalises: use an ε of 1e-5",
            )


def _alpha_after_norm(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.rescaled > 1 + RESCALED:
            yield Finding(
                "alpha_after_norm",
                c.where,
                f"the stream is multiplied by {c.rescaled:.3g} behind the norm, so skip and branch both are: "
                f"DeepNorm's α belongs on the skip, norm(α·x + f(x))",
            )


def _branch_detached(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.branch_detached:
            yield Finding(
                "branch_detached",
                c.where,
                f"no gradient flows back through the {c.sublayer}, which is not trained so: leave it attached "
                f"to the graph",
            )


def _dropout_on_skip(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.skip_dropped:
            yield Finding("dropout_on_skip", c.where, "dropout also hits the skip: use it on the branch alone")


def _leapt(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.leapt:
            yield Finding(
                "skip_of_layer_input",
                c.where,
                f"the {c.sublayer} reads what {c.leapt} made, but is added to what that began with, whose branch is "
                f"lost: add it to the newer sum",
            )


def _skip_twice(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.skip_twice:
            yield Finding("skip_twice", c.where, "the skip is added twice, so the stream doubles: add it once")


def _embedding_scale(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.drowned > DROWNED:
            yield Finding(
                "embedding_scale_missing",
                c.stack,
                f"positions are {c.drowned:.2g} times as large as the embeddings they are added to: "
                f"scale the embeddings by √d first",
            )


def _unadded(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.unadded:
            yield Finding(
                "residual_missing",
                c.unadded,
                f"the stream passes {c.unadded} at an end of {c.stack} without a residual connection: "
                f"add what goes into that sublayer to what comes out",
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


def _one_kind_is_bare(members: Sequence[Connection], bare: Sequence[Connection]) -> bool:
    """All attentions are without a norm and all others have one, or the other way round."""
    kinds: dict[str, set[bool]] = {}
    for c in members:
        if not c.last and not c.enters_normed:
            kinds.setdefault(c.sublayer, set()).add(c in bare)
    return {True} in kinds.values() and {False} in kinds.values() and {True, False} not in kinds.values()


def _norm_missing(connections: Sequence[Connection]) -> Iterator[Finding]:
    for stack in dict.fromkeys(c.stack for c in connections):
        members = [c for c in connections if c.stack == stack]
        bare = [c for c in members if not c.enters_normed and _is_bare(c, members)]
        if bare and (len(bare) < len(members) / 2 or _one_kind_is_bare(members, bare)):
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
        yield from _attention_weights(c, sizes, beta)
        scaled = c.weights if c.sublayer == "feed-forward" else (*_alone(c.values, c.queries), *c.weights[-1:])
        for name in dict.fromkeys(scaled):
            size = sizes.get(name)
            if size is None or len(size.shape) != 2:
                continue
            yield from _to_beta(name, size.to_xavier, beta)
            bias = size.bias_to_default
            if bias and abs(bias / beta - 1) < 0.2:
                yield Finding(
                    "beta_on_biases", name, f"β was also applied to the bias beside {name}: scale the matrix only"
                )


def _to_beta(name: str, ratio: float, beta: float) -> Iterator[Finding]:
    if abs(ratio / beta - 1) > 0.2:
        what = "is not scaled by β" if abs(ratio - 1) < 0.2 else f"starts at {ratio:.3g} × Xavier's std"
        key = "beta_missing" if abs(ratio - 1) < 0.2 else "beta_wrong"
        yield Finding(key, name, f"{name} {what}, but DeepNorm asks for β = {beta:.3g} × Xavier")


def _alone(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in others]


def _attention_weights(c: Connection, sizes: Mapping[str, Size], beta: float) -> Iterator[Finding]:
    """Queries and keys are not scaled, be they matrices of their own or rows of one with the values."""
    for name in _alone(c.queries, c.values):
        if name in sizes and _is_beta(sizes[name].to_xavier, beta):
            yield _on_queries(name)
    for name in (n for n in c.queries if n in c.values and n in sizes and sizes[n].parts):
        width = sizes[name].shape[1]
        q, k, v = (part * width**0.5 for part in sizes[name].parts)  # of a square matrix
        if _is_beta(q, beta) or _is_beta(k, beta):
            yield _on_queries(name)
        elif q and abs(v / q - 1) < 0.1 and beta < 0.8:
            yield Finding(
                "beta_missing", name, f"{name} does not scale its values by β, but DeepNorm asks for {beta:.3g}"
            )


def _is_beta(ratio: float, beta: float) -> bool:
    """Scaled by β, and not as they are drawn without it."""
    return abs(ratio / beta - 1) < 0.2 and min(abs(ratio / right - 1) for right in KNOWN_STARTS) > 0.1


def _on_queries(name: str) -> Finding:
    return Finding(
        "beta_on_queries",
        name,
        f"β was also applied to queries or keys in {name}: scale values, out and feed-forward only",
    )


RULES = (
    _alpha_on_branch,
    _alpha_without_norm,
    _norm_twice,
    _final_norm_missing,
    _residual_missing,
    _norm_on_skip,
    _skip_detached,
    _branch_detached,
    _dropout_on_skip,
    _norm_axis,
    _norm_epsilon,
    _alpha_after_norm,
    _embedding_scale,
    _unadded,
    _norm_missing,
    _norm_shared,
    _mixed,
    _deepnorm_constants,
)
