"""Attention as `flex_attention` whose score function reads the mask: where it is written out with one, and torch's
operator with few queries, as those of one token.

It is faster than torch's fused kernels with a mask, and keys that heads share need not be repeated. Programs share the
keys of few queries.
"""

from __future__ import annotations

import math
from types import NoneType
from typing import Any

import torch

from ..alias import shown_results
from ..builder import Builder
from ..flex_attention import FlexAttention, layout_of, results_of
from ..graph import Graph, Node
from ..ops import normalize
from ..spec import TensorSpec, contiguous_spec
from .grouped_heads import repeated_from

#: Fewer queries have a kernel that is faster in parts.
_LEAST_QUERIES = 16
#: one block, that of all queries and keys
_BLOCK = 1 << 30
#: queries that share their keys, and rows of them that a program then has
_FEW_QUERIES, _MOST_ROWS = 16, 128
_ATTENTION = "aten.scaled_dot_product_attention.default"
_LAYOUT = (3, 2, 1, 0)
_DTYPES = {"cpu": (torch.float32,), "cuda": (torch.bfloat16, torch.float16)}


def masked_attention(b: Builder, q: Node, kt: Node, v: Node, scale: float, mask: Node, kind: str) -> Node | None:
    """`kind`: "added" to the scores, or "hidden" or "shown" where it is true. None leaves the graph as it is."""
    specs = [node.spec for node in (q, kt, v, mask)]
    if not all(isinstance(spec, TensorSpec) and spec.is_static and not spec.requires_grad for spec in specs):
        return None
    dtype, device = q.tensor.dtype, q.tensor.device
    if dtype not in _DTYPES.get(device.type, ()) or mask.tensor.device != device or \
            any(node.tensor.ndim != 4 or node.tensor.dtype is not dtype for node in (q, kt, v)):
        return None
    scores = (*q.tensor.shape[:3], kt.tensor.shape[3])
    if mask.tensor.dtype is not (dtype if kind == "added" else torch.bool) or scores[2] < _LEAST_QUERIES or \
            mask.tensor.ndim != 4 or any(m not in (1, s) for m, s in zip(mask.tensor.shape, scores, strict=True)):
        return None
    if kt.tensor.shape[:3] != (*scores[:2], q.tensor.shape[3]) or v.tensor.shape[:3] != (*scores[:2], scores[3]):
        return None
    few = [repeated_from(keys, set()) if keys is not None else None for keys in (_transposed(kt), v)]
    if few[0] is None or few[1] is None or few[0].tensor.shape[:3] != few[1].tensor.shape[:3] or \
            any(one is not None and one.tensor.dtype is not dtype for one in few):
        few = [_transposed(kt) or b.call("aten.transpose.int", kt, -2, -1), v]
    target = FlexAttention(_score(b, mask, kind), None, 1, scale, (_BLOCK, _BLOCK), _LAYOUT, empty=math.nan)
    found = results_of(q.tensor, v.tensor, _LAYOUT)
    return b.getitem(b.call(target.op(found), q, *few, (None,) * 8, (mask,), spec=found), 0)


def share_keys(graph: Graph) -> list[str]:
    """Rewrite the calls of torch's operator with few queries on GPUs in place. One text a change."""
    found = [node for node in graph.nodes if node.op.name == _ATTENTION]
    watched = shown_results(graph) if found else set()
    made = {node: result for node in found if (result := _with_shared_keys(graph, node, watched)) is not None}
    graph.replace(made)
    graph.nodes[:] = [node for node in graph.nodes if node not in made]  # which counts as random
    return [f"{node.name}: programs share its keys" for node in made]


def _with_shared_keys(graph: Graph, node: Node, watched: set[Node]) -> Node | None:
    args, kwargs = normalize(node.op, node.args, node.kwargs)
    given: tuple[Any, ...] = (*args, *(None, 0.0, False)[len(args) - 3:])
    q, k, v, mask, dropout, is_causal = given
    scale = kwargs.get("scale")
    specs = [one.tensor for one in (q, k, v)]
    dtype, shape = specs[0].dtype, node.tensor.shape
    if dtype not in _DTYPES.get(specs[0].device.type, ()) or dropout or is_causal or node.tensor.requires_grad or \
            any(spec.dtype is not dtype or spec.ndim != 4 for spec in specs) or specs[1].shape[0] != shape[0] or \
            not isinstance(scale, (int, float, NoneType)):
        return None
    k, v = repeated_from(k, watched) or k, repeated_from(v, watched) or v
    if k.tensor.shape[:3] != v.tensor.shape[:3] or any(one.tensor.dtype is not dtype for one in (k, v)):
        _, k, v, *_ = args
    heads, shared, queries = shape[1], k.tensor.shape[1], shape[2]
    if not all(type(size) is int for size in (heads, shared, queries, specs[0].shape[3], specs[2].shape[3])) or \
            heads % shared or queries > _FEW_QUERIES or queries * heads // shared > _MOST_ROWS:
        return None
    scores = (*shape[:3], k.tensor.shape[2])
    if mask is not None and (mask.tensor.dtype not in (torch.bool, dtype) or mask.tensor.ndim != 4 or any(
            m not in (1, s) for m, s in zip(mask.tensor.shape, scores, strict=True))):
        return None
    layout = layout_of(graph.sizes, node.tensor.stride, shape)
    found = results_of(specs[0], specs[2], layout)
    if any(a != b and size != 1 for a, b, size in zip(found[0].stride, node.tensor.stride, shape, strict=True)):
        return None
    b, captures = Builder(graph, node), () if mask is None else (mask,)
    score = None if mask is None else _score(b, mask, "shown" if mask.tensor.dtype is torch.bool else "added")
    factor = specs[0].shape[3] ** -0.5 if scale is None else scale
    target = FlexAttention(score, None, len(captures), factor, (_BLOCK, _BLOCK), layout)
    return b.getitem(b.call(target.op(found), q, k, v, (None,) * 8, captures, spec=found), 0)


def _score(b: Builder, mask: Node, kind: str) -> Graph:
    """The graph of one element of the scores."""
    graph, device = Graph("body", sizes=b.env), mask.tensor.device
    score = graph.add_input(contiguous_spec(torch.float32, (), device), "score")
    numbers = [graph.add_input(contiguous_spec(torch.int32, (), device), name)
               for name in ("batch", "head", "query", "key")]
    own, inner = graph.add_input(mask.tensor, "mask"), Builder(graph)
    zero = inner.call("aten.full.default", [], 0, dtype=torch.int64, device=device)
    places = [zero if size == 1 else number for size, number in zip(mask.tensor.shape, numbers, strict=True)]
    read = inner.call("aten.index.Tensor", own, places)
    made: dict[str, tuple[Any, ...]] = {"added": ("aten.add.Tensor", score, read),
                                        "hidden": ("aten.masked_fill.Scalar", score, read, -math.inf),
                                        "shown": ("aten.where.ScalarOther", read, score, -math.inf)}
    found = inner.call(*made[kind])
    if kind == "added" and mask.tensor.dtype is torch.float16:  # whose least number takes in a score
        found = inner.call("aten.to.dtype", inner.call("aten.to.dtype", found, torch.float16), torch.float32)
    graph.outputs = [found]
    return graph


def _transposed(kt: Node) -> Node | None:
    """The keys whose last two axes are swapped."""
    swaps = kt.op.name == "aten.transpose.int" and {axis % 4 for axis in kt.args[1:]} == {2, 3}
    return kt.args[0] if swaps else None
