"""Saved tensors in fewer bytes, where the joint graph says it:

    max_pool2d_with_indices_backward(g, x, ..., indices)    x is asked for its sizes only: zeros, which no kernel ever
                                                            writes, stand in for it; positions within a plane get 16
                                                            or 32 bits
    threshold_backward(g, x, 0)                             where(x <= 0, 0, g): a byte of each element is enough

In a graph that is cut, `autograd/partition.py` decides what of it is kept; elsewhere fusion does.
"""

from __future__ import annotations

from typing import Any

import torch

from ..builder import Builder
from ..graph import Graph, Node
from ..spec import TensorSpec, prod
from .cleanup import remove_dead_code

_MAXIMA = "aten.max_pool2d_with_indices_backward.default"
_RELU = "aten.threshold_backward.default"
#: The positions of maxima among the arguments.
_POSITIONS = 7


def compress_saved_tensors(graph: Graph) -> list[str]:
    """Rewrite gradients of a graph whose layouts are known; says what it changed."""
    mapping: dict[Node, Node] = {}
    notes: list[str] = []
    for node in list(graph.nodes):
        if node.op.sizes_only is not None:
            node.args = _of_pool(Builder(graph, before=node), node)
            notes.append(f"{node.name} reads less")
        elif node.op.name == _RELU and node.args[2] == 0:
            mapping[node] = _of_mask(Builder(graph, before=node), node)
            notes.append(f"{node.name} reads signs")
    graph.replace(mapping)
    if notes:
        remove_dead_code(graph)
    return notes


def _of_pool(b: Builder, node: Node) -> tuple[Any, ...]:
    """Other arguments for the gradient of a pooling."""
    args, read = list(node.args), node.op.sizes_only
    assert read is not None
    args[read] = _stand_in(b, args[read]) or args[read]
    if node.op.name == _MAXIMA and args[_POSITIONS] not in b.graph.outputs:
        args[_POSITIONS] = _narrow(b, args[_POSITIONS], args[read].tensor) or args[_POSITIONS]
    return tuple(args)


def _of_mask(b: Builder, node: Node) -> Node:
    grad, x = node.args[:2]
    spec = node.tensor
    mask = b.call("aten.le.Scalar", x, 0)
    return b.call("aten.where.ScalarSelf", mask, 0, grad, spec=spec)


def _stand_in(b: Builder, x: Node) -> Node | None:
    """Zeros laid out like `x`, which has to have each element once and no gaps."""
    spec = x.tensor
    if not spec.is_static:
        return None
    order = sorted(range(len(spec.shape)), key=lambda k: (-spec.stride[k], -spec.shape[k], k))
    lying = b.call("aten.full.default", [spec.shape[k] for k in order], 0, dtype=spec.dtype, device=spec.device)
    found = b.call("aten.permute.default", lying, [order.index(k) for k in range(len(order))])
    return found if found.tensor.stride == spec.stride else None


def _narrow(b: Builder, indices: Node, x: TensorSpec) -> Node | None:
    plane = prod(x.shape[-2:])
    if type(plane) is not int or plane > 2**31:
        return None
    kept = b.call("aten._to_copy.default", indices, dtype=torch.int16 if plane <= 2**15 else torch.int32)
    return b.call("aten._to_copy.default", kept, dtype=indices.tensor.dtype)


__all__ = ["compress_saved_tensors"]
