"""Back along the residual stream, through operations that do not mix. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from leadline.diagnose.graph import Graph, Node


@dataclass
class Walk:
    """A way back through operations that do not mix: dropout, scaling, reshaping."""

    node: int
    scale: float = 1.0
    learned: str = ""
    detached: bool = False
    cut: bool = False
    dropped: bool = False
    twice: bool = False
    norms: list[int] = field(default_factory=list)

    def step(self, node: Node) -> None:
        self.scale *= node.factor
        self.learned = self.learned or node.learned
        self.detached = self.detached or node.function == "detach"
        self.cut = self.cut or node.cut
        self.dropped = self.dropped or node.dropped > 0
        self.twice = self.twice or (node.op == "scale" and "add" in node.function and node.factor == 2)
        self.node = node.inputs[0]

    def past_norm(self, node: Node) -> None:
        self.norms.append(self.node)
        self.scale *= node.factor
        self.node = node.inputs[0]


class Walker:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes, self.users = graph, graph.nodes, graph.users()
        self.joined: dict[int, int] = {}  # an addition of two states of one stream: the later of them

    def back(self, index: int, through_norms: bool = False) -> Walk:
        walk = Walk(index)
        while True:
            node = self.nodes[walk.node]
            if node.op in ("same", "scale"):
                walk.step(node)
            elif node.op == "norm" and through_norms:
                walk.past_norm(node)
            elif walk.node in self.joined:
                walk.node = self.joined[walk.node]
            else:
                return walk

    def back_to(self, path: set[int], index: int) -> Walk:
        """To the last node that is on a path."""
        walk = Walk(index)
        while walk.node not in path and self.nodes[walk.node].op in ("same", "scale"):
            walk.step(self.nodes[walk.node])
        return walk

    def products(self, path: set[int]) -> list[int]:
        """The matrix products on a path, or Fourier transforms, which need no weights."""
        products = (i for i in sorted(path) if self.nodes[i].op == "product")
        return [i for i in products if self.nodes[i].weights or self.nodes[i].function.startswith("fft")]

    def matrices(self, index: int) -> list[str]:
        """The matrices by which a node multiplies."""
        return [w for w in self.nodes[index].weights if len(self.graph.shapes[w]) >= 2]
