"""Dtype conversions, copies and factories."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch

from ...ir.op import NotCovered
from ...ir.ops import aliasing
from ..expr import carrier
from ..index import of
from ..lower import Lowering, lowering
from ..values import HostScalar, Value, View
from .pointwise import number


@lowering("_to_copy", "to.dtype", "to.dtype_layout", "to.other", "to.device", "to.prim_dtype", "type_as", "contiguous",
          "clone", "_conj", "resolve_conj", "resolve_neg", "lift_fresh", "alias", "detach", "positive", "dropout",
          "feature_dropout", "alpha_dropout", "view_as_real_copy", "lift_fresh_copy", "detach_copy", "alias_copy")
def convert(low: Lowering, node: Any, x: Value, *args: Any, **kwargs: Any) -> Value:
    """Ops whose result is the argument's elements, in another dtype or layout or the same ones."""
    if "dropout" in node.op.name:
        p, train = args
        if train and p:
            raise NotCovered("random numbers")
    if node.tensor.device.type != "cpu":
        raise NotCovered("other device")
    if x.dtype is not node.tensor.dtype:
        return low.convert(x, node.tensor.dtype)
    kind = aliasing(node.op, low.env, node.args, node.kwargs)
    if kind == "copy":
        return low.copy(x)
    return x if kind == "self" else low.tag(View(x, x.shape, lambda index: index))


@lowering("full")
def full(low: Lowering, node: Any, size: Any, value: Any, **kwargs: Any) -> Value:
    return _fill(low, node, value)


@lowering("full_like", "new_full")
def full_like(low: Lowering, node: Any, x: Value, *args: Any, **kwargs: Any) -> Value:
    return _fill(low, node, args[-1])


@lowering("zeros", "zeros_like", "new_zeros", "zeros.names")
def zeros(low: Lowering, node: Any, *args: Any, **kwargs: Any) -> Value:
    return _fill(low, node, 0)


@lowering("ones", "ones_like", "new_ones")
def ones(low: Lowering, node: Any, *args: Any, **kwargs: Any) -> Value:
    return _fill(low, node, 1)


@lowering("scalar_tensor")
def scalar_tensor(low: Lowering, node: Any, value: Any, **kwargs: Any) -> Value:
    return _fill(low, node, value)


def _fill(low: Lowering, node: Any, value: Any) -> Value:
    if isinstance(value, Value) and not isinstance(value, HostScalar) or isinstance(value, complex):
        raise NotCovered("fill value")
    if isinstance(value, float) and not node.tensor.dtype.is_floating_point and not math.isfinite(value):
        raise NotCovered("fill value")
    return low.fill(node.tensor.shape, node.tensor.dtype, value)


@lowering("arange", "arange.start", "arange.start_step")
def arange(low: Lowering, node: Any, *args: Any, **kwargs: Any) -> Value:
    numbers = [number(a, "arange") for a in args]
    start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
    dtype = node.tensor.dtype
    integer = all(isinstance(n, (int, sympy.Expr)) for n in (start, step))
    if not integer or dtype in (torch.float16, torch.bfloat16):
        raise NotCovered("arange of floats")
    return low.pointwise(node.tensor.shape, dtype,
                         lambda trace, index: trace.e.cast(trace.e.index(index[0] * step + start), carrier(dtype)))


@lowering("eye", "eye.m")
def eye(low: Lowering, node: Any, *args: Any, **kwargs: Any) -> Value:
    return low.pointwise(node.tensor.shape, node.tensor.dtype,
                         lambda trace, index: trace.e.eq(trace.e.index(index[0]), trace.e.index(index[1])))


def _triangle(name: str, keep: str) -> None:
    @lowering(name)
    def op(low: Lowering, node: Any, x: Value, diagonal: int = 0) -> Value:
        number(diagonal, "diagonal")

        def body(trace: Any, index: Any) -> Any:
            e = trace.e
            inside = getattr(e, keep)(e.index(index[-1] - index[-2]), e.index(of(diagonal)))
            value = trace.read(x, index)
            return e.where(inside, value, e.const(0, value.dtype))

        return low.pointwise(node.tensor.shape, node.tensor.dtype, body)


_triangle("tril", "le")
_triangle("triu", "ge")
