"""A residual connection of a model, as `leadline.diagnose.structure` reads it, and its placement in words. No torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from leadline.files import Facts


@dataclass(frozen=True)
class Connection:
    """One residual connection."""

    add: int  # its node in the graph
    skip: int  # the node the skip and the branch start from
    branch: int  # the node that is added to the skip
    where: str  # the module it happens in
    sublayer: str  # "attention", "cross-attention" or "feed-forward"
    weights: tuple[str, ...]  # matrices of the branch in the order of use
    dim: int
    norm_nodes: tuple[int, ...]  # in the branch and behind the addition
    norm_gains: tuple[tuple[int, str], ...]  # what a norm normalises and the name of its gain
    before: int  # norms between the skip and the branch's first matrix, one behind another
    within: int  # norms right before the branch's last matrix
    after_branch: int  # norms on what the branch adds
    after_add: int  # norms on the stream behind the addition
    on_skip: int  # norms on the skip that the branch does not share
    skip_scale: float = 1.0
    branch_scale: float = 1.0
    skip_detached: bool = False  # no gradient flows through the skip
    branch_detached: bool = False
    skip_dropped: bool = False  # dropout on the skip
    skip_twice: bool = False  # the skip is added twice
    leapt: str = ""  # the connection before, whose sum the branch starts from and the skip does not
    rescaled: float = 1.0  # by what the stream is multiplied behind the norm, before the next connection
    stream_norms: tuple[int, ...] = ()  # of those in the branch, the ones at its ends
    wrong_axes: tuple[int, ...] = ()  # of a norm that is not over the features alone, counted from the last
    epsilon: float = 0.0  # the largest of its norms
    queries: tuple[str, ...] = ()  # matrices of queries and keys
    values: tuple[str, ...] = ()
    drowned: float = 0.0  # the first of a stack: how much larger constant positions are than what they are added to
    skip_learned: str = ""
    branch_learned: str = ""
    enters_normed: bool = False  # the first of a stack: a norm lies right before it, such as one of the embedding
    previous: int = -1  # position of the connection whose stream this one takes up
    bare_weights: tuple[str, ...] = ()  # matrices the stream itself passes on its way here
    unadded: str = ""  # the first or last of a stack: a matrix like those of its branches that nothing is added to
    stack: str = ""
    position: int = 0
    last: bool = False  # of its stack
    final: int = 0  # the last of a stack: norms that close it
    closed: bool = True  # the last of a stack: all that reads the stream reads it normalised
    placement: str = ""

    @property
    def place(self) -> Facts:
        """For a record of what was measured there."""
        return {"position": self.position, "stack": self.stack}


def name_of(c: Connection) -> str:
    """The placement in the words of the field."""
    scaled = abs(abs(c.skip_scale) - 1) > 1e-3 and not c.skip_learned and not c.skip_twice
    if c.after_add and not c.before and not c.after_branch:
        return "DeepNorm" if scaled else "Admin" if c.skip_learned else "Post-LN"
    if c.before and c.after_add:
        return "Pre-LN and Post-LN"
    if c.before and c.after_branch:
        return "Sandwich-LN"
    if c.before and c.within:
        return "Sub-LN"
    if c.before:
        return "Pre-LN"
    if c.after_branch:
        return "branch-norm"
    return "ReZero" if c.branch_learned else "no norm"


def common(paths: Sequence[str]) -> str:
    """The modules, by their dotted paths, that all of these lie in."""
    columns = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(names[0] for names in itertools.takewhile(lambda names: len(set(names)) == 1, columns))


def by_stack(connections: Sequence[Connection]) -> dict[str, list[Connection]]:
    stacks: dict[str, list[Connection]] = {}
    for c in connections:
        stacks.setdefault(c.stack, []).append(c)
    return stacks


def layers_of(connections: Sequence[Connection]) -> dict[str, int]:
    """How many layers each stack has: its feed-forward connections, or all where there are none."""
    return {
        stack: sum(c.sublayer == "feed-forward" for c in members) or len(members)
        for stack, members in by_stack(connections).items()
    }
