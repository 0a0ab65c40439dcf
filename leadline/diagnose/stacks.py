"""Residual connections joined into stacks: which follows which, the norms behind, what lies at the ends. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from leadline.diagnose.connection import Connection, by_stack, common
from leadline.diagnose.walk import Walker

POOLING = {"mean", "cat", "concat", "stack", "sum", "amax"}  # what a norm may follow as well


class Stacks:
    def __init__(self, walker: Walker, stream: dict[int, int], enclosed: set[int]) -> None:
        self.walker, self.graph, self.nodes = walker, walker.graph, walker.nodes
        self.stream = stream  # addition of a connection: the stream before it
        self.inner = set(enclosed)  # additions of connections whose stack goes on elsewhere

    def of(self, connections: Iterable[Connection]) -> list[Connection]:
        numbered = [replace(c, position=i) for i, c in enumerate(connections)]
        after: dict[int, list[int]] = {}  # position: the norms before the connection that follows
        by_add = {c.add: c.position for c in numbered}
        linked = [self._linked(c, by_add, after) for c in numbered]
        closed: list[Connection] = []
        for c in linked:
            closed.append(self._normed(c, after.get(c.position), closed))
        for c in reversed(closed):  # branches side by side, norm(x + f(x) + g(x)): the norm is of all of them
            if c.previous >= 0 and c.skip < closed[c.previous].add:
                closed[c.previous] = replace(closed[c.previous], after_add=c.after_add)
        return self._with_ends(_named(closed))

    def _linked(self, c: Connection, by_add: dict[int, int], after: dict[int, list[int]]) -> Connection:
        """With the connection it follows, and what the stream passes between the two."""
        walk = self.walker.back(self.stream[c.add], through_norms=True)
        previous, bare = by_add.get(walk.node, -1), list[str]()
        if previous < 0:
            previous, bare = self._through_matrices(walk.node, by_add, c.dim)
        if previous < 0:
            normed = bool(self.walker.back(c.skip, through_norms=True).norms)
            return replace(c, enters_normed=normed, drowned=self._drowned(self.stream[c.add]))
        after.setdefault(previous, walk.norms)
        rescaled = walk.scale if walk.norms and not walk.learned else 1.0
        return replace(c, previous=previous, bare_weights=tuple(reversed(bare)), rescaled=rescaled)

    def _drowned(self, index: int) -> float:
        """How much larger constant positions are than the embedding they are added to."""
        most, scale, dim = 0.0, 1.0, self.nodes[index].shape[-1]
        while self.nodes[index].op in ("same", "scale", "norm"):
            node = self.nodes[index]
            most = max(most, node.drowned)
            scale *= node.factor if node.op == "scale" else 1.0
            index = node.inputs[0]
        forgotten = self.nodes[index].op == "embedding" and scale < 0.9 * dim**0.5
        return most if forgotten else 0.0

    def _through_matrices(self, index: int, by_add: dict[int, int], dim: int) -> tuple[int, list[str]]:
        """Back along the stream through matrices that no residual connection joins, to a connection of that width."""
        weights: list[str] = []
        stage, tokens = False, self._tokens(index)
        for _ in range(60):
            at = self.walker.back(index, through_norms=True).node
            node = self.nodes[at]
            if at in by_add:
                if weights and not stage and node.shape[-1] == dim and tokens == self._tokens(at):
                    return by_add[at], weights
                self.inner.add(at)
                break
            if not node.inputs:
                break
            # A convolution, or the stream joined to something else: the next stage of a network, not a sublayer
            joins = len(node.inputs) > 1 and any(self.walker.back(i).node in by_add for i in node.inputs)
            stage = stage or node.function.startswith("conv") or (joins and node.function in POOLING)
            weights += self.walker.matrices(at) if node.op == "product" else []
            index = max(node.inputs)
        return -1, []

    def _tokens(self, index: int) -> int:
        return math.prod(self.nodes[index].shape[:-1])

    def _normed(self, c: Connection, after: list[int] | None, before: list[Connection]) -> Connection:
        """With the norms behind it; `after`: those before the connection that follows, None where it is the last."""
        last = after is None
        norms, closed = self._closing(c.add) if after is None else (after, True)
        count = len(norms)
        if last:  # the first of them belongs to the connection where those before it have one too
            like = _alike(c, before)
            post = like.after_add > 0 if like else not c.before and not c.after_branch
            count = min(1, count) if post else 0
        nodes = (*c.norm_nodes, *sorted(norms))
        back = self.walker.back
        return replace(
            c,
            after_add=count,
            last=last,
            final=len(norms) - count,
            closed=closed,
            norm_nodes=nodes,
            norm_gains=tuple((back(self.nodes[i].inputs[0]).node, w) for i in nodes for w in self.nodes[i].weights),
            epsilon=max((self.nodes[i].epsilon for i in nodes), default=0.0),
            wrong_axes=self._wrong_axes(c, (*c.stream_norms, *norms)),
        )

    def _wrong_axes(self, c: Connection, norms: tuple[int, ...]) -> tuple[int, ...]:
        """The axes of a norm of the whole stream that is not over the axis its matrices multiply."""
        if any(len(self.graph.shapes[w]) != 2 for w in c.weights):
            return ()  # convolutions have their features elsewhere
        stream = self.nodes[c.add].shape
        for node in (self.nodes[i] for i in norms):
            places = [axis - len(node.shape) for axis, size in enumerate(node.shape) if size == c.dim]
            if not node.axes or math.prod(node.shape) != math.prod(stream) or not places:
                continue
            feature = -1 if -1 in places else places[0]
            if node.axes != (feature,) and (-1 in places or len(places) == 1):
                return node.axes
        return ()

    def _closing(self, index: int) -> tuple[list[int], bool]:
        """Norms behind the last addition of a stack; whether everything that reads the stream reads it normalised."""
        norms, todo, seen = set[int](), [index], set[int]()
        closed = True
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            users = self.walker.users.get(at, [])
            closed = closed and bool(users or at != self.graph.output)
            for user in users:
                node = self.nodes[user]
                if node.op == "norm":
                    norms |= {user, *self._chain(user)}
                elif node.op in ("same", "scale") or user in self.walker.joined or node.function in POOLING:
                    todo.append(user)
                elif node.op != "part":
                    closed = False
        return sorted(norms), (closed and bool(norms)) or index in self.inner

    def _chain(self, index: int) -> list[int]:
        """Norms that follow a norm directly."""
        norms: list[int] = []
        todo = [index]
        while todo:
            for user in self.walker.users.get(todo.pop(), []):
                if self.nodes[user].op == "norm":
                    norms.append(user)
                if self.nodes[user].op in ("norm", "same", "scale"):
                    todo.append(user)
        return norms

    def _with_ends(self, stacked: list[Connection]) -> list[Connection]:
        """With the sublayers at the ends of a stack to which nothing is added, built as its branches are."""
        taken = {w for c in stacked for w in (*c.weights, *c.bare_weights, *c.queries, *c.values)}
        products = [(i, w) for i, node in enumerate(self.nodes) if node.op == "product" for w in node.weights]
        loose = {w: i for i, w in products if w not in taken and len(self.graph.shapes[w]) == 2}
        results = list(stacked)
        for members in by_stack(stacked).values() if loose else ():
            for after, end in ((False, members[0]), (True, members[-1])):
                beside = {w: i for w, i in loose.items() if self._beside(i, end, after)}
                weight = _built_alike(members, beside)
                if weight and not results[end.position].unadded:
                    results[end.position] = replace(results[end.position], unadded=weight)
        return results

    def _beside(self, index: int, end: Connection, after: bool) -> bool:
        """Whether a product of the stream lies before the first connection of a stack, or after its last."""
        if self.nodes[index].shape[:-1] != self.nodes[end.add].shape[:-1]:
            return False
        if after:
            return index > end.add and bool(self.graph.path(end.add, index))
        start = self.stream[end.add]
        direct = index == start or index in self.nodes[start].inputs
        return index < end.add and (direct or bool(self.graph.path(index, start)))


def _alike(c: Connection, before: list[Connection]) -> Connection | None:
    """The nearest connection before it with the same norms of its own, of the same kind of sublayer if there is."""
    chain: list[Connection] = []
    at = c.previous
    while at >= 0 and len(chain) < 8:
        chain.append(before[at])
        at = before[at].previous
    alike = [o for o in chain if (o.before, o.after_branch) == (c.before, c.after_branch)]
    return next((o for o in alike if o.sublayer == c.sublayer), alike[0] if alike else None)


def _built_alike(members: list[Connection], beside: dict[str, int]) -> str:
    """The last of some matrices that are named as all those of one branch."""
    for c in members:
        wanted = {_pattern(w) for w in c.weights}
        alike = [w for w in beside if _pattern(w) in wanted]
        if len(wanted) > 1 and {_pattern(w) for w in alike} == wanted:
            return max(alike, key=lambda w: beside[w])
    return ""


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _named(linked: list[Connection]) -> list[Connection]:
    """Names each chain of connections by what the names of its modules have in common."""
    first: dict[int, int] = {}
    groups: dict[int, list[Connection]] = {}
    for c in linked:
        first[c.position] = first.get(c.previous, c.position)
        groups.setdefault(first[c.position], []).append(c)
    names: dict[int, str] = {}
    for start, members in groups.items():
        name = common([c.where for c in members]) or "stack"
        while name in names.values():
            name += "'"
        names[start] = name
    return [replace(c, stack=names[first[c.position]]) for c in linked]
