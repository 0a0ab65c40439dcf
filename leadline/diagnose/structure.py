"""Residual connections and where their norms sit, read from the graph of what a model computes. No torch.

A residual connection is an addition of two tensors of which one, the *branch*, is made from the other, the *skip*, by
way of at least one weight matrix. Everything else follows from where the normalisations lie:

    x + f(norm(x))         Pre-LN            norm(x + f(x))      Post-LN
    x + norm(f(norm(x)))   Sandwich-LN       norm(α·x + f(x))    DeepNorm
"""

from __future__ import annotations

from dataclasses import replace

from leadline.diagnose.branches import describe
from leadline.diagnose.connection import Connection, name_of
from leadline.diagnose.graph import Graph
from leadline.diagnose.stacks import Stacks
from leadline.diagnose.walk import Walk, Walker

RESAMPLING = ("cat", "repeat_interleave", "interpolate", "upsample", "avg_pool", "max_pool", "adaptive_avg_pool")
FURTHER = 4  # how often a skip is followed past a norm or an earlier branch


def connections(graph: Graph) -> list[Connection]:
    """Every residual connection in the order of the computation, stack by stack named and placed."""
    reader = _Reader(graph)
    for index, node in enumerate(graph.nodes):
        connection = reader.connection(index) if node.op == "add" else None
        if connection:
            reader.known[index] = connection
    reader.without_positions()
    stacks = Stacks(reader.walker, reader.stream, reader.enclosed)
    return [replace(c, placement=name_of(c)) for c in stacks.of(reader.known.values())]


class _Reader:
    """Takes the additions in turn; a later one may show that an earlier one was no connection."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes, self.walker = graph, graph.nodes, Walker(graph)
        self.back = self.walker.back
        self.known: dict[int, Connection] = {}  # by the node of the addition
        self.stream: dict[int, int] = {}  # addition of a connection: the stream before it
        self.enclosed: set[int] = set()  # additions of connections that another one's branch runs through

    def connection(self, index: int) -> Connection | None:
        a, b = self.nodes[index].inputs
        if len(self.nodes[index].shape) < 2 or self._is_score(index):
            return None
        if any(self._join(index, self.back(first), second, exact=True) for first, second in ((a, b), (b, a))):
            return None
        for first, second in ((a, b), (b, a)):
            skip, added = self.back(first), False
            for _ in range(FURTHER):
                if self._join(index, skip, second):
                    return None
                path = self.graph.path(skip.node, second) if skip.node < second else set()
                if self.walker.products(path):
                    if not skip.norms and not added:
                        skip = self.walker.back_to(path, first)
                    return self._made_of(index, first if added else -1, skip, second)
                # A skip with a norm of its own, or several branches added one after another
                if self.nodes[skip.node].op == "norm":
                    skip.past_norm(self.nodes[skip.node])
                elif skip.node in self.known:
                    skip.node, added = self.known[skip.node].skip, True
                else:
                    break
                walk = self.back(skip.node)
                skip.node, skip.scale = walk.node, skip.scale * walk.scale
        return None

    def _made_of(self, index: int, stream: int, skip: Walk, branch: int) -> Connection | None:
        """The connection of a skip and a branch, on a stream that is its base unless named."""
        if branch == self.nodes[index].inputs[0] and self.nodes[index].factor < 0:
            return None  # f(x) − x: a difference, which is added somewhere else
        path = self.graph.path(skip.node, branch)
        base, leapt = self._base(path, skip.node, branch)
        self.stream[index] = base if stream < 0 else stream
        for inner in [i for i in path if i in self.known and not self._is_stream(i, skip.node)]:
            del self.known[inner]  # an adapter, a gate: no sublayer of its own
        self.enclosed.update(i for i in path if i in self.known)
        path = self.graph.path(base, branch) if leapt else path
        return replace(describe(self.walker, index, base, skip, branch, path), leapt=leapt)

    def without_positions(self) -> None:
        """A single convolution that is added to a stream of attentions gives positions: it is no sublayer."""
        attentions = (c for c in self.known.values() if c.sublayer == "attention")
        if not any(len(self.graph.shapes[w]) == 2 for c in attentions for w in c.weights):
            return
        for index, c in list(self.known.items()):
            products = [i for i in self.graph.path(c.skip, c.branch) | {c.branch} if self.nodes[i].op == "product"]
            if len(products) == 1 and self.nodes[products[0]].function.startswith("conv"):
                self.walker.joined[index] = c.skip
                del self.known[index]

    def _is_score(self, index: int) -> bool:
        """Whether a softmax takes it: what is added to a score is a bias of positions."""
        todo, seen = [index], set[int]()
        while todo and len(seen) < 12:
            at = todo.pop()
            seen.add(at)
            for user in self.walker.users.get(at, []):
                if "softmax" in self.nodes[user].function:
                    return True
                if self.nodes[user].op in ("same", "scale", "add") and user not in seen:
                    todo.append(user)
        return False

    def _join(self, index: int, skip: Walk, second: int, exact: bool = False) -> bool:
        """Whether this addition is of two states of one stream; where one connection lies between: its skip, again."""
        if skip.node >= second or not (self._is_stream(second, skip.node, exact) or self._is_resampled(second)):
            return False
        self.walker.joined[index] = second
        later = self.back(second)
        between = self.known.get(later.node)
        if between and between.skip == skip.node and not between.on_skip:
            twice = between.skip_twice or skip.scale + later.scale * between.skip_scale > 1.5
            self.known[later.node] = replace(between, skip_twice=twice)
        return True

    def _is_resampled(self, index: int) -> bool:
        """Whether a node is a stream made shorter or longer."""
        at, resampled = self.back(index, through_norms=True).node, False
        while self.nodes[at].function.startswith(RESAMPLING) and not self.nodes[at].weights:
            at, resampled = self.back(max(self.nodes[at].inputs), through_norms=True).node, True
        return resampled and at in self.known

    def _is_stream(self, index: int, source: int, exact: bool = False) -> bool:
        """Whether a node is a later state of the stream that passes `source`, rather than the output of a sublayer.

        exact   the source is itself a state of the stream
        """
        at, hops = self.back(index, through_norms=True).node, 0
        while at > source:
            if at in self.known:
                at, hops = self.stream[at], hops + 1
                if at == source:
                    return True
            elif self.nodes[at].op == "add":
                at = min(self.nodes[at].inputs)
            else:
                return False
            at = self.back(at, through_norms=True).node
        return hops > 0 and (at == source or not exact)

    def _base(self, path: set[int], source: int, second: int) -> tuple[int, str]:
        """Where a branch starts; the connection it leaps over where that is behind the start of its skip."""
        inner = [i for i in path if i in self.known and self._is_stream(i, source)]
        if len(inner) != 1 or self.known[inner[0]].skip != source or self.graph.reaches(source, second, inner[0]):
            return source, ""
        base, known = inner[0], self.known[inner[0]]
        own = self.graph.path(base, second)
        if not self.walker.products(own) or any(self.nodes[i].function.startswith("conv") for i in own):
            return source, ""
        norms = [i for i in self.walker.users.get(base, []) if self.nodes[i].op == "norm"]
        return (base if known.before or not norms else norms[0]), known.where or known.weights[-1]
