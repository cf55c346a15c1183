"""Attention as `flex_attention` whose score function reads the mask: where it is written out with one, and torch's
operator with one query a head, as for one token.

It is faster than torch's fused kernels with a mask, and keys that heads share need not be repeated. Programs share the
keys of one query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import NoneType
from typing import Any

import torch

from ..alias import shown_results
from ..builder import Builder
from ..flex_attention import FlexAttention, results_of
from ..graph import Graph, Node
from ..spec import TensorSpec, contiguous_spec
from .grouped_heads import arguments_of, few_heads

#: Fewer queries have a kernel that is faster in parts.
_LEAST_QUERIES = 16
#: one block, that of all queries and keys
_BLOCK = 1 << 30
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
    if scores[2] < _LEAST_QUERIES or not _is_mask(mask, dtype if kind == "added" else torch.bool, scores):
        return None
    if kt.tensor.shape[:3] != (*scores[:2], q.tensor.shape[3]) or v.tensor.shape[:3] != (*scores[:2], scores[3]):
        return None
    k = _transposed(kt)
    few = few_heads(k, v, set(), dtype) if k is not None else None
    k, v = few or (k or b.call("aten.transpose.int", kt, -2, -1), v)
    return _flexible(b, (q, k, v), scale, mask, kind, math.nan)


def share_keys(graph: Graph) -> list[str]:
    """Let torch's operator for one query a head run as flex attention on GPUs, in place. One text a change."""
    found = [node for node in graph.nodes if node.op.name == _ATTENTION and node.tensor.ndim == 4]
    watched = shown_results(graph) if found else set()
    made = {node: result for node in found if (result := _with_shared_keys(graph, node, watched)) is not None}
    graph.replace(made)
    graph.nodes[:] = [node for node in graph.nodes if node not in made]  # which counts as random
    return [f"{node.name}: programs share its keys" for node in made]


def _with_shared_keys(graph: Graph, node: Node, watched: set[Node]) -> Node | None:
    (*operands, mask, dropout, is_causal), kwargs = arguments_of(node)
    q, k, v = (one.tensor for one in operands)
    if kwargs.get("scale") == 0 or not isinstance(kwargs.get("scale", 0.5), (float, NoneType)):
        return None
    if q.dtype not in _DTYPES.get(q.device.type, ()) or dropout or is_causal or node.tensor.requires_grad or \
            q.shape[2] != 1 or k.shape[0] != q.shape[0] or any(type(size) is not int for size in (
                *q.shape[1::2], *k.shape[1::2], v.shape[3])):
        return None
    kind = "added" if mask is None or mask.tensor.dtype is q.dtype else "shown"
    if mask is not None and not _is_mask(mask, q.dtype if kind == "added" else torch.bool,
                                         (*q.shape[:3], k.shape[2])):
        return None
    query, key, value = operands
    few = few_heads(key, value, watched, q.dtype) or (key, value)
    scale = kwargs.get("scale") or q.shape[3] ** -0.5
    return _flexible(Builder(graph, node), (query, *few), scale, mask, kind, 0.0)


def _is_mask(mask: Node, dtype: torch.dtype, scores: Sequence[Any]) -> bool:
    return mask.tensor.dtype is dtype and mask.tensor.ndim == 4 and \
        all(m in (1, s) for m, s in zip(mask.tensor.shape, scores, strict=True))


def _flexible(b: Builder, operands: Sequence[Node], scale: float, mask: Node | None, kind: str, empty: float) -> Node:
    captures = () if mask is None else (mask,)
    score = None if mask is None else _score(b, mask, kind)
    target = FlexAttention(score, None, len(captures), scale, (_BLOCK, _BLOCK), _LAYOUT, empty=empty)
    found = results_of(operands[0].tensor, operands[2].tensor, _LAYOUT)
    return b.getitem(b.call(target.op(found), *operands, (None,) * 8, captures, spec=found), 0)


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
