"""Residual connections and where their norms sit, read from the graph of what a model computes. No torch.

A residual connection is an addition of two tensors of which one, the *branch*, is made from the other, the *skip*, by
way of at least one weight matrix. Everything else follows from where the normalisations lie:

    x + f(norm(x))         Pre-LN            norm(x + f(x))      Post-LN
    x + norm(f(norm(x)))   Sandwich-LN       norm(α·x + f(x))    DeepNorm
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from leadline.diagnose.connection import Connection, name_of

ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}

RESAMPLING = ("cat", "repeat_interleave", "interpolate", "upsample", "avg_pool", "max_pool", "adaptive_avg_pool")
POOLING = {"mean", "cat", "concat", "stack", "sum", "amax"}  # what a norm may follow as well


def connections(graph: Any) -> list[Connection]:
    """Every residual connection in the order of the computation, stack by stack named and placed."""
    reader = _Reader(graph)
    for index, node in enumerate(graph.nodes):
        connection = reader.connection(index) if node.op == "add" else None
        if connection:
            reader.known[index] = connection
    reader.without_positions()
    unlinked = [replace(c, position=i) for i, c in enumerate(reader.known.values())]
    by_add = {c.add: c.position for c in unlinked}
    stacked = _stacks(reader.link(unlinked, by_add))
    return [replace(c, placement=name_of(c)) for c in Ends(reader).of(stacked)]


@dataclass
class _Walk:
    """A way back through operations that do not mix: dropout, scaling, reshaping."""

    node: int
    scale: float = 1.0
    learned: str = ""
    detached: bool = False
    cut: bool = False
    dropped: bool = False
    twice: bool = False
    norms: list[int] = field(default_factory=list)

    def step(self, node: Any) -> None:
        self.scale *= node.factor
        self.learned = self.learned or node.learned
        self.detached = self.detached or node.function == "detach"
        self.cut = self.cut or node.cut
        self.dropped = self.dropped or node.dropped > 0
        self.twice = self.twice or (node.op == "scale" and "add" in node.function and node.factor == 2)
        self.node = node.inputs[0]


class _Reader:
    def __init__(self, graph: Any) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self.users = graph.users()
        self.known: dict[int, Connection] = {}  # by the node of the addition
        self.stream: dict[int, int] = {}  # addition of a connection: the stream before it
        self.enclosed: set[int] = set()  # additions of connections that another one's branch runs through
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
        if len(self.nodes[index].shape) < 2 or self._is_score(index):
            return None
        for first, second in ((a, b), (b, a)):
            if self._join(index, self.back(first), second, exact=True):
                return None
        for first, second in ((a, b), (b, a)):
            skip, added = self.back(first), False
            for _ in range(4):
                if self._join(index, skip, second):
                    return None
                path = self.path(skip.node, second) if skip.node < second else set()
                if self._has_matrix(path):
                    if not skip.norms and not added:
                        skip = self._nearest(first, path)
                        path = self.path(skip.node, second)
                    if second == a and self.nodes[index].factor < 0:
                        return None  # f(x) − x: a difference, which is added somewhere else
                    base, leapt = self._base(path, skip.node, second)
                    self.stream[index] = first if added else base
                    self._drop_within(path, skip.node)
                    self.enclosed.update(i for i in path if i in self.known)
                    path = self.path(base, second) if leapt else path
                    return replace(self._described(index, base, skip, second, path), leapt=leapt)
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

    def without_positions(self) -> None:
        """A single convolution that is added to a stream of attentions gives positions: it is no sublayer."""
        shapes = self.graph.shapes
        if not any(
            c.sublayer == "attention" and any(len(shapes[w]) == 2 for w in c.weights) for c in self.known.values()
        ):
            return
        for index, c in list(self.known.items()):
            products = [i for i in self.path(c.skip, c.branch) | {c.branch} if self.nodes[i].op == "product"]
            if len(products) == 1 and self.nodes[products[0]].function.startswith("conv"):
                self.joined[index] = c.skip
                del self.known[index]

    def _is_score(self, index: int) -> bool:
        """Whether a softmax takes it: what is added to a score is a bias of positions."""
        todo, seen = [index], set[int]()
        while todo and len(seen) < 12:
            at = todo.pop()
            seen.add(at)
            for user in self.users.get(at, []):
                if "softmax" in self.nodes[user].function:
                    return True
                if self.nodes[user].op in ("same", "scale", "add") and user not in seen:
                    todo.append(user)
        return False

    def _join(self, index: int, skip: _Walk, second: int, exact: bool = False) -> bool:
        """Whether this addition is of two states of one stream; where one connection lies between: its skip, again."""
        if skip.node >= second or not (self._is_stream(second, skip.node, exact) or self._is_resampled(second)):
            return False
        self.joined[index] = second
        later = self.back(second)
        known = self.known.get(later.node)
        if (
            known
            and known.skip == skip.node
            and not known.on_skip
            and skip.scale + later.scale * known.skip_scale > 1.5
        ):
            self.known[later.node] = replace(known, skip_twice=True)
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
        if len(inner) != 1 or self.known[inner[0]].skip != source or self._reaches(source, second, inner[0]):
            return source, ""
        base, known = inner[0], self.known[inner[0]]
        own = self.path(base, second)
        if not self._has_matrix(own) or any(self.nodes[i].function.startswith("conv") for i in own):
            return source, ""
        norms = [i for i in self.users.get(base, []) if self.nodes[i].op == "norm"]
        return (base if known.before or not norms else norms[0]), known.where or known.weights[-1]

    def _reaches(self, source: int, target: int, without: int) -> bool:
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

    def _drop_within(self, path: set[int], source: int) -> None:
        """Connections inside a branch (an adapter, a gate) are no sublayers of their own."""
        for index in [i for i in path if i in self.known and not self._is_stream(i, source)]:
            del self.known[index]

    def _has_matrix(self, path: set[int]) -> bool:
        """Or Fourier's, which needs no weights."""
        products = (self.nodes[i] for i in path if self.nodes[i].op == "product")
        return any(node.weights or node.function.startswith("fft") for node in products)

    def _nearest(self, first: int, path: set[int]) -> _Walk:
        """Back along the skip to the last node that the branch also starts from."""
        walk = _Walk(first)
        while walk.node not in path:
            node = self.nodes[walk.node]
            if node.op not in ("same", "scale"):
                break
            walk.step(node)
        return walk

    def _described(self, index: int, start: int, skip: _Walk, branch: int, path: set[int]) -> Connection:
        node = self.nodes[index]
        last = self.back(branch, through_norms=True)
        products = {i for i in path if self.nodes[i].op == "product" and self.nodes[i].weights}
        norms = {i for i in path if self.nodes[i].op == "norm"}
        early = {i for i in norms if not (self.path(start, i) & products)}
        late = set(last.norms)
        weights = [w for i in sorted(products) for w in self.nodes[i].weights if len(self.graph.shapes[w]) >= 2]
        # Attention multiplies what the stream gives by what the stream gives, or another one
        mixing = [i for i in path if self._mixes(i)]
        own = path | {start}
        crosses = not any(own.issuperset(self.nodes[i].inputs) for i in mixing)
        factors = (node.first, node.factor) if branch == node.inputs[1] else (node.factor, node.first)
        queries, values = self._queries_and_values(mixing)
        return Connection(
            add=index,
            skip=start,
            branch=branch,
            where=node.module or (_module_of(weights[-1]) if weights else ""),
            sublayer="feed-forward" if not mixing else "cross-attention" if crosses else "attention",
            weights=tuple(dict.fromkeys(weights)),
            dim=node.shape[-1],
            norm_nodes=tuple(sorted(norms)),
            stream_norms=tuple(sorted(early | late)),
            norm_gains=(),
            before=self._deepest(early),
            within=len(self._before_last_matrix(last.node, path) & (norms - early - late)),
            after_branch=len(late - early),
            after_add=0,
            on_skip=len(skip.norms),
            skip_scale=skip.scale * factors[0],
            branch_scale=last.scale * factors[1],
            skip_detached=skip.detached or (skip.cut and node.graded),
            branch_detached=self._detached(start, branch) and node.graded,
            skip_dropped=skip.dropped,
            skip_twice=skip.twice,
            skip_learned=skip.learned,
            branch_learned=last.learned,
            queries=queries,
            values=values,
        )

    def _detached(self, start: int, branch: int) -> bool:
        walk = self.back(branch)
        lost = self.nodes[start].requires and not self.nodes[branch].requires
        return lost or walk.detached

    def _queries_and_values(self, mixing: list[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The matrices that make queries and keys, and those that make values; one that makes all is in both."""
        queries: list[str] = []
        values: list[str] = []
        for index in mixing:
            inputs = self.nodes[index].inputs
            if self.nodes[index].weights:  # torch.nn's, which holds them all
                packed = [w for w in self.nodes[index].weights if self._is_packed(w)]
                queries, values = queries + packed, values + packed
            elif self.nodes[index].function in ATTENTION:
                queries += [w for i in inputs[: max(1, len(inputs) - 1)] for w in self._made_by(i)]
                values += self._made_by(inputs[-1])
            else:  # scores, or what they weigh
                weighed = [i for i in inputs if not self._is_softmax(i)]
                (values if len(weighed) < len(inputs) else queries).extend(w for i in weighed for w in self._made_by(i))
        return tuple(dict.fromkeys(queries)), tuple(dict.fromkeys(values))

    def _is_packed(self, weight: str) -> bool:
        shape = self.graph.shapes[weight]
        return len(shape) == 2 and shape[0] == 3 * shape[1]

    def _made_by(self, index: int) -> list[str]:
        """The matrix nearest behind a node, past what does not mix."""
        for _ in range(20):
            node = self.nodes[index]
            if node.op == "product":
                return [w for w in node.weights if len(self.graph.shapes[w]) >= 2]
            if not node.inputs:
                return []
            index = node.inputs[0]
        return []

    def _is_softmax(self, index: int) -> bool:
        for _ in range(8):
            node = self.nodes[index]
            if "softmax" in node.function:
                return True
            if node.op == "product" or not node.inputs:
                return False
            index = node.inputs[0]
        return False

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
            scale = 1.0 if previous < 0 or walk.learned or not walk.norms else walk.scale
            drowned = self._drowned(self.stream[c.add]) if previous < 0 else 0.0
            linked.append(
                replace(
                    c,
                    previous=previous,
                    bare_weights=tuple(bare),
                    enters_normed=normed,
                    rescaled=scale,
                    drowned=drowned,
                )
            )
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
            own = replace(c, after_add=count, last=last, final=final, closed=closed, norm_nodes=nodes, norm_gains=gains)
            largest = max((self.nodes[i].epsilon for i in nodes), default=0.0)
            results.append(replace(own, epsilon=largest, wrong_axes=self._wrong_axes(own, (*c.stream_norms, *norms))))
        for c in reversed(results):  # branches side by side, norm(x + f(x) + g(x)): the norm is of all of them
            if c.previous >= 0 and c.skip < results[c.previous].add:
                results[c.previous] = replace(results[c.previous], after_add=c.after_add)
        return results

    def _wrong_axes(self, c: Connection, norms: tuple[int, ...]) -> tuple[int, ...]:
        """The axes of a norm of the whole stream that is not over the axis its matrices multiply."""
        if any(len(self.graph.shapes[w]) != 2 for w in c.weights):
            return ()  # convolutions have their features elsewhere
        stream = self.nodes[c.add].shape
        for i in norms:
            node = self.nodes[i]
            places = [axis - len(node.shape) for axis, size in enumerate(node.shape) if size == c.dim]
            if not node.axes or math.prod(node.shape) != math.prod(stream) or not places:
                continue
            feature = -1 if -1 in places else places[0]
            if node.axes != (feature,) and (-1 in places or len(places) == 1):
                return node.axes
        return ()

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
        stage, tokens = False, self._count(index)
        for _ in range(60):
            walk = self.back(index, through_norms=True)
            norms += walk.norms
            if walk.node in by_add:
                if (
                    weights
                    and not stage
                    and self.nodes[walk.node].shape[-1] == dim
                    and tokens == self._count(walk.node)
                ):
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

    def _count(self, index: int) -> float:
        """Of tokens."""
        return math.prod(self.nodes[index].shape[:-1])

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
        return sorted(set(norms)), (closed and bool(norms)) or index in self.staged | self.enclosed

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


class Ends:
    """Sublayers at the ends of a stack to which nothing is added: built of matrices named as those of its branches."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def of(self, stacked: list[Connection]) -> list[Connection]:
        enclosed = {w for c in stacked for w in (*c.weights, *c.bare_weights, *c.queries, *c.values)}
        loose = {
            w: i
            for i, node in enumerate(self.reader.nodes)
            for w in (node.weights if node.op == "product" else ())
            if w not in enclosed and len(self.reader.graph.shapes[w]) == 2
        }
        results = list(stacked)
        for stack in dict.fromkeys(c.stack for c in stacked) if loose else ():
            members = [c for c in stacked if c.stack == stack]
            for at_end, c in ((False, members[0]), (True, members[-1])):
                weight = self._unadded(members, c, at_end, loose)
                if weight and not results[c.position].unadded:
                    results[c.position] = replace(results[c.position], unadded=weight)
        return results

    def _unadded(self, members: list[Connection], end: Connection, after: bool, loose: dict[str, int]) -> str:
        """The last matrix of such a sublayer, before the first connection of a stack or after its last."""
        for c in members:
            wanted = {_pattern(w) for w in c.weights}
            alike = {w: i for w, i in loose.items() if _pattern(w) in wanted and self._beside(i, end, after)}
            if len(wanted) > 1 and {_pattern(w) for w in alike} == wanted:
                return max(alike, key=lambda w: alike[w])
        return ""

    def _beside(self, index: int, end: Connection, after: bool) -> bool:
        reader = self.reader
        stream = reader.nodes[end.add].shape
        if reader.nodes[index].shape[:-1] != stream[:-1]:
            return False
        if after:
            return index > end.add and bool(reader.path(end.add, index))
        start = reader.stream[end.add]
        return index < end.add and (
            index == start or bool(reader.path(index, start)) or index in reader.nodes[start].inputs
        )


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _module_of(weight: str) -> str:
    return weight.rpartition(".")[0] or weight


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
