"""What is wrongly coded: a table of the faults of one connection, and a rule for each fault of a stack. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leadline.diagnose import deepnorm
from leadline.diagnose.connection import Connection, by_stack

UNNORMALISED = ("Pre-LN", "Sandwich-LN", "Sub-LN", "branch-norm")  # the stream leaves these as it is
RESCALED = 0.05  # behind a norm: a norm's size is measured and scatters
EPSILON = 0.03  # Keras has 1e-3, the largest in wide use
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
class Fault:
    """A mistake that one connection shows by itself."""

    name: str
    shown: Callable[[Connection], object]
    message: str  # formatted with the connection as c
    where: str = "{c.where}"

    def __call__(self, connections: Sequence[Connection]) -> Iterator[Finding]:
        for c in connections:
            if self.shown(c):
                yield Finding(self.name, self.where.format(c=c), self.message.format(c=c))


def findings(
    connections: Sequence[Connection], sizes: Mapping[str, deepnorm.Size], initial: bool = True
) -> list[Finding]:
    """`initial`: the weights are as they were drawn, so that their size can be judged."""
    misplaced = [c for c in connections if c.leapt or c.skip_twice]  # nothing else can be said of them
    sound = [c for c in connections if not (c.leapt or c.skip_twice)]
    results = [finding for rule in RULES for finding in rule(sound)]
    results += [finding for rule in MISPLACED for finding in rule(misplaced)]
    if initial:
        results += [Finding(*fault) for fault in deepnorm.wrong_weights(connections, sizes)]
    places = Counter(f.name for f in results)
    first = {f.name: f for f in reversed(results)}
    return [replace(first[name], places=count) for name, count in places.items()]


def _norm_twice(connections: Sequence[Connection]) -> Iterator[Finding]:
    both = {s: sum(bool(c.before and c.after_add) for c in cs) / len(cs) for s, cs in by_stack(connections).items()}
    for c in connections:
        if max(c.before, c.after_add, c.after_branch) > 1:
            yield Finding("norm_twice", c.where, "two norms follow each other directly: remove one of them")
        elif c.before and c.after_add and both[c.stack] > 1 / 3:  # Conformer's layers end in a norm
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


def _norm_axis(connections: Sequence[Connection]) -> Iterator[Finding]:
    for c in connections:
        if c.wrong_axes:
            one = f"axis {c.wrong_axes[0]}, which is not the features'"
            what = "several axes at once" if len(c.wrong_axes) > 1 else one
            yield Finding(
                "norm_axis",
                c.where,
                f"a norm is over {what}, so tokens are mixed: normalise each token over its features",
            )


def _norm_missing(connections: Sequence[Connection]) -> Iterator[Finding]:
    for stack, members in by_stack(connections).items():
        bare = [c for c in members if not c.enters_normed and _is_bare(c, members)]
        if bare and (len(bare) < len(members) / 2 or _one_kind_is_bare(members, bare)):
            for c in bare:
                yield Finding(
                    "norm_missing", c.where, f"the {c.sublayer} has no norm, but the rest of {stack} has: add one here"
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


def _norm_shared(connections: Sequence[Connection]) -> Iterator[Finding]:
    first: dict[str, tuple[int, Connection]] = {}
    for c in connections:
        for node, weight in c.norm_gains:
            at, other = first.setdefault(weight, (node, c))
            if node != at and not set(other.weights) & set(c.weights):  # ALBERT shares whole layers
                yield Finding(
                    "norm_shared", c.where, f"its norm ({weight}) is also the norm of {other.where}: give it its own"
                )


def _mixed(connections: Sequence[Connection]) -> Iterator[Finding]:
    for stack, members in by_stack(connections).items():
        kinds = list(dict.fromkeys(c.placement for c in members if not c.last))
        if len(kinds) > 1 and "no norm" not in kinds:
            yield Finding("mixed_placements", stack, f"{stack} mixes {' and '.join(kinds)}", "note")


def _wrong_alpha(connections: Sequence[Connection]) -> Iterator[Finding]:
    return (Finding(*fault) for fault in deepnorm.wrong_alpha(connections))


RULES: tuple[Callable[[Sequence[Connection]], Iterator[Finding]], ...] = (
    Fault(
        "alpha_on_branch",
        lambda c: c.branch_scale > 1 + deepnorm.TOLERANCE and not c.branch_learned,
        "the {c.sublayer} branch is multiplied by {c.branch_scale:.3g}: DeepNorm's α belongs on the skip, "
        "norm(α·x + f(x))",
    ),
    Fault(
        "skip_scaled_without_norm",
        lambda c: (
            c.skip_scale > 1 + deepnorm.TOLERANCE and not c.after_add and not c.skip_learned and c.previous >= 0
        ),  # what scales the embedding is not of the connection
        "the skip is multiplied by {c.skip_scale:.3g} and no norm follows, so the stream grows with every layer: "
        "normalise after the addition or leave the skip as it is",
    ),
    _norm_twice,
    _final_norm_missing,
    Fault(
        "residual_missing",
        lambda c: c.bare_weights,
        "the stream passes {c.bare_weights[0]} on its way here without a residual connection: "
        "add what goes into that sublayer to what comes out",
    ),
    Fault(
        "norm_on_skip",
        lambda c: c.on_skip,
        "the skip has a norm of its own that the branch does not pass: add the stream as it is",
    ),
    Fault(
        "skip_detached",
        lambda c: c.skip_detached,
        "no gradient flows back through the skip: leave it attached to the graph",
    ),
    Fault(
        "branch_detached",
        lambda c: c.branch_detached,
        "no gradient flows back through the {c.sublayer}, which is not trained so: leave it attached to the graph",
    ),
    Fault("dropout_on_skip", lambda c: c.skip_dropped, "dropout also hits the skip: use it on the branch alone"),
    _norm_axis,
    Fault(
        "norm_epsilon",
        lambda c: c.epsilon > EPSILON,
        "a norm adds about {c.epsilon:.2g} to the mean square, so that it hardly normalises: use an ε of 1e-5",
    ),
    Fault(
        "alpha_after_norm",
        lambda c: c.rescaled > 1 + RESCALED,
        "the stream is multiplied by {c.rescaled:.3g} behind the norm, so skip and branch both are: "
        "DeepNorm's α belongs on the skip, norm(α·x + f(x))",
    ),
    Fault(
        "embedding_scale_missing",
        lambda c: c.drowned > DROWNED,
        "positions are {c.drowned:.2g} times as large as the embeddings they are added to: "
        "scale the embeddings by √d first",
        where="{c.stack}",
    ),
    Fault(
        "residual_missing",
        lambda c: c.unadded,
        "the stream passes {c.unadded} at an end of {c.stack} without a residual connection: "
        "add what goes into that sublayer to what comes out",
        where="{c.unadded}",
    ),
    _norm_missing,
    _norm_shared,
    _mixed,
    _wrong_alpha,
)
MISPLACED = (
    Fault(
        "skip_of_layer_input",
        lambda c: c.leapt,
        "the {c.sublayer} reads what {c.leapt} made, but is added to what that began with, whose branch is lost: "
        "add it to the newer sum",
    ),
    Fault("skip_twice", lambda c: c.skip_twice, "the skip is added twice, so the stream doubles: add it once"),
)
