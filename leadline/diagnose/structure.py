"""Residual connections and where their norms sit, read from the graph of what a model computes. No torch.

A residual connection is an addition of two tensors of which one, the *branch*, is made from the other, the *skip*, by
way of at least one weight matrix. Everything else follows from where the normalisations lie:

    x + f(norm(x))         Pre-LN            norm(x + f(x))      Post-LN
    x + norm(f(norm(x)))   Sandwich-LN       norm(α·x + f(x))    DeepNorm
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from leadline.diagnose.connection import Connection, name_of

ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}

POOLING = {"mean", "cat", "concat", "stack", "sum", "amax"}  # what a norm may follow as well


def connections(graph: Any) -> list[Connection]:
    """Every residual connection in the order of the computation, stack by stack named and placed."""
    reader = _Reader(graph)
    for index, node in enumerate(graph.nodes):
        connection = reader.connection(index) if node.op == "add" else None
        if connection:
            reader.known[index] = connection
    unlinked = [replace(c, position=i) for i, c in enumerate(reader.known.values())]
    by_add = {c.add: c.position for c in unlinked}
    return [replace(c, placement=name_of(c)) for c in _stacks(reader.link(unlinked, by_add))]


@dataclass
class _Walk:
    """A way back through operations that do not mix: dropout, scaling, reshaping."""

    node: int
    scale: float = 1.0
    learned: str = ""
    detached: bool = False
    norms: list[int] = field(default_factory=list)

    def step(self, node: Any) -> None:
        self.scale *= node.factor
        self.learned = self.learned or node.learned
        self.detached = self.detached or node.function == "detach"
        self.node = node.inputs[0]


class _Reader:
    def __init__(self, graph: Any) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self.users = graph.users()
        self.known: dict[int, Connection] = {}  # by the node of the addition
        self.stream: dict[int, int] = {}  # addition of a connection: the stream before it
        self.staged: set[int] = set()  # additions of a connection that another stack continues
        self.joined: dict[int, int] = {}  # an addition of two states of one stream: the later of them

    def back(self, index: int, through_norms: bool = False) -> _Walk:
        walk = _Walk(index)
        while True:
            node = self.nodes[walk.node]
            if node.op in ("same", "scale"):
                walk.step(node)
            elif node.op == "norm" and through_norms:
                walk.norms.append(walk.node)
                walk.scale *= node.factor
                walk.node = node.inputs[0]
            elif walk.node in self.joined:
                walk.node = self.joined[walk.node]
            else:
                return walk

    def path(self, source: int, target: int) -> set[int]:
        """Nodes on the ways from source to target, both excluded; empty: there is none."""
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

    def connection(self, index: int) -> Connection | None:
        a, b = self.nodes[index].inputs
        if len(self.nodes[index].shape) < 2:
            return None
        for first, second in ((a, b), (b, a)):
            skip, added = self.back(first), False
            for _ in range(4):
                if skip.node < second and self._is_stream(second, skip.node):
                    self.joined[index] = second
                    return None
                path = self.path(skip.node, second) if skip.node < second else set()
                if self._has_matrix(path):
                    if not skip.norms and not added:
                        skip = self._nearest(first, path)
                        path = self.path(skip.node, second)
                    self.stream[index] = first if added else skip.node
                    self._drop_within(path, skip.node)
                    return self._described(index, skip, second, path, second == b)
                # A skip with a norm of its own, or several branches added one after another
                node = self.nodes[skip.node]
                if node.op == "norm":
                    further = node.inputs[0]
                    skip.norms.append(skip.node)
                    skip.scale *= node.factor
                elif skip.node in self.known:
                    further, added = self.known[skip.node].skip, True
                else:
                    break
                walk = self.back(further)
                skip.node, skip.scale = walk.node, skip.scale * walk.scale
        return None

    def _is_stream(self, index: int, source: int) -> bool:
        """Whether a node is a later state of the stream that passes `source`, rather than the output of a sublayer."""
        at, hops = self.back(index, through_norms=True).node, 0
        while at > source:
            if at in self.known:
                at, hops = self.stream[at], hops + 1
            elif self.nodes[at].op == "add":
                at = min(self.nodes[at].inputs)
            else:
                return False
            at = self.back(at, through_norms=True).node
        return hops > 0

    def _drop_within(self, path: set[int], source: int) -> None:
        """Connections inside a branch (an adapter, a gate) are no sublayers of their own."""
        for index in [i for i in path if i in self.known and not self._is_stream(i, source)]:
            del self.known[index]

    def _has_matrix(self, path: set[int]) -> bool:
        return any(self.nodes[i].op == "product" and self.nodes[i].weights for i in path)

    def _nearest(self, first: int, path: set[int]) -> _Walk:
        """Back along the skip to the last node that the branch also starts from."""
        walk = _Walk(first)
        while walk.node not in path:
            node = self.nodes[walk.node]
            if node.op not in ("same", "scale"):
                break
            walk.step(node)
        return walk

    def _described(self, index: int, skip: _Walk, branch: int, path: set[int], branch_is_second: bool) -> Connection:
        node = self.nodes[index]
        last = self.back(branch, through_norms=True)
        products = {i for i in path if self.nodes[i].op == "product" and self.nodes[i].weights}
        norms = {i for i in path if self.nodes[i].op == "norm"}
        early = {i for i in norms if not (self.path(skip.node, i) & products)}
        late = set(last.norms)
        weights = [w for i in sorted(products) for w in self.nodes[i].weights if len(self.graph.shapes[w]) >= 2]
        # Attention multiplies what the stream gives by what the stream gives, or another one
        mixing = [i for i in path if self._mixes(i)]
        own = path | {skip.node}
        crosses = not any(own.issuperset(self.nodes[i].inputs) for i in mixing)
        factor = node.factor
        return Connection(
            add=index,
            skip=skip.node,
            branch=branch,
            where=node.module,
            sublayer="feed-forward" if not mixing else "cross-attention" if crosses else "attention",
            weights=tuple(dict.fromkeys(weights)),
            dim=node.shape[-1],
            norm_nodes=tuple(sorted(norms)),
            norm_gains=(),
            before=self._deepest(early),
            within=len(self._before_last_matrix(last.node, path) & (norms - early - late)),
            after_branch=len(late - early),
            after_add=0,
            on_skip=len(skip.norms),
            skip_scale=skip.scale * (1.0 if branch_is_second else factor),
            branch_scale=last.scale * (factor if branch_is_second else 1.0),
            skip_detached=skip.detached,
            skip_learned=skip.learned,
            branch_learned=last.learned,
        )

    def _mixes(self, index: int) -> bool:
        node = self.nodes[index]
        return node.function in ATTENTION or (node.op == "product" and not node.weights)

    def _before_last_matrix(self, index: int, path: set[int]) -> set[int]:
        """Norms right before the matrix that a branch ends with: behind the attention or the activation."""
        norms: set[int] = set()
        while index in path and len(self.nodes[index].inputs) == 1:
            if self.nodes[index].op == "norm":
                norms.add(index)
            index = self.nodes[index].inputs[0]
        return norms

    def _deepest(self, norms: set[int]) -> int:
        """The longest chain of norms one behind another."""
        depth: dict[int, int] = {}
        for i in sorted(norms):
            below = [depth[j] for j in depth if j in self.path(j, i) or self.back(self.nodes[i].inputs[0]).node == j]
            depth[i] = 1 + max(below, default=0)
        return max(depth.values(), default=0)

    def link(self, unlinked: list[Connection], by_add: dict[int, int]) -> list[Connection]:
        """Which connection each one follows, and what the stream passes between two."""
        linked: list[Connection] = []
        after: dict[int, list[int]] = {}
        for c in unlinked:
            walk = self.back(self.stream[c.add], through_norms=True)
            bare: list[str] = []
            previous = by_add.get(walk.node, -1)
            if previous < 0:
                previous, bare, norms = self._through_matrices(walk.node, by_add, c.dim)
                walk.norms += norms
            if previous >= 0:
                after.setdefault(previous, walk.norms)
            normed = previous < 0 and bool(self.back(c.skip, through_norms=True).norms)
            linked.append(replace(c, previous=previous, bare_weights=tuple(bare), enters_normed=normed))
        results: list[Connection] = []
        followed = {c.previous for c in linked}
        for c in linked:
            last = c.position not in followed
            norms, closed = self._closing(c.add) if last else (after[c.position], True)
            count = len(norms)
            if last:  # the first of them belongs to the connection where those before it have one too
                like = self._alike(c, results)
                post = like.after_add > 0 if like else not c.before and not c.after_branch
                count = min(1, count) if post else 0
            nodes = (*c.norm_nodes, *sorted(norms))
            gains = tuple((self.back(self.nodes[i].inputs[0]).node, w) for i in nodes for w in self.nodes[i].weights)
            final = len(norms) - count
            results.append(
                replace(c, after_add=count, last=last, final=final, closed=closed, norm_nodes=nodes, norm_gains=gains)
            )
        for c in reversed(results):  # branches side by side, norm(x + f(x) + g(x)): the norm is of all of them
            if c.previous >= 0 and c.skip < results[c.previous].add:
                results[c.previous] = replace(results[c.previous], after_add=c.after_add)
        return results

    def _alike(self, c: Connection, results: list[Connection]) -> Connection | None:
        """The nearest connection before it with the same norms of its own, of the same kind of sublayer if there is."""
        chain: list[Connection] = []
        at = c.previous
        while at >= 0 and len(chain) < 8:
            chain.append(results[at])
            at = results[at].previous
        alike = [o for o in chain if (o.before, o.after_branch) == (c.before, c.after_branch)]
        return next((o for o in alike if o.sublayer == c.sublayer), alike[0] if alike else None)

    def _through_matrices(self, index: int, by_add: dict[int, int], dim: int) -> tuple[int, list[str], list[int]]:
        """Back along the stream through matrices that no residual connection joins, to a connection of that width."""
        weights: list[str] = []
        norms: list[int] = []
        stage = False
        for _ in range(60):
            walk = self.back(index, through_norms=True)
            norms += walk.norms
            if walk.node in by_add:
                if weights and not stage and self.nodes[walk.node].shape[-1] == dim:
                    return by_add[walk.node], weights, []
                self.staged.add(walk.node)
                break
            node = self.nodes[walk.node]
            if not node.inputs:
                break
            # A convolution, or the stream joined to something else: the next stage of a network, not a sublayer
            joins = len(node.inputs) > 1 and any(self.back(i).node in by_add for i in node.inputs)
            stage = stage or node.function.startswith("conv") or (joins and node.function in POOLING)
            weights += [w for w in node.weights if node.op == "product" and len(self.graph.shapes[w]) >= 2]
            index = max(node.inputs)
        return -1, [], []

    def _closing(self, index: int) -> tuple[list[int], bool]:
        """Norms behind the last addition of a stack; whether everything that reads the stream reads it normalised."""
        norms: list[int] = []
        closed = True
        todo, seen = [index], set[int]()
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            users = self.users.get(at, [])
            if not users and at == self.graph.output:
                closed = False
            for user in users:
                node = self.nodes[user]
                if node.op == "norm":
                    norms.append(user)
                    norms += self._chain(user)
                elif node.op in ("same", "scale") or user in self.joined or node.function in POOLING:
                    todo.append(user)
                elif node.op != "part":
                    closed = False
        return sorted(set(norms)), (closed and bool(norms)) or index in self.staged

    def _chain(self, index: int) -> list[int]:
        """Norms that follow a norm directly."""
        norms: list[int] = []
        todo = [index]
        while todo:
            for user in self.users.get(todo.pop(), []):
                if self.nodes[user].op == "norm":
                    norms.append(user)
                if self.nodes[user].op in ("norm", "same", "scale"):
                    todo.append(user)
        return norms


def _stacks(linked: list[Connection]) -> list[Connection]:
    """Names each chain of connections by what the names of its modules have in common."""
    stack_of: dict[int, int] = {}
    for c in linked:
        stack_of[c.position] = stack_of.get(c.previous, c.position) if c.previous >= 0 else c.position
    groups: dict[int, list[Connection]] = {}
    for c in linked:
        groups.setdefault(stack_of[c.position], []).append(c)
    names: dict[int, str] = {}
    for first, members in groups.items():
        columns = zip(*(c.where.split(".") for c in members), strict=False)
        common = itertools.takewhile(lambda parts: len(set(parts)) == 1, columns)
        name = ".".join(parts[0] for parts in common) or "stack"
        while name in names.values():
            name += "'"
        names[first] = name
    return [replace(c, stack=names[stack_of[c.position]]) for c in linked]
