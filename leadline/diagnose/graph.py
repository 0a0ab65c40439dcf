"""What a model computes, as a graph of its operations: `trace` writes it, `structure` reads it. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

SUBTRACTIONS = {"sub", "sub_", "subtract", "__sub__", "__isub__"}


@dataclass
class Node:
    """One operation. Positions of its inputs in the list of nodes, the stream's value first where that matters."""

    op: str  # "input", "embedding", "norm", "add", "scale", "same", "product", "part" (of a norm) or "other"
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    module: str  # the innermost module that was running
    weights: tuple[str, ...] = ()  # names of the parameters it uses
    factor: float = 1.0  # "scale": by what; "add": by what the second operand is multiplied; "norm": to which size
    first: float = 1.0  # "add": by what the first operand is multiplied
    learned: str = ""  # "scale": the parameter it multiplies by
    function: str = ""
    centred: bool = False  # "norm": the mean is taken off
    axes: tuple[int, ...] = ()  # "norm": over which, counted from the last; none: not known
    epsilon: float = 0.0  # "norm": added to the mean square
    constant: float = 0.0  # a number that is added
    drowned: float = 0.0  # a constant tensor is added: its size over the stream's
    dropped: float = 0.0  # dropout's probability
    graded: bool = True  # gradients were recorded
    requires: bool = False  # a gradient flows into it
    cut: bool = False  # and none flows on to what it is made of


@dataclass
class Graph:
    nodes: list[Node] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the parameters
    output: int = -1  # the node of the model's first output, if it is one

    def users(self) -> dict[int, list[int]]:
        users: dict[int, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for source in node.inputs:
                users.setdefault(source, []).append(index)
        return users

    def path(self, source: int, target: int) -> set[int]:
        """Nodes on the ways from source to target, without source; empty: there is none."""
        reaches: dict[int, bool] = {source: True}
        stack = [(target, False)]
        while stack:  # depth first without recursion: models may be a thousand layers deep
            at, done = stack.pop()
            if done:
                reaches[at] = any(reaches.get(i, False) for i in self.nodes[at].inputs)
            elif at not in reaches:
                reaches[at] = False
                stack.append((at, True))
                stack.extend((i, False) for i in self.nodes[at].inputs if i >= source)
        return {index for index, reached in reaches.items() if reached and index != source}

    def reaches(self, source: int, target: int, without: int) -> bool:
        """Whether there is a way from source to target past a node."""
        todo, seen = [target], {without}
        while todo:
            at = todo.pop()
            if at == source:
                return True
            if at not in seen and at > source:
                seen.add(at)
                todo.extend(self.nodes[at].inputs)
        return False

    def made_of(self, index: int, source: int) -> set[int]:
        """The nodes by which a node is made of `source` without a product; empty: it is not."""
        todo, seen, reached = [index], set[int](), False
        while todo:
            at = todo.pop()
            reached = reached or at == source
            if at <= source or at in seen or self.nodes[at].op == "product" or len(seen) > 50:
                continue
            seen.add(at)
            todo.extend(self.nodes[at].inputs)
        return seen if reached else set()

    def multiple_of(self, index: int) -> tuple[int, set[int]]:
        """What a node is a multiple of; the nodes that took its mean off on the way."""
        centring: set[int] = set()
        while True:
            node = self.nodes[index]
            subtracts = node.function in SUBTRACTIONS and len(node.inputs) == 2
            mean = self.made_of(node.inputs[1], node.inputs[0]) if subtracts else set()
            if mean:
                centring |= {index} | mean
            elif node.op not in ("same", "scale"):
                return index, centring
            index = node.inputs[0]
