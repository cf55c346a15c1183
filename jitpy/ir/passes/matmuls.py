"""`linear` as the matrix product that it is: on rows, with views around it.

Eager's composite op does the same. Written out, the product's memory can be planned (the kernels of `mm` and `addmm`
write where they are told to), and a gradient formula's `mm` and the forward pass look alike.
"""

from __future__ import annotations

import torch

from ..builder import Builder
from ..graph import Node
from ..spec import prod
from .pattern import P, Rules, rule


def _on_rows(b: Builder, x: Node, weight: Node, bias: Node | None = None) -> Node | None:
    """The product, where eager makes one of the rows of `x` as they lie in memory; None leaves the graph as it is."""
    specs = [n.tensor for n in (x, weight, bias) if n is not None]
    dtype = specs[0].dtype
    if dtype not in (torch.float32, torch.float64) or any(s.dtype is not dtype or s.requires_grad for s in specs):
        return None
    shape = specs[0].shape
    if len(shape) < 2 or len(specs[1].shape) != 2 or not specs[0].is_contiguous() or bias and len(specs[2].shape) != 1:
        return None
    if any(type(size) is int and size == 0 for s in specs for size in s.shape):
        return None
    rows = x if len(shape) == 2 else b.call("aten.view.default", x, [prod(shape[:-1]), shape[-1]])
    turned = b.call("aten.t.default", weight)
    if bias is None:
        result = b.call("aten.mm.default", rows, turned)
    else:
        result = b.call("aten.addmm.default", bias, rows, turned)
    if len(shape) == 2:
        return result
    return b.call("aten.view.default", result, [*shape[:-1], specs[1].shape[0]])


_X, _WEIGHT, _BIAS = P.node("x"), P.node("weight"), P.node("bias")

LINEAR = Rules(
    rule(P.linear(_X, _WEIGHT, _BIAS), lambda b, x, weight, bias: _on_rows(b, x, weight, bias), "linear on rows"),
    rule(P.linear(_X, _WEIGHT), lambda b, x, weight: _on_rows(b, x, weight), "linear on rows, no bias"),
)
