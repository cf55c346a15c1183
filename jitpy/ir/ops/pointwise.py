"""Elementwise arithmetic: unary functions, binary operators, comparisons, logic, selection.

A pointwise op's `scalar(e, *operands, **rest)` is its body for one element. The first `operands` arguments
arrive as expressions, converted to the dtypes that `operand_dtypes` names, and rounded to 16 bits where the common
dtype has no more (on the CPU numbers, too, but for the operand `exact_number`); further arguments (`alpha`,
`approximate`, clamp bounds of None, ...) arrive as they stand in the node. Bodies raise NotCovered for arguments they
do not handle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..op import NotCovered, Op
from ..sizes import SizeEnv
from ..spec import TensorSpec, contiguous_stride
from .layout import broadcast_shapes, elementwise_layout, preserved_stride
from .promotion import category, compute_dtype, float_result, result_type, scalar_dtype
from .table import Invalid, define

Dtypes = tuple[torch.dtype, ...]


def operand_dtypes(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Dtypes:
    """The dtype that each operand of a pointwise op is converted to before `op.scalar` (16-bit floats compute in
    float32).

    `args` hold specs and constants. The result is then converted to the dtype of the node's spec. Raises NotCovered
    for operands without a rule.
    """
    return tuple(compute_dtype(d) for d in common_dtypes(op, args, kwargs))


def common_dtypes(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Dtypes:
    """The dtype that eager converts each operand of a pointwise op to."""
    assert op.compute is not None
    dtypes = op.compute(*args, **kwargs)
    return (dtypes,) * op.operands if isinstance(dtypes, torch.dtype) else tuple(dtypes)


def elementwise(
    env: SizeEnv, dtype: torch.dtype, operands: tuple[Any, ...], common: torch.dtype | None = None
) -> TensorSpec:
    """The result of an elementwise loop over specs and Python numbers."""
    device: torch.device | None = None
    only_scalar = True
    tensors: list[TensorSpec | None] = []
    for x in operands:
        if type(x) is not TensorSpec:
            tensors.append(None)
            continue
        tensors.append(x)
        if device is None:
            device, only_scalar = x.device, not x.shape
        elif x.device is not device and x.device != device:
            if only_scalar and device.type == "cpu":
                device, only_scalar = x.device, not x.shape
            elif x.shape or x.device.type != "cpu":
                raise NotCovered("tensors on several devices")
        elif x.shape:
            only_scalar = False
    if device is None:
        raise NotCovered("no tensor")
    shape, stride = elementwise_layout(env, tensors, common)
    return TensorSpec(dtype, shape, stride, device)


# -- Families: how a result dtype follows from the operands -------------------------------------------------------


def _same(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    return elementwise(env, x.dtype, (x,))


def like(env: SizeEnv, x: TensorSpec, dtype: torch.dtype | None = None) -> TensorSpec:
    """The result of a loop that writes into `torch.empty_like(x)`: strides of axes of size 1 are those of `x`."""
    return TensorSpec(dtype or x.dtype, x.shape, preserved_stride(env, x.shape, x.stride), x.device)


def _float_unary(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    dtype = float_result(x.dtype)
    return elementwise(env, dtype, (x,), dtype)


def _bool_unary(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    return elementwise(env, torch.bool, (x,))


def _promoting(env: SizeEnv, x: Any, y: Any) -> TensorSpec:
    dtype = result_type((x, y))
    return elementwise(env, dtype, (x, y), dtype)


def _float_promoting(env: SizeEnv, x: Any, y: Any) -> TensorSpec:
    dtype = float_result(result_type((x, y)))
    return elementwise(env, dtype, (x, y), dtype)


def _comparing(env: SizeEnv, x: Any, y: Any) -> TensorSpec:
    return elementwise(env, torch.bool, (x, y), result_type((x, y)))


def _own(x: TensorSpec, *rest: Any, **kwargs: Any) -> torch.dtype:
    return x.dtype


def _own_float(x: TensorSpec, *rest: Any, **kwargs: Any) -> torch.dtype:
    return float_result(x.dtype)


def _promoted(x: Any, y: Any, *rest: Any, **kwargs: Any) -> torch.dtype:
    return result_type((x, y))


def _promoted_float(x: Any, y: Any, *rest: Any, **kwargs: Any) -> torch.dtype:
    return float_result(result_type((x, y)))


def unary(
    name: str, scalar: Callable[..., Any], infer: Callable[..., Any] | None = _same, **facets: Any
) -> None:
    """A function of one tensor that keeps the dtype."""
    define(
        f"aten.{name}.default", kind="pointwise", infer=infer, scalar=scalar, operands=1, **{"compute": _own, **facets}
    )


def float_unary(name: str, scalar: Callable[..., Any]) -> None:
    """A function of one tensor that turns integers into floats."""
    unary(name, scalar, _float_unary, compute=_own_float)


def question(name: str, scalar: Callable[..., Any], **facets: Any) -> None:
    """A yes/no question about each element."""
    unary(name, scalar, _bool_unary, differentiable=False, **facets)


def binary(
    *names: str, scalar: Callable[..., Any], infer: Callable[..., Any] | None = _promoting, **facets: Any
) -> None:
    """A function of two tensors (or a tensor and a number) in their common dtype."""
    define(*names, kind="pointwise", infer=infer, scalar=scalar, operands=2, **{"compute": _promoted, **facets})


def float_binary(*names: str, scalar: Callable[..., Any], **facets: Any) -> None:
    """The same, where integers turn into floats."""
    binary(*names, scalar=scalar, infer=_float_promoting, compute=_promoted_float, **facets)


def both(name: str) -> tuple[str, str]:
    return f"aten.{name}.Tensor", f"aten.{name}.Scalar"


def is_integral(dtype: torch.dtype) -> bool:
    return category(dtype) < 2


# -- Arithmetic ---------------------------------------------------------------------------------------------------


def _arithmetic(env: SizeEnv, x: Any, y: Any, alpha: Any = 1) -> TensorSpec:
    dtype = result_type((x, y))
    if alpha != 1:
        needed = scalar_dtype(alpha)
        if needed is None or category(needed) > category(dtype):
            raise Invalid("alpha")
    return elementwise(env, dtype, (x, y), dtype)


def _subtracting(env: SizeEnv, x: Any, y: Any, alpha: Any = 1) -> TensorSpec:
    if torch.bool in (getattr(x, "dtype", None) or scalar_dtype(x), getattr(y, "dtype", None) or scalar_dtype(y)):
        raise Invalid("subtraction of bool")
    return _arithmetic(env, x, y, alpha)


def _scaled(e: Any, y: Any, alpha: Any) -> Any:
    """`y` times a Python number, or times an expression for one that is known at run time only."""
    return y if isinstance(alpha, (int, float)) and alpha == 1 else e.mul(y, alpha)


binary(*both("add"), infer=_arithmetic, scalar=lambda e, x, y, alpha=1: e.add(x, _scaled(e, y, alpha)))
binary(
    *both("sub"), *both("subtract"), infer=_subtracting, scalar=lambda e, x, y, alpha=1: e.sub(x, _scaled(e, y, alpha))
)
binary(*both("rsub"), infer=lambda env, x, y, alpha=1: _subtracting(env, y, x, alpha),
       scalar=lambda e, x, y, alpha=1: e.sub(y, _scaled(e, x, alpha)))
binary(*both("mul"), *both("multiply"), scalar=lambda e, x, y: e.mul(x, y), exact_number=1)
float_binary(*both("div"), *both("divide"), *both("true_divide"), scalar=lambda e, x, y: e.truediv(x, y),
             exact_number=1)


def _divide_mode(env: SizeEnv, x: Any, y: Any, *, rounding_mode: str | None = None) -> TensorSpec:
    if rounding_mode is None:
        return _float_promoting(env, x, y)
    if rounding_mode not in ("floor", "trunc"):
        raise Invalid("rounding mode")
    return _promoting(env, x, y)


def _divide_mode_dtype(x: Any, y: Any, *, rounding_mode: str | None = None) -> torch.dtype:
    return _promoted_float(x, y) if rounding_mode is None else _promoted(x, y)


def _divide_mode_scalar(e: Any, x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return e.truediv(x, y)
    if rounding_mode == "floor":
        return e.floordiv(x, y)
    raise NotCovered("division that truncates")


binary(
    "aten.div.Tensor_mode",
    "aten.div.Scalar_mode",
    "aten.divide.Tensor_mode",
    "aten.divide.Scalar_mode",
    infer=_divide_mode,
    compute=_divide_mode_dtype,
    scalar=_divide_mode_scalar,
    exact_number=1,
)
binary("aten.floor_divide.default", "aten.floor_divide.Scalar", scalar=lambda e, x, y: e.floordiv(x, y), exact_number=1)
binary(*both("remainder"), "aten.remainder.Scalar_Tensor", scalar=lambda e, x, y: e.mod(x, y))
binary(*both("fmod"), scalar=lambda e, x, y: e.fmod(x, y))
binary("aten.maximum.default", "aten.max.other", scalar=lambda e, x, y: e.maximum(x, y))
binary("aten.minimum.default", "aten.min.other", scalar=lambda e, x, y: e.minimum(x, y))
binary("aten.fmax.default", scalar=lambda e, x, y: e.where(e.isnan(x), y, e.where(e.isnan(y), x, e.maximum(x, y))))
binary("aten.fmin.default", scalar=lambda e, x, y: e.where(e.isnan(x), y, e.where(e.isnan(y), x, e.minimum(x, y))))
float_binary("aten.atan2.default", "aten.arctan2.default", scalar=lambda e, x, y: e.atan2(x, y))
float_binary(*both("copysign"), scalar=lambda e, x, y: e.copysign(x, y))


def _logaddexp(e: Any, x: Any, y: Any) -> Any:
    same_infinity = e.logical_and(e.isinf(x), e.eq(x, y))
    return e.where(same_infinity, x, e.add(e.maximum(x, y), e.log1p(e.exp(e.neg(e.abs(e.sub(x, y)))))))


def _xlogy(e: Any, x: Any, y: Any) -> Any:
    zero = e.where(e.eq(x, 0.0), 0.0, e.mul(x, e.log(y)))
    return e.where(e.isnan(y), y, zero)


float_binary("aten.logaddexp.default", scalar=_logaddexp)
float_binary("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other", scalar=_xlogy)

# -- Powers -------------------------------------------------------------------------------------------------------


def _power(env: SizeEnv, x: Any, exponent: Any) -> TensorSpec:
    dtype = result_type((x, exponent))
    if is_integral(dtype) and not (type(exponent) is int and exponent >= 0):
        if type(exponent) is not TensorSpec:
            raise Invalid("integer power")
    return elementwise(env, dtype, (x, exponent), dtype)


def _power_of_tensor(env: SizeEnv, x: TensorSpec, exponent: Any) -> TensorSpec:
    """The loop is one over `x` alone."""
    return elementwise(env, _power(env, x, exponent).dtype, (x,), result_type((x, exponent)))


def _power_scalar(e: Any, x: Any, exponent: Any) -> Any:
    """Exponents for which eager multiplies do so here too."""
    if isinstance(exponent, bool) or not isinstance(exponent, (int, float)):
        raise NotCovered("power")
    if exponent == 0.5:
        return e.sqrt(x)
    if exponent == -0.5:
        return e.rsqrt(x)
    if exponent == 1:
        return x
    if exponent == 2:
        return e.mul(x, x)
    if exponent == 3:
        return e.mul(e.mul(x, x), x)
    if exponent == -1:
        return e.reciprocal(x)
    if exponent == -2:
        return e.reciprocal(e.mul(x, x))
    return e.pow(x, exponent)


define(
    "aten.pow.Tensor_Scalar",
    kind="pointwise",
    infer=_power_of_tensor,
    scalar=_power_scalar,
    operands=1,
    compute=lambda x, exponent: (result_type((x, exponent)),),
    small_exponent=True,
)
binary("aten.pow.Tensor_Tensor", infer=_power, scalar=lambda e, x, y: e.pow(x, y))
binary("aten.pow.Scalar", infer=None, scalar=lambda e, x, y: e.pow(x, y))


# -- Comparisons, logic, bits -------------------------------------------------------------------------------------


def _compare(name: str, *aliases: str) -> None:
    names = [n for alias in (name, *aliases) for n in both(alias)]
    binary(*names, infer=_comparing, scalar=lambda e, x, y: getattr(e, name)(x, y), differentiable=False)


_compare("eq")
_compare("ne", "not_equal")
_compare("lt", "less")
_compare("le", "less_equal")
_compare("gt", "greater")
_compare("ge", "greater_equal")


def _truth(e: Any, x: Any) -> Any:
    return e.ne(x, 0)


for _name, _body in (
    ("and", lambda e, x, y: e.logical_and(x, y)),
    ("or", lambda e, x, y: e.logical_or(x, y)),
    ("xor", lambda e, x, y: e.ne(x, y)),
):
    binary(f"aten.logical_{_name}.default", infer=_comparing, differentiable=False,
           scalar=lambda e, x, y, _body=_body: _body(e, _truth(e, x), _truth(e, y)))
unary("logical_not", lambda e, x: e.eq(x, 0), _bool_unary, differentiable=False)


def _bitwise(env: SizeEnv, x: Any, y: Any) -> TensorSpec:
    dtype = result_type((x, y))
    if not is_integral(dtype):
        raise Invalid("bitwise operator on floats")
    return elementwise(env, dtype, (x, y), dtype)


def _shift(env: SizeEnv, x: Any, y: Any) -> TensorSpec:
    if result_type((x, y)) is torch.bool:
        raise Invalid("shift of bool")
    return _bitwise(env, x, y)


for _name in ("and", "or", "xor"):
    binary(*both(f"bitwise_{_name}"), *both(f"__{_name}__"), infer=_bitwise, differentiable=False,
           scalar=lambda e, x, y, _name=_name: getattr(e, f"bitwise_{_name}")(x, y))
for _name in ("left", "right"):
    _full = f"aten.bitwise_{_name}_shift.Tensor"
    binary(_full, f"{_full}_Scalar", *both(f"__{_name[0]}shift__"), infer=_shift, differentiable=False,
           scalar=lambda e, x, y, _name=_name: getattr(e, f"shift_{_name}")(x, y))


def _bitwise_not(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    if not is_integral(x.dtype):
        raise Invalid("bitwise operator on floats")
    return _same(env, x)


unary("bitwise_not", lambda e, x: e.bitwise_not(x), _bitwise_not, differentiable=False)


# -- Unary functions ----------------------------------------------------------------------------------------------

for _name in (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "log10",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "erf",
    "erfc",
    "sigmoid",
    "lgamma",
    "reciprocal",
):
    float_unary(_name, lambda e, x, _name=_name: getattr(e, _name)(x))
for _name, _primitive in (("arcsin", "asin"), ("arccos", "acos"), ("arctan", "atan")):
    float_unary(_name, lambda e, x, _primitive=_primitive: getattr(e, _primitive)(x))


unary("deg2rad", lambda e, x: e.mul(x, math.pi / 180), None, compute=_own_float)
unary("rad2deg", lambda e, x: e.mul(x, 180 / math.pi), None, compute=_own_float)


def _numeric(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    if x.dtype is torch.bool:
        raise Invalid("bool")
    return _same(env, x)


def _absolute(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    if category(x.dtype) == 3:
        raise Invalid("complex")
    return _same(env, x)


unary("neg", lambda e, x: e.neg(x), _numeric)
unary("negative", lambda e, x: e.neg(x), _numeric)
unary("abs", lambda e, x: e.abs(x), _absolute)
unary("absolute", lambda e, x: e.abs(x), _absolute)
unary("square", lambda e, x: e.mul(x, x), _numeric)
for _name in ("floor", "ceil", "trunc", "round", "sign"):
    unary(_name, lambda e, x, _name=_name: getattr(e, _name)(x), _absolute)
unary("fix", lambda e, x: e.trunc(x), _absolute)
unary("sgn", lambda e, x: e.sign(x), _absolute)
unary("frac", lambda e, x: e.sub(x, e.trunc(x)), _absolute)
question("isnan", lambda e, x: e.isnan(x))
question("isinf", lambda e, x: e.isinf(x))
question("isfinite", lambda e, x: e.isfinite(x))
question("isposinf", lambda e, x: e.eq(x, math.inf), compute=_own_float)
question("isneginf", lambda e, x: e.eq(x, -math.inf), compute=_own_float)
question("signbit", lambda e, x: e.signbit(x))


def _nan_to_num_scalar(e: Any, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    if posinf is None or neginf is None:
        raise NotCovered("the largest value of the dtype")
    finite = e.where(e.eq(x, math.inf), posinf, e.where(e.eq(x, -math.inf), neginf, x))
    return e.where(e.isnan(x), nan or 0.0, finite)


def _floats_only(x: TensorSpec, *rest: Any, **options: Any) -> torch.dtype:
    if is_integral(x.dtype):
        raise NotCovered("integers are copied")
    return x.dtype


unary("nan_to_num", _nan_to_num_scalar, None, compute=_floats_only)


# -- Clamp, interpolation, products -------------------------------------------------------------------------------


def _clamp(env: SizeEnv, x: TensorSpec, min: Any = None, max: Any = None) -> TensorSpec:
    operands = tuple(v for v in (x, min, max) if v is not None)
    dtype = result_type(operands)
    if len(operands) == 1 or category(dtype) in (0, 3):
        raise Invalid("clamp")
    # bounds that are numbers are no operands of the loop
    return elementwise(env, dtype, tuple(v for v in operands if type(v) is TensorSpec), dtype)


def _clamp_dtype(x: TensorSpec, min: Any = None, max: Any = None) -> torch.dtype:
    return result_type(tuple(v for v in (x, min, max) if v is not None))


def _clamp_scalar(e: Any, x: Any, min: Any = None, max: Any = None) -> Any:
    if min is not None:
        x = e.maximum(x, min)
    return x if max is None else e.minimum(x, max)


for _overload in ("default", "Tensor"):
    for _name, _operands in (("clamp", 3), ("clip", 3), ("clamp_min", 2)):
        define(f"aten.{_name}.{_overload}", kind="pointwise", infer=_clamp, scalar=_clamp_scalar, operands=_operands,
               compute=_clamp_dtype)


def _clamp_max(env: SizeEnv, x: TensorSpec, max: Any) -> TensorSpec:
    return _clamp(env, x, None, max)


binary("aten.clamp_max.default", "aten.clamp_max.Tensor", infer=_clamp_max, scalar=lambda e, x, max: e.minimum(x, max))


def _lerp(env: SizeEnv, x: TensorSpec, end: TensorSpec, weight: Any) -> TensorSpec:
    if end.dtype is not x.dtype or type(weight) is TensorSpec and weight.dtype is not x.dtype or is_integral(x.dtype):
        raise Invalid("lerp of several dtypes")
    return elementwise(env, x.dtype, (x, end, weight) if type(weight) is TensorSpec else (x, end))


def _lerp_scalar(e: Any, x: Any, end: Any, weight: Any) -> Any:
    difference = e.sub(end, x)
    near = e.add(x, e.mul(weight, difference))
    far = e.sub(end, e.mul(difference, e.sub(1.0, weight)))
    return e.where(e.lt(e.abs(weight), 0.5), near, far)


for _overload, _facets in (("Scalar", {"exact_number": 2}), ("Tensor", {})):
    define(f"aten.lerp.{_overload}", kind="pointwise", infer=_lerp, scalar=_lerp_scalar, operands=3, compute=_own,
           **_facets)


def _ternary(env: SizeEnv, x: TensorSpec, a: TensorSpec, b: TensorSpec, *, value: Any = 1) -> TensorSpec:
    dtype = result_type((x, a, b))
    if category(scalar_dtype(value) or torch.complex64) > category(dtype) or dtype is torch.bool:
        raise NotCovered("value")
    return elementwise(env, dtype, (x, a, b), dtype)


def _ternary_division(env: SizeEnv, x: TensorSpec, a: TensorSpec, b: TensorSpec, *, value: Any = 1) -> TensorSpec:
    if is_integral(a.dtype) and is_integral(b.dtype):
        raise Invalid("integer division with addcdiv")
    return _ternary(env, x, a, b, value=value)


def _ternary_dtype(x: TensorSpec, a: TensorSpec, b: TensorSpec, *, value: Any = 1) -> torch.dtype:
    return result_type((x, a, b))


for _name, _rule, _operation in (("addcmul", _ternary, "mul"), ("addcdiv", _ternary_division, "truediv")):
    define(f"aten.{_name}.default", kind="pointwise", infer=_rule, operands=3, compute=_ternary_dtype,
           scalar=lambda e, x, a, b, value=1, _operation=_operation: e.add(
               x, getattr(e, _operation)(_scaled(e, a, value), b)))


# -- Selection ----------------------------------------------------------------------------------------------------


def _where(env: SizeEnv, condition: TensorSpec, x: Any, y: Any) -> TensorSpec:
    if condition.dtype is not torch.bool:
        raise Invalid("condition")
    dtype = result_type((x, y))
    operands = [condition]
    for v in (x, y):
        if type(v) is TensorSpec and v.dtype is not dtype:
            v = TensorSpec(dtype, v.shape, preserved_stride(env, v.shape, v.stride), v.device)
        operands.append(v)
    return elementwise(env, dtype, tuple(operands))


define(
    "aten.where.self",
    "aten.where.ScalarSelf",
    "aten.where.ScalarOther",
    "aten.where.Scalar",
    kind="pointwise",
    infer=_where,
    scalar=lambda e, c, x, y: e.where(c, x, y),
    operands=3,
    compute=lambda c, x, y: (torch.bool, result_type((x, y)), result_type((x, y))),
)


def _masked_fill(env: SizeEnv, x: TensorSpec, mask: TensorSpec, value: Any) -> TensorSpec:
    kind = value.dtype if type(value) is TensorSpec else scalar_dtype(value)
    if (
        mask.dtype is not torch.bool
        or kind is None
        or category(kind) > category(x.dtype)
        or type(value) is TensorSpec
        and value.shape
    ):
        raise Invalid("masked_fill")
    shape = broadcast_shapes(env, (x.shape, mask.shape))
    return TensorSpec(x.dtype, shape, contiguous_stride(shape), x.device)


define(
    "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor",
    kind="pointwise",
    infer=_masked_fill,
    scalar=lambda e, x, mask, value: e.where(mask, value, x),
    operands=3,
    compute=lambda x, mask, value: (x.dtype, torch.bool, x.dtype),
)
