"""Elementwise arithmetic, comparisons, logic and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ...ir.op import NotCovered
from ..expr import Expr, ScalarBuilder, carrier
from ..lower import Lowering, lowering
from ..values import HostScalar, Value


def _unary(names: str, method: str, floating: bool) -> None:
    """Ops that are one primitive; `floating` ones turn integers into the default float dtype."""
    for name in names.split():
        @lowering(name)
        def op(low: Lowering, node: Any, x: Value) -> Value:
            if not floating and x.dtype is torch.bool:
                raise NotCovered("bool operand")
            compute = node.tensor.dtype if floating else x.dtype
            return low.elementwise(node, [x], lambda e, a: getattr(e, method)(a), compute)


for _name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
              "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "reciprocal", "lgamma"):
    _unary(_name, _name, True)


@lowering("neg", "negative")
def neg(low: Lowering, node: Any, x: Value) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.neg(a))


@lowering("abs", "absolute")
def absolute(low: Lowering, node: Any, x: Value) -> Value:
    if x.dtype in (torch.bool, torch.uint8):
        return low.copy(x)
    return low.elementwise(node, [x], lambda e, a: e.abs(a))


def _rounding(name: str) -> None:
    @lowering(name)
    def op(low: Lowering, node: Any, x: Value) -> Value:
        if not x.dtype.is_floating_point:
            return low.copy(x)
        return low.elementwise(node, [x], lambda e, a: getattr(e, name)(a))


for _name in ("floor", "ceil", "trunc", "round"):
    _rounding(_name)


@lowering("frac")
def frac(low: Lowering, node: Any, x: Value) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.sub(a, e.trunc(a)))


@lowering("square")
def square(low: Lowering, node: Any, x: Value) -> Value:
    if x.dtype is torch.bool:
        raise NotCovered("bool operand")
    return low.elementwise(node, [x], lambda e, a: e.mul(a, a))


@lowering("sign", "sgn")
def sign(low: Lowering, node: Any, x: Value) -> Value:
    if x.dtype is torch.bool:
        return low.copy(x)
    return low.elementwise(node, [x], lambda e, a: e.sign(a))


def _test(name: str, for_integers: bool | None) -> None:
    @lowering(name)
    def op(low: Lowering, node: Any, x: Value) -> Value:
        if not x.dtype.is_floating_point:
            if for_integers is None:
                return low.elementwise(node, [x], lambda e, a: e.lt(a, 0), x.dtype)
            return low.fill(x.shape, torch.bool, for_integers)
        return low.elementwise(node, [x], lambda e, a: getattr(e, name)(a), x.dtype)


_test("isnan", False)
_test("isinf", False)
_test("isfinite", True)
_test("signbit", None)


# arithmetic

def _scaled(e: ScalarBuilder, x: Expr, alpha: Any) -> Expr:
    return x if alpha == 1 else e.mul(x, alpha if isinstance(alpha, Expr) else e.const(alpha, x.dtype))


def _plain_alpha(alpha: Any) -> None:
    if isinstance(alpha, Value):
        raise NotCovered("alpha known only at run time")


@lowering("add.Tensor", "add.Scalar")
def add(low: Lowering, node: Any, x: Any, y: Any, alpha: Any = 1) -> Value:
    _plain_alpha(alpha)
    if node.tensor.dtype is torch.bool:
        return low.elementwise(node, [x, y], lambda e, a, b: e.logical_or(a, b) if alpha else a, torch.bool)
    return low.elementwise(node, [x, y], lambda e, a, b: e.add(a, _scaled(e, b, alpha)))


@lowering("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def sub(low: Lowering, node: Any, x: Any, y: Any, alpha: Any = 1) -> Value:
    _plain_alpha(alpha)
    return low.elementwise(node, [x, y], lambda e, a, b: e.sub(a, _scaled(e, b, alpha)))


@lowering("rsub.Tensor", "rsub.Scalar")
def rsub(low: Lowering, node: Any, x: Any, y: Any, alpha: Any = 1) -> Value:
    _plain_alpha(alpha)
    return low.elementwise(node, [x, y], lambda e, a, b: e.sub(b, _scaled(e, a, alpha)))


@lowering("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar")
def mul(low: Lowering, node: Any, x: Any, y: Any) -> Value:
    if node.tensor.dtype is torch.bool:
        return low.elementwise(node, [x, y], lambda e, a, b: e.logical_and(a, b), torch.bool)
    return low.elementwise(node, [x, y], lambda e, a, b: e.mul(a, b))


@lowering("div.Tensor", "div.Scalar", "true_divide.Tensor", "true_divide.Scalar", "divide.Tensor", "divide.Scalar")
def div(low: Lowering, node: Any, x: Any, y: Any) -> Value:
    return low.elementwise(node, [x, y], lambda e, a, b: e.truediv(a, b), node.tensor.dtype)


def _safe_divisor(y: Any, dtype: torch.dtype) -> None:
    """Integer division by zero is an error in eager and a crash in C: only constant divisors are done natively."""
    if not dtype.is_floating_point and (not isinstance(y, int) or y in (0, -1)):
        raise NotCovered("integer division by a divisor that may be 0")


@lowering("floor_divide", "floor_divide.Scalar")
def floor_divide(low: Lowering, node: Any, x: Any, y: Any) -> Value:
    dtype = low.promote(x, y)
    _safe_divisor(y, dtype)
    return low.elementwise(node, [x, y], lambda e, a, b: e.floordiv(a, b))


@lowering("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode", "divide.Scalar_mode")
def div_mode(low: Lowering, node: Any, x: Any, y: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return div(low, node, x, y)
    dtype = low.promote(x, y)
    _safe_divisor(y, dtype)
    if rounding_mode == "floor":
        return low.elementwise(node, [x, y], lambda e, a, b: e.floordiv(a, b))
    if dtype.is_floating_point:
        return low.elementwise(node, [x, y], lambda e, a, b: e.trunc(e.truediv(a, b)))
    return low.elementwise(node, [x, y], lambda e, a, b: e.truncdiv(a, b))


@lowering("remainder.Tensor", "remainder.Scalar")
def remainder(low: Lowering, node: Any, x: Any, y: Any) -> Value:
    _safe_divisor(y, low.promote(x, y))
    return low.elementwise(node, [x, y], lambda e, a, b: e.mod(a, b))


@lowering("fmod.Tensor", "fmod.Scalar")
def fmod(low: Lowering, node: Any, x: Any, y: Any) -> Value:
    _safe_divisor(y, low.promote(x, y))
    return low.elementwise(node, [x, y], lambda e, a, b: e.fmod(a, b))


@lowering("pow.Tensor_Scalar")
def pow_scalar(low: Lowering, node: Any, x: Value, y: Any) -> Value:
    if isinstance(y, Value) or not isinstance(y, (int, float)):
        raise NotCovered("exponent known only at run time")
    if not node.tensor.dtype.is_floating_point:
        if not isinstance(y, int) or not 0 <= y <= 8 or node.tensor.dtype is torch.bool:
            raise NotCovered("integer power")
        return low.elementwise(node, [x], lambda e, a: _integer_power(e, a, y), node.tensor.dtype)

    def body(e: ScalarBuilder, a: Expr) -> Expr:
        if y == 0:
            return e.const(1, a.dtype)
        if y in (1, 2, 3):
            return _integer_power(e, a, int(y))
        if y == 0.5:
            return e.sqrt(a)
        if y == -0.5:
            return e.rsqrt(a)
        if y == -1:
            return e.reciprocal(a)
        if y == -2:
            return e.reciprocal(e.mul(a, a))
        if a.dtype is torch.float32 and float(e.const(y, a.dtype).attr) != y:
            # eager keeps the exponent in float64
            return e.cast(e.pow(e.cast(a, torch.float64), e.const(y, torch.float64)), torch.float32)
        return e.pow(a, e.const(y, a.dtype))

    return low.elementwise(node, [x], body, node.tensor.dtype)


def _integer_power(e: ScalarBuilder, x: Expr, n: int) -> Expr:
    result = None
    for _ in range(n):
        result = x if result is None else e.mul(result, x)
    return result if result is not None else e.const(1, x.dtype)


@lowering("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(low: Lowering, node: Any, x: Any, y: Any) -> Value:
    if not node.tensor.dtype.is_floating_point:
        raise NotCovered("integer power")
    return low.elementwise(node, [x, y], lambda e, a, b: e.pow(a, b), node.tensor.dtype)


def _binary(name: str, method: str, floating: bool = False, float_only: bool = False) -> None:
    @lowering(name)
    def op(low: Lowering, node: Any, x: Any, y: Any) -> Value:
        dtype = node.tensor.dtype
        if float_only and not dtype.is_floating_point:
            raise NotCovered("integer operands")
        if dtype is torch.bool:
            raise NotCovered("bool operands")
        return low.elementwise(node, [x, y], lambda e, a, b: getattr(e, method)(a, b), dtype if floating else None)


_binary("maximum", "maximum")
_binary("minimum", "minimum")
_binary("max.other", "maximum")
_binary("min.other", "minimum")
_binary("fmax", "fmax", float_only=True)
_binary("fmin", "fmin", float_only=True)
_binary("atan2", "atan2", True, True)
_binary("hypot", "hypot", True, True)
_binary("copysign.Tensor", "copysign", True, True)
_binary("copysign.Scalar", "copysign", True, True)


def _comparison(name: str, *aliases: str) -> None:
    names = [f"{n}.{suffix}" for n in (name, *aliases) for suffix in ("Tensor", "Scalar")]

    @lowering(*names)
    def op(low: Lowering, node: Any, x: Any, y: Any) -> Value:
        return low.elementwise(node, [x, y], lambda e, a, b: getattr(e, name)(a, b), low.promote(x, y))


_comparison("eq")
_comparison("ne", "not_equal")
_comparison("lt", "less")
_comparison("le", "less_equal")
_comparison("gt", "greater")
_comparison("ge", "greater_equal")


# logic

def _logical(name: str, body: Callable[..., Expr]) -> None:
    @lowering(name)
    def op(low: Lowering, node: Any, *operands: Any) -> Value:
        return low.elementwise(node, operands, lambda e, *xs: body(e, *(e.cast(x, torch.bool) for x in xs)),
                               [x.dtype if isinstance(x, Value) else torch.bool for x in operands])


_logical("logical_and", lambda e, a, b: e.logical_and(a, b))
_logical("logical_or", lambda e, a, b: e.logical_or(a, b))
_logical("logical_xor", lambda e, a, b: e.ne(a, b))
_logical("logical_not", lambda e, a: e.logical_not(a))


def _bitwise(name: str, method: str, boolean: str) -> None:
    @lowering(*(f"{name}.{suffix}" for suffix in ("Tensor", "Scalar")))
    def op(low: Lowering, node: Any, x: Any, y: Any) -> Value:
        if node.tensor.dtype is torch.bool:
            return low.elementwise(node, [x, y], lambda e, a, b: getattr(e, boolean)(a, b), torch.bool)
        return low.elementwise(node, [x, y], lambda e, a, b: getattr(e, method)(a, b))


for _name, _boolean in (("and", "logical_and"), ("or", "logical_or"), ("xor", "ne")):
    _bitwise(f"bitwise_{_name}", f"bitwise_{_name}", _boolean)
    _bitwise(f"__{_name}__", f"bitwise_{_name}", _boolean)


@lowering("bitwise_not")
def bitwise_not(low: Lowering, node: Any, x: Value) -> Value:
    if x.dtype is torch.bool:
        return low.elementwise(node, [x], lambda e, a: e.logical_not(a))
    return low.elementwise(node, [x], lambda e, a: e.bitwise_not(a))


def _shift(left: bool, *names: str) -> None:
    @lowering(*names)
    def op(low: Lowering, node: Any, x: Any, y: Any) -> Value:
        dtype = node.tensor.dtype
        if dtype.is_floating_point or dtype is torch.bool:
            raise NotCovered("shift of floats")
        bits = dtype.itemsize * 8

        def body(e: ScalarBuilder, a: Expr, b: Expr) -> Expr:
            # eager: a shift by a negative or too large amount gives 0, or the sign for right shifts
            outside = e.logical_or(e.lt(b, 0), e.ge(b, bits)) if dtype.is_signed else e.ge(b, bits)
            if left:
                return e.where(outside, 0, e.shift_left(a, e.where(outside, 0, b)))
            return e.shift_right(a, e.where(outside, bits - 1 if dtype.is_signed else 0, b)) if dtype.is_signed else \
                e.where(outside, 0, e.shift_right(a, e.where(outside, 0, b)))

        return low.elementwise(node, [x, y], body)


_shift(True, "__lshift__.Tensor", "__lshift__.Scalar", "bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar")
_shift(False, "__rshift__.Tensor", "__rshift__.Scalar", "bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar")


@lowering("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(low: Lowering, node: Any, condition: Value, x: Any, y: Any) -> Value:
    dtype = node.tensor.dtype
    return low.elementwise(node, [condition, x, y], lambda e, c, a, b: e.where(e.cast(c, torch.bool), a, b),
                           [condition.dtype, dtype, dtype])


@lowering("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(low: Lowering, node: Any, x: Value, mask: Value, value: Any) -> Value:
    return low.elementwise(node, [x, mask, value], lambda e, a, m, v: e.where(e.cast(m, torch.bool), v, a),
                           [x.dtype, mask.dtype, x.dtype])


# composites

@lowering("clamp", "clamp.Tensor", "clip", "clip.Tensor")
def clamp(low: Lowering, node: Any, x: Value, min: Any = None, max: Any = None) -> Value:
    given = [v for v in (min, max) if v is not None]

    def body(e: ScalarBuilder, a: Expr, *limits: Expr) -> Expr:
        rest = list(limits)
        if min is not None:
            a = e.maximum(a, rest.pop(0))
        if max is not None:
            a = e.minimum(a, rest.pop(0))
        return a

    if node.tensor.dtype is torch.bool:
        raise NotCovered("bool operands")
    return low.elementwise(node, [x, *given], body, node.tensor.dtype)


@lowering("clamp_min", "clamp_min.Tensor")
def clamp_min(low: Lowering, node: Any, x: Value, limit: Any) -> Value:
    return clamp(low, node, x, limit)


@lowering("clamp_max", "clamp_max.Tensor")
def clamp_max(low: Lowering, node: Any, x: Value, limit: Any) -> Value:
    return clamp(low, node, x, None, limit)


@lowering("lerp.Scalar", "lerp.Tensor")
def lerp(low: Lowering, node: Any, x: Value, end: Value, weight: Any) -> Value:
    def body(e: ScalarBuilder, a: Expr, b: Expr, w: Expr) -> Expr:
        near = e.add(a, e.mul(w, e.sub(b, a)))
        far = e.sub(b, e.mul(e.sub(b, a), e.sub(e.const(1, a.dtype), w)))
        return e.where(e.lt(e.abs(w), 0.5), near, far)

    return low.elementwise(node, [x, end, weight], body, node.tensor.dtype)


@lowering("addcmul")
def addcmul(low: Lowering, node: Any, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    _plain_alpha(value)
    return low.elementwise(node, [x, a, b], lambda e, x, a, b: e.add(x, e.mul(_scaled(e, a, value), b)), node.tensor.dtype)


@lowering("addcdiv")
def addcdiv(low: Lowering, node: Any, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    _plain_alpha(value)
    return low.elementwise(node, [x, a, b], lambda e, x, a, b: e.add(x, e.truediv(_scaled(e, a, value), b)),
                           node.tensor.dtype)


@lowering("nan_to_num")
def nan_to_num(low: Lowering, node: Any, x: Value, nan: float | None = None, posinf: float | None = None,
               neginf: float | None = None) -> Value:
    if not x.dtype.is_floating_point:
        return low.copy(x)
    limits = torch.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low_ = limits.min if neginf is None else neginf
    return low.elementwise(node, [x], lambda e, a: e.where(
        e.isnan(a), nan or 0.0, e.where(e.eq(a, math.inf), high, e.where(e.eq(a, -math.inf), low_, a))))


# activations

@lowering("relu")
def relu(low: Lowering, node: Any, x: Value) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.maximum(a, e.const(0, a.dtype)))


@lowering("relu6")
def relu6(low: Lowering, node: Any, x: Value) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.minimum(e.maximum(a, 0), 6))


@lowering("hardtanh")
def hardtanh(low: Lowering, node: Any, x: Value, min_val: Any = -1, max_val: Any = 1) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.minimum(e.maximum(a, min_val), max_val))


@lowering("gelu")
def gelu(low: Lowering, node: Any, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "none":
        return low.elementwise(node, [x], lambda e, a: e.mul(e.mul(a, 0.5), e.add(e.erf(e.mul(a, math.sqrt(0.5))), 1.0)))

    def body(e: ScalarBuilder, a: Expr) -> Expr:
        inner = e.mul(e.add(a, e.mul(e.mul(e.mul(a, a), a), 0.044715)), math.sqrt(2 / math.pi))
        return e.mul(e.mul(a, 0.5), e.add(e.tanh(inner), 1.0))

    return low.elementwise(node, [x], body)


@lowering("silu")
def silu(low: Lowering, node: Any, x: Value) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.truediv(a, e.add(e.exp(e.neg(a)), 1.0)))


@lowering("mish")
def mish(low: Lowering, node: Any, x: Value) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.mul(a, e.tanh(e.log1p(e.exp(a)))))


@lowering("leaky_relu")
def leaky_relu(low: Lowering, node: Any, x: Value, negative_slope: Any = 0.01) -> Value:
    _plain_alpha(negative_slope)
    return low.elementwise(node, [x], lambda e, a: e.where(e.gt(a, 0), a, e.mul(a, negative_slope)))


@lowering("elu")
def elu(low: Lowering, node: Any, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.where(
        e.le(a, 0), e.mul(e.expm1(_scaled(e, a, input_scale)), alpha * scale), _scaled(e, a, scale)))


@lowering("softplus")
def softplus(low: Lowering, node: Any, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    def body(e: ScalarBuilder, a: Expr) -> Expr:
        scaled = _scaled(e, a, beta)
        return e.where(e.gt(scaled, threshold), a, e.truediv(e.log1p(e.exp(scaled)), beta))

    return low.elementwise(node, [x], body)


@lowering("log_sigmoid")
def log_sigmoid(low: Lowering, node: Any, x: Value) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.sub(e.minimum(a, 0), e.log1p(e.exp(e.neg(e.abs(a))))))


@lowering("hardswish")
def hardswish(low: Lowering, node: Any, x: Value) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.truediv(
        e.mul(a, e.minimum(e.maximum(e.add(a, 3.0), 0.0), 6.0)), 6.0))


@lowering("hardsigmoid")
def hardsigmoid(low: Lowering, node: Any, x: Value) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.truediv(e.minimum(e.maximum(e.add(a, 3.0), 0.0), 6.0), 6.0))


@lowering("threshold")
def threshold(low: Lowering, node: Any, x: Value, limit: Any, value: Any) -> Value:
    return low.elementwise(node, [x], lambda e, a: e.where(e.le(a, limit), value, a))


@lowering("glu")
def glu(low: Lowering, node: Any, x: Value, dim: int = -1) -> Value:
    (axis,) = low.dims(dim, len(x.shape))
    half = node.tensor.shape[axis]
    return low.elementwise(node, [low.slice(x, axis, 0, half), low.slice(x, axis, half, half)],
                           lambda e, a, b: e.mul(a, e.sigmoid(b)))


def number(value: Any, name: str) -> Any:
    """A constant argument; NotCovered where it is known only at run time."""
    if isinstance(value, HostScalar):
        raise NotCovered(f"{name} known only at run time")
    return value


__all__ = ["carrier", "number"]
