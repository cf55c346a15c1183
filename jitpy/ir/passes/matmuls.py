"""`linear` as the matrix product that it is: on rows, with views around it.

Eager's composite op does the same. Written out, the product's memory can be planned (the kernels of `mm` and `addmm`
write where they are told to), and a gradient formula's `mm` and the forward pass look alike. `addmm` first fills its
result with the bias and then reads it again: where the result is large the bias is added afterwards instead, by the
kernel that reads the product anyway. (Rounding differs in the order of one addition.)
"""

from __future__ import annotations

import torch

from ..builder import Builder
from ..graph import Node
from ..spec import prod
from .alignment import rows_of
from .pattern import P, Rules, rule

#: Bytes of a result that a pass over memory is worth saving for.
LARGE = 1 << 20


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
    features = specs[1].shape[0]
    rows = rows_of(b, x)
    turned = b.call("aten.t.default", weight)
    late = bias is not None and b.env.hint(prod(shape[:-1]) * features) * dtype.itemsize >= LARGE
    if bias is None or late:
        result = b.call("aten.mm.default", rows, turned)
    else:
        result = b.call("aten.addmm.default", bias, rows, turned)
    if len(shape) > 2:
        result = b.call("aten.view.default", result, [*shape[:-1], features])
    return b.call("aten.add.Tensor", result, bias) if late else result


_X, _WEIGHT, _BIAS = P.node("x"), P.node("weight"), P.node("bias")

LINEAR = Rules(
    rule(P.linear(_X, _WEIGHT, _BIAS), lambda b, x, weight, bias: _on_rows(b, x, weight, bias), "linear on rows"),
    rule(P.linear(_X, _WEIGHT), lambda b, x, weight: _on_rows(b, x, weight), "linear on rows, no bias"),
)
