"""Attention whose keys and values are repeated for the heads of a group reads them as they are.

Models with fewer heads of keys than of queries copy each of them some times, so that the shapes agree. Kernels on GPUs
take the few heads (`enable_gqa`), where torch has the same kernel for both.
"""

from __future__ import annotations

from typing import Any

import torch

from ..alias import shown_results
from ..builder import Builder
from ..graph import Graph, Node
from ..op import NotCovered
from ..ops import infer, normalize
from ..ops.nn import gpu_attention
from ..spec import TensorSpec

_ATTENTION = "aten.scaled_dot_product_attention.default"
#: Which axis of keys and values counts heads; a group's members are behind it while they are repeated.
_HEADS, _MEMBERS = 1, 2


def group_heads(graph: Graph) -> list[str]:
    """Rewrite the calls of attention on GPUs in place; what was repeated is left to be removed. One text a change."""
    found = [node for node in graph.nodes if node.op.name == _ATTENTION and node.tensor.device.type == "cuda"]
    if not found:
        return []
    watched = shown_results(graph)
    return [f"{node.name}: heads of keys are read in groups" for node in found if _group(graph, node, watched)]


def _group(graph: Graph, node: Node, watched: set[Node]) -> bool:
    (query, key, value, *rest), kwargs = arguments_of(node)
    found = None if len(node.tensor.shape) != 4 or kwargs.get("enable_gqa") else few_heads(key, value, watched)
    if found is None:
        return False
    keys, values = found
    mask, dropout, is_causal = rest
    few = [query.tensor, *(_like(one.tensor, many.tensor) for one, many in ((keys, key), (values, value)))]
    arguments = (mask and mask.tensor, float(dropout), bool(is_causal))
    try:
        usual = gpu_attention(graph.sizes, (query.tensor, key.tensor, value.tensor), *arguments, False)
        grouped = gpu_attention(graph.sizes, tuple(few), *arguments, True)  # type: ignore[arg-type]
        kwargs = {**kwargs, "enable_gqa": True}
        if usual is None or grouped is None or usual[0] != grouped[0] or "efficient" in grouped[0]:
            return False
        spec = infer(node.op, graph.sizes, (*few, *rest), kwargs, node.grad_enabled)
    except NotCovered:
        return False
    if not isinstance(spec, TensorSpec) or spec.shape != node.tensor.shape or spec.stride != node.tensor.stride:
        return False
    b = Builder(graph, node)
    operands = [one if one.tensor.dtype is many.tensor.dtype else
                b.call("aten._to_copy.default", one, dtype=many.tensor.dtype)
                for one, many in ((keys, key), (values, value))]
    node.args, node.kwargs = (query, *operands, *rest), kwargs
    return True


def arguments_of(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """All positional arguments of attention, and the others."""
    args, kwargs = normalize(node.op, node.args, node.kwargs)
    return (*args, *(None, 0.0, False)[len(args) - 3:]), kwargs


def few_heads(key: Node, value: Node, watched: set[Node], dtype: torch.dtype | None = None) -> tuple[Node, Node] | None:
    """The keys and values that others repeat along their heads, all in a dtype."""
    found = [repeated_from(one, watched) for one in (key, value)]
    if found[0] is None or found[1] is None or found[0].tensor.shape[:3] != found[1].tensor.shape[:3] or \
            any(one is not None and dtype not in (None, one.tensor.dtype) for one in found):
        return None
    return found[0], found[1]


def repeated_from(node: Node, watched: set[Node]) -> Node | None:
    """The tensor that another one (batch, heads, rows, columns) repeats some times each along its heads, perhaps in
    another dtype."""
    chain = [node]

    def follow(name: str, is_reshape: bool = False) -> bool:
        if chain[-1].op.name != name and not (is_reshape and chain[-1].op.is_reshape):
            return False
        chain.append(chain[-1].args[0])
        return True

    if chain[-1].kwargs.keys() == {"dtype"}:
        follow("aten._to_copy.default")
    many = chain[-1].tensor.shape
    if not follow("", is_reshape=True):
        return None
    follow("aten.clone.default")
    repeated = chain[-1].tensor.shape
    if not follow("aten.expand.default") or not follow("aten.unsqueeze.default") or len(repeated) != 5:
        return None
    few, alone = chain[-1].tensor.shape, chain[-2].tensor.shape
    if any(one in watched for one in chain[:-1]) or len(few) != 4 or len(many) != 4:
        return None
    few_heads, many_heads = few[_HEADS], many[_HEADS]
    if not isinstance(few_heads, int) or not isinstance(many_heads, int) or few_heads in (1, many_heads):
        return None
    if alone != (*few[:_MEMBERS], 1, *few[_MEMBERS:]) or few[0] != many[0] or few[_MEMBERS:] != many[_MEMBERS:]:
        return None
    times = many_heads // few_heads
    if repeated != (*few[:_MEMBERS], times, *few[_MEMBERS:]) or times * few_heads != many_heads:
        return None
    return chain[-1]


def _like(few: TensorSpec, many: TensorSpec) -> TensorSpec:
    """The spec of the few heads in the dtype of the repeated ones."""
    return TensorSpec(many.dtype, few.shape, few.stride, few.device, few.requires_grad)

