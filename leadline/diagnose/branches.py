"""What the branch of a residual connection is: its sublayer, its matrices, and the norms in it. No torch."""

from __future__ import annotations

from leadline.diagnose.connection import Connection
from leadline.diagnose.walk import Walk, Walker

ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}


def describe(walker: Walker, index: int, start: int, skip: Walk, branch: int, path: set[int]) -> Connection:
    """The connection of an addition whose branch takes `path` from `start`."""
    graph, node = walker.graph, walker.nodes[index]
    last = walker.back(branch, through_norms=True)
    products = {i for i in walker.products(path) if walker.nodes[i].weights}
    norms = {i for i in path if walker.nodes[i].op == "norm"}
    early = {i for i in norms if not (graph.path(start, i) & products)}
    late = set(last.norms)
    weights = [w for i in sorted(products) for w in walker.matrices(i)]
    # Attention multiplies what the stream gives by what the stream gives, or another one
    mixing = [i for i in path if _mixes(walker, i)]
    crosses = not any((path | {start}).issuperset(walker.nodes[i].inputs) for i in mixing)
    factors = (node.first, node.factor) if branch == node.inputs[1] else (node.factor, node.first)
    queries, values = _queries_and_values(walker, mixing)
    detached = walker.back(branch).detached or (walker.nodes[start].requires and not walker.nodes[branch].requires)
    return Connection(
        add=index,
        skip=start,
        branch=branch,
        where=node.module or (weights[-1].rpartition(".")[0] or weights[-1] if weights else ""),
        sublayer="feed-forward" if not mixing else "cross-attention" if crosses else "attention",
        weights=tuple(dict.fromkeys(weights)),
        dim=node.shape[-1],
        norm_nodes=tuple(sorted(norms)),
        stream_norms=tuple(sorted(early | late)),
        norm_gains=(),
        before=_deepest(walker, early),
        within=len(_before_last_matrix(walker, last.node, path) & (norms - early - late)),
        after_branch=len(late - early),
        after_add=0,
        on_skip=len(skip.norms),
        skip_scale=skip.scale * factors[0],
        branch_scale=last.scale * factors[1],
        skip_detached=skip.detached or (skip.cut and node.graded),
        branch_detached=detached and node.graded,
        skip_dropped=skip.dropped,
        skip_twice=skip.twice,
        skip_learned=skip.learned,
        branch_learned=last.learned,
        queries=queries,
        values=values,
    )


def _mixes(walker: Walker, index: int) -> bool:
    node = walker.nodes[index]
    return node.function in ATTENTION or (node.op == "product" and not node.weights)


def _queries_and_values(walker: Walker, mixing: list[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The matrices that make queries and keys, and those that make values; one that makes all is in both."""
    queries: list[str] = []
    values: list[str] = []
    for node in (walker.nodes[index] for index in mixing):
        if node.weights:  # torch.nn's, which holds them all
            packed = [w for w in node.weights if _is_packed(walker.graph.shapes[w])]
            queries, values = queries + packed, values + packed
        elif node.function in ATTENTION:
            queries += [w for i in node.inputs[: max(1, len(node.inputs) - 1)] for w in _made_by(walker, i)]
            values += _made_by(walker, node.inputs[-1])
        else:  # scores, or what they weigh
            weighed = [i for i in node.inputs if not _is_softmax(walker, i)]
            of = values if len(weighed) < len(node.inputs) else queries
            of += [w for i in weighed for w in _made_by(walker, i)]
    return tuple(dict.fromkeys(queries)), tuple(dict.fromkeys(values))


def _is_packed(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] == 3 * shape[1]


def _made_by(walker: Walker, index: int) -> list[str]:
    """The matrix nearest behind a node, past what does not mix."""
    for _ in range(20):
        node = walker.nodes[index]
        if node.op == "product":
            return walker.matrices(index)
        if not node.inputs:
            return []
        index = node.inputs[0]
    return []


def _is_softmax(walker: Walker, index: int) -> bool:
    for _ in range(8):
        node = walker.nodes[index]
        if "softmax" in node.function:
            return True
        if node.op == "product" or not node.inputs:
            return False
        index = node.inputs[0]
    return False


def _before_last_matrix(walker: Walker, index: int, path: set[int]) -> set[int]:
    """Norms right before the matrix that a branch ends with: behind the attention or the activation."""
    norms: set[int] = set()
    while index in path and len(walker.nodes[index].inputs) == 1:
        if walker.nodes[index].op == "norm":
            norms.add(index)
        index = walker.nodes[index].inputs[0]
    return norms


def _deepest(walker: Walker, norms: set[int]) -> int:
    """The longest chain of norms one behind another."""
    depth: dict[int, int] = {}
    for i in sorted(norms):
        depth[i] = 1 + depth.get(walker.back(walker.nodes[i].inputs[0]).node, 0)
    return max(depth.values(), default=0)
