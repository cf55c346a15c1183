"""The built-in rewrites, as tables. Each is exact: the same bits for every input, with NaN, infinities and signed
zeros.

Not here because they are not exact: `x + 0` on floats (-0.0 becomes 0.0), `x * 0`, `x - x`, `x / x`, anything that
multiplies or divides complex numbers. (Signalling NaNs, and denormals under `torch.set_flush_denormal`, are not
looked at.)
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..alias import is_pending
from ..builder import Builder
from ..graph import Graph, Node
from ..spec import TensorSpec
from .pattern import P, Rules, apply, rule

_MAX_INT = 2**63 - 1


def _is_real(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(node.spec, TensorSpec) and not node.spec.dtype.is_complex


def _is_integer(node: Any) -> bool:
    return _is_real(node) and not node.spec.dtype.is_floating_point


def _is_float(node: Any) -> bool:
    return _is_real(node) and node.spec.dtype.is_floating_point


def _same(b: Builder, x: Node) -> Node:
    return x


def _if_same(x: Node, dtype: torch.dtype | None) -> Node | None:
    """x, where it has the dtype already."""
    return x if dtype is None or x.tensor.dtype == dtype else None


def _typed(x: Node, other: Any) -> Node | None:
    """x, where combining it with the Python number `other` leaves its dtype as it is."""
    like = torch.empty((1,) * x.tensor.ndim, dtype=x.tensor.dtype)
    return x if torch.result_type(like, other) == x.tensor.dtype else None


# -- arithmetic

def _reciprocal_product(b: Builder, x: Node, c: Any) -> Node | None:
    """Division by a power of two is multiplication by its inverse, where both are normal numbers of the dtype."""
    dtype = x.tensor.dtype
    value = float(c)
    if value in (1.0, -1.0) or not math.isfinite(value) or math.frexp(value)[0] not in (0.5, -0.5):
        return None
    limits = torch.finfo(dtype)
    if not all(limits.tiny <= abs(v) <= limits.max for v in (value, 1.0 / value)):
        return None
    return b.call("aten.mul.Tensor", x, 1.0 / value)


ARITHMETIC = Rules(
    rule(P.mul(P.node("x", _is_real), P.const("c", lambda c: type(c) in (int, float, bool) and c == 1)),
         lambda b, x, c: _typed(x, c), "x * 1"),
    rule(P.div(P.node("x", _is_float), P.const("c", lambda c: type(c) in (int, float) and c == 1)),
         lambda b, x, c: _typed(x, c), "x / 1"),
    rule(P.op("aten.div.Tensor", P.node("x", _is_float), P.const("c", lambda c: type(c) in (int, float) and c != 0)),
         _reciprocal_product, "x / 2**k"),
    rule(P.add(P.node("x", _is_integer), P.const("c", lambda c: type(c) is int and c == 0)),
         lambda b, x, c: _typed(x, c), "integer x + 0"),
    rule(P.add(P.node("x", _is_float), -0.0), lambda b, x: x, "x + -0.0"),
    rule(P.sub(P.node("x", _is_real), P.const("c", lambda c: type(c) in (int, float) and c == 0
                                              and math.copysign(1, c) > 0)),
         lambda b, x, c: _typed(x, c), "x - 0"),
    rule(P.neg(P.neg(P.node("x"))), _same, "-(-x)"),
    rule(P.dropout(P.node("x"), P.const("p"), False), lambda b, x, p: x, "dropout in evaluation"),
    rule(P.dropout(P.node("x"), P.const("p", lambda p: type(p) in (int, float) and p == 0), P.const("train")),
         lambda b, x, p, train: None if train else x, "dropout of nothing"),
)


# -- copies and conversions

def _unconverted(b: Builder, x: Node, dtype: Any) -> Node | None:
    return _if_same(x, dtype) if isinstance(dtype, torch.dtype) else None


def _chained_conversion(b: Builder, x: Node, middle: Any, dtype: Any) -> Node | None:
    """x -> wider -> x.dtype is x: every value of x's dtype survives a conversion to a wider one."""
    if isinstance(x.spec, TensorSpec) and x.spec.dtype == dtype and (dtype, middle) in _WIDENING:
        return x
    return None


def _shortened_conversion(b: Builder, x: Node, middle: Any, dtype: Any) -> Node | None:
    """x -> wider -> another dtype goes there at once. Not under autograd, which would round the gradient elsewhere."""
    if not isinstance(x.spec, TensorSpec) or x.spec.requires_grad or (x.spec.dtype, middle) not in _WIDENING:
        return None
    return b.call("aten.to.dtype", x, dtype)


def _copied(b: Builder, old: Node, x: Node) -> Node | None:
    """`copy(old, x)`, a write of x into memory laid out as `old`, as the conversion, expansion and copy that it is."""
    want, have = old.tensor, x.tensor
    if want.device != have.device or want.requires_grad or have.requires_grad or \
            have.dtype.is_complex and not want.dtype.is_complex:
        return None
    if have.dtype != want.dtype:
        x = b.call("aten.to.dtype", x, want.dtype)
    if x.tensor.shape != want.shape:
        x = b.call("aten.expand.default", x, list(want.shape))
    if is_pending(x) or x.tensor.stride != want.stride and want.is_contiguous():
        x = b.call("aten.clone.default", x, memory_format=torch.contiguous_format)
    return x if x.tensor.stride == want.stride else None


def _copied_apart(b: Builder, old: Node, x: Node) -> Node | None:
    """The same where x itself must not stand for the copy."""
    same = _copied(b, old, x)
    return b.call("aten.clone.default", same) if same is x else None


_WIDENING = frozenset({
    (torch.float16, torch.float32), (torch.float16, torch.float64),
    (torch.bfloat16, torch.float32), (torch.bfloat16, torch.float64),
    (torch.float32, torch.float64),
    (torch.int8, torch.int16), (torch.int8, torch.int32), (torch.int8, torch.int64),
    (torch.int16, torch.int32), (torch.int16, torch.int64), (torch.int32, torch.int64),
    (torch.uint8, torch.int16), (torch.uint8, torch.int32), (torch.uint8, torch.int64),
    (torch.bool, torch.uint8), (torch.bool, torch.int32), (torch.bool, torch.int64),
    (torch.bool, torch.float32), (torch.bool, torch.float64),
})

CONVERSIONS = Rules(
    rule(P.op("aten.to.dtype", P.node("x"), P.const("dtype")), _unconverted, "to the same dtype"),
    rule(P.op("aten._to_copy.default", P.node("x"), dtype=P.const("dtype")), _unconverted, "to the same dtype"),
    rule(P.op("aten.to.dtype", P.op("aten.to.dtype", P.node("x"), P.const("middle")), P.const("dtype")),
         _chained_conversion, "to a wider dtype and back"),
    rule(P.op("aten.to.dtype", P.op("aten.to.dtype", P.node("x"), P.const("middle")), P.const("dtype")),
         _shortened_conversion, "to a wider dtype on the way"),
    rule(P.copy(P.node("old"), P.node("x")), _copied, "copy into a layout"),
    rule(P.copy(P.node("old"), P.node("x")), _copied_apart, "copy into a layout"),
    rule(P.type_as(P.node("x"), P.node("y")), lambda b, x, y: _if_same(x, y.tensor.dtype)
         if x.tensor.device == y.tensor.device else None, "type_as of the same dtype"),
    rule(P.clone(P.node("x", lambda n: not is_pending(n))), _same, "clone"),
    rule(P.contiguous(P.node("x", lambda n: isinstance(n.spec, TensorSpec) and n.spec.is_contiguous())), _same,
         "contiguous of contiguous"),
    rule(P.cat(P.any("xs", lambda xs: isinstance(xs, (tuple, list)) and len(xs) == 1), ...),
         lambda b, xs: xs[0], "cat of one"),
)


# -- views

def _shape_is_kept(b: Builder, x: Node, size: Any) -> Node | None:
    """x, where a view or expand to `size` has x's own shape (-1 stands for one size)."""
    shape = x.tensor.shape
    if not isinstance(size, (tuple, list)) or len(size) != len(shape):
        return None
    same = all(new == old or (type(new) is int and new == -1) for new, old in zip(size, shape, strict=True))
    return x if same else None


def _last_view(name: str) -> Any:
    """view(view(x)) is view(x) where x is contiguous: every shape of as many elements is a view then."""
    def replace(b: Builder, x: Node, first: Any, size: Any) -> Node | None:
        if not isinstance(x.spec, TensorSpec) or not x.spec.is_contiguous() or x.spec.numel == 0:
            return None
        if isinstance(first, torch.dtype) or isinstance(size, torch.dtype):
            return None  # view(dtype)
        return b.call(name, x, size)
    return replace


def _axis(dim: int, ndim: int) -> int:
    return dim + ndim if dim < 0 else dim


def _transpose_back(b: Builder, x: Node, i: Any, j: Any, k: Any, m: Any) -> Node | None:
    if not all(type(d) is int for d in (i, j, k, m)):
        return None
    ndim = x.tensor.ndim
    return x if {_axis(i, ndim), _axis(j, ndim)} == {_axis(k, ndim), _axis(m, ndim)} else None


def _compose_permutes(b: Builder, x: Node, first: Any, second: Any) -> Node | None:
    if not all(isinstance(p, (tuple, list)) and all(type(d) is int for d in p) for p in (first, second)):
        return None
    ndim = x.tensor.ndim
    order = [_axis(first[_axis(d, ndim)], ndim) for d in second]
    return x if order == list(range(ndim)) else b.call("aten.permute.default", x, order)


def _whole_slice(b: Builder, x: Node, dim: Any, start: Any, end: Any) -> Node | None:
    if type(dim) is not int or start not in (None, 0):
        return None
    size = x.tensor.shape[dim]
    return x if end is None or end == _MAX_INT or end == size or (
        type(end) is int and type(size) is int and end >= size) else None


def _squeeze_back(b: Builder, x: Node, i: Any, j: Any) -> Node | None:
    if type(i) is not int or type(j) is not int:
        return None
    ndim = x.tensor.ndim + 1
    return x if _axis(i, ndim) == _axis(j, ndim) else None


VIEWS = Rules(
    rule(P.view(P.node("x"), P.any("size")), _shape_is_kept, "view of the same shape"),
    rule(P.reshape(P.node("x"), P.any("size")), _shape_is_kept, "reshape to the same shape"),
    rule(P.expand(P.node("x"), P.any("size")), _shape_is_kept, "expand to the same shape"),
    *(rule(getattr(P, outer)(getattr(P, inner)(P.node("x"), P.any("first")), P.any("size")),
           _last_view(f"aten.{outer}.default"), f"{outer} of {inner}")
      for outer in ("view", "reshape") for inner in ("view", "reshape")),
    rule(P.op("aten.transpose.int", P.op("aten.transpose.int", P.node("x"), P.any("i"), P.any("j")),
              P.any("k"), P.any("m")), _transpose_back, "transpose back"),
    rule(P.permute(P.permute(P.node("x"), P.any("first")), P.any("second")), _compose_permutes, "permute of permute"),
    rule(P.op("aten.slice.Tensor", P.node("x"), P.any("dim"), P.any("start"), P.any("end")),
         _whole_slice, "slice of all"),
    rule(P.op("aten.slice.Tensor", P.node("x"), P.any("dim"), P.any("start"), P.any("end"), 1),
         _whole_slice, "slice of all"),
    rule(P.op("aten.squeeze.dim", P.unsqueeze(P.node("x"), P.any("i")), P.any("j")),
         _squeeze_back, "squeeze of unsqueeze"),
)

#: Everything that `simplify` applies.
BUILT_IN = ARITHMETIC + CONVERSIONS + VIEWS


def simplify(graph: Graph) -> list[str]:
    """The built-in rewrites."""
    return apply(graph, BUILT_IN)
