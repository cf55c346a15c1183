"""Dropout on GPUs by numbers that kernels draw themselves (see `ir/ops/philox.py`): the ones that eager draws.

What follows directly on each other draws the generator's state once, for all.
"""

from __future__ import annotations

import torch

from ..builder import Builder
from ..graph import GETITEM, REGION, Graph, Node
from ..op import NotCovered
from ..ops import get, normalize
from ..ops.layout import is_dense
from ..ops.philox import MASK, MASKED, STATE, kept_share, streams_of
from ..spec import TensorSpec, prod

_DROPOUT, _WITH_MASK = "aten.dropout.default", "aten.native_dropout.default"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Bytes of neighbours that a thread of eager's kernels takes at most.
_WIDEST = 16
#: Beyond so many elements each call of the generator must serve four, or eager's own kernel is faster.
_MANY = 1 << 21


def draw_in_kernels(graph: Graph, blocks: int) -> list[str]:
    """Rewrite dropout in place; one text a change. `blocks`: those of 256 threads that the graph's GPU holds."""
    found = [node for node in graph.nodes if node.op.name in (_DROPOUT, _WITH_MASK)]
    done = [f"{node.name}: its numbers are drawn in kernels" for node in found if _rewrite(graph, node, blocks)]
    if done:
        _draw_together(graph)
    return done


def _rewrite(graph: Graph, node: Node, blocks: int) -> bool:
    (x, probability, train), _ = normalize(node.op, node.args, node.kwargs)
    spec = x.spec
    if not isinstance(probability, (int, float)) or not 0 < probability < 1 or train is not True:
        return False
    if not isinstance(spec, TensorSpec) or spec.dtype not in _DTYPES or type(spec.offset) is not int \
            or any(map(graph.sizes.is_unbacked, spec.shape)) or not is_dense(graph.sizes, spec.shape, spec.stride):
        return False
    result = node.spec[0] if isinstance(node.spec, tuple) else node.spec
    elements = prod(spec.shape)
    if not isinstance(result, TensorSpec) or result.stride != spec.stride:
        return False
    vector = _WIDEST // spec.dtype.itemsize
    while spec.offset % vector:
        vector //= 2
    try:
        streams = streams_of(elements, vector, blocks)
    except NotCovered:
        return False
    less = graph.sizes.less
    if less(elements, 1) or not less(elements, 1 << 31) or streams.vector < 4 and less(_MANY, elements):
        return False
    b = Builder(graph, node, grad_enabled=False, region=node.meta.get(REGION))
    state = b.call(STATE, spec.device, streams.increment(elements))
    mask = b.call(MASK, state, spec.shape, spec.stride, kept_share(probability), streams.threads, streams.vector, 0)
    if node.op.name == _DROPOUT:
        node.op, node.args, node.kwargs = get(MASKED), (x, mask, probability), {}
        return True
    b.grad_enabled = node.grad_enabled
    parts = (b.call(MASKED, x, mask, probability, spec=result), mask)
    mapping = {user: parts[user.args[1]] for user in graph.nodes if user.op is GETITEM and user.args[0] is node}
    _replace(graph, mapping, node)
    return True


def _replace(graph: Graph, mapping: dict[Node, Node], gone: Node) -> None:
    kept = [node for node in graph.nodes if node is not gone and node not in mapping]
    for node in kept:
        node.replace_inputs(lambda n: mapping.get(n, n))
    graph.nodes[:] = kept
    graph.replace_results(mapping)


def _draw_together(graph: Graph) -> None:
    """Let states that are drawn with nothing random in between be drawn at once."""
    first: Node | None = None
    behind: dict[Node, tuple[Node, int]] = {}
    for node in graph.nodes:
        if node.op.name == STATE:
            device, increment = node.args
            if first is not None and first.args[0] == device and first.meta.get(REGION) is node.meta.get(REGION):
                behind[node] = first, first.args[1]
                first.args = device, first.args[1] + increment
            else:
                first = node
        elif node.op.name == MASK and node.args[0] in behind:
            state, skipped = behind[node.args[0]]
            node.args = (state, *node.args[1:-1], node.args[-1] + skipped)
        elif node.op.is_random or not node.op.is_pure or node.op.kind == "host":
            first = None
    graph.nodes[:] = [node for node in graph.nodes if node not in behind]
