"""Dropout and random tensors on GPUs by numbers that kernels draw themselves (see `ir/ops/philox.py`): the ones that
eager draws. Tensors that no kernel reads are left to torch: nothing would be saved.

Calls that follow directly on each other draw the generator's state once, for all.
"""

from __future__ import annotations

import math

import torch

from ..builder import Builder
from ..graph import GETITEM, REGION, Graph, Node
from ..op import NotCovered, OpRules
from ..ops import get, normalize
from ..ops.layout import is_dense
from ..ops.philox import DRAWN, MASK, MASKED, NORMAL, STATE, UNIFORM, kept_share, streams_of
from ..spec import TensorSpec, prod

#: `(graph, node, blocks) -> bool`, by op.
_REWRITES = OpRules()
_DROPOUT = "aten.dropout.default"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Bytes of neighbours that a thread of eager's kernels takes at most.
_WIDEST = 16
#: Beyond so many elements each call of the generator must serve four, or eager's own kernel is faster.
_MANY = 1 << 21


def draw_in_kernels(graph: Graph, blocks: int) -> list[str]:
    """Rewrite random calls in place; one text a change. `blocks`: those of 256 threads that the graph's GPU holds;
    0 where its generator cannot be read."""
    found = [node for node in graph.nodes if node.op.name in _REWRITES] if blocks else []
    done = [f"{node.name}: its numbers are drawn in kernels" for node in found
            if _REWRITES[node.op.name](graph, node, blocks)]
    if done:
        _draw_together(graph)
    return done


@_REWRITES.of("dropout", "native_dropout")
def _dropout(graph: Graph, node: Node, blocks: int) -> bool:
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


@_REWRITES.of("rand", "rand_like", "randn", "randn_like", "uniform", "normal_functional")
def _filled(graph: Graph, node: Node, blocks: int) -> bool:
    """Tensors of uniform and normal numbers, and of what is below a probability."""
    spec, parameters = node.spec, _parameters(node)
    if parameters is None or not isinstance(spec, TensorSpec) or spec.dtype not in _DTYPES \
            or any(map(graph.sizes.is_unbacked, spec.shape)) or not is_dense(graph.sizes, spec.shape, spec.stride) \
            or spec.requires_grad or not _is_read(graph.users(), node):
        return False
    elements, less = prod(spec.shape), graph.sizes.less
    if less(elements, 1) or less(_MANY, elements):
        return False
    streams = streams_of(elements, 1, blocks)
    b = Builder(graph, node, grad_enabled=False, region=node.meta.get(REGION))
    state = b.call(STATE, spec.device, streams.increment(elements))
    node.op, node.kwargs = get(DRAWN), {}
    node.args = (state, spec.shape, spec.stride, spec.dtype, *parameters, streams.threads, 0)
    return True


def _parameters(node: Node) -> tuple[str, float, float] | None:
    """The kind of a random tensor's numbers, what they are multiplied with and what is added; None: not covered."""
    draws, kwargs = node.op.draws, dict(node.kwargs)
    assert draws is not None
    if kwargs.pop("generator", None) is not None or kwargs.pop("layout", None) not in (None, torch.strided) \
            or not isinstance(node.spec, TensorSpec):
        return None
    (_, *given), _ = normalize(node.op, node.args, kwargs) if draws.bounded else ((None,), None)
    first, second = (*given, 0.0, 1.0)[:2] if len(given) != 1 else (given[0], 1.0)
    if not all(isinstance(one, (int, float)) and math.isfinite(one) for one in (first, second)):
        return None
    if draws.kind == "normal":
        shift, scale = (_single(float(one)) for one in (first, second))
        return (NORMAL, scale, shift) if second >= 0 else None
    low, high = (torch.tensor(float(one), dtype=torch.float64).to(node.spec.dtype) for one in (first, second))
    span = high - low
    return (UNIFORM, span.item(), low.item()) if low < high and span.isfinite() else None


def _single(number: float) -> float:
    return torch.tensor(number, dtype=torch.float32).item()


def _is_read(users: dict[Node, list[Node]], node: Node) -> bool:
    """Whether a kernel computes something from it."""
    return any(user.op.kind in ("pointwise", "reduction") or user.op.scalar is not None
               or user.op.kind == "view" and _is_read(users, user) for user in users.get(node, ()))


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
        elif node.op.name in (MASK, DRAWN) and node.args[0] in behind:
            state, skipped = behind[node.args[0]]
            node.args = (state, *node.args[1:-1], node.args[-1] + skipped)
        elif node.op.is_random or not node.op.is_pure or node.op.kind == "host":
            first = None
    graph.nodes[:] = [node for node in graph.nodes if node not in behind]
