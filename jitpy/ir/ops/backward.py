"""Gradients that torch has ops of their own for: of activations, losses, softmax, dropout and views."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..op import NotCovered
from ..sizes import SizeEnv
from ..spec import TensorSpec, contiguous_stride, prod
from .layout import broadcast_shapes, normalize_dim
from .nn import nll_of
from .parts import diagonal, select, slice_part
from .pointwise import elementwise
from .promotion import category, compute_dtype
from .reductions import cast
from .table import Invalid, define

# -- Activations --------------------------------------------------------------------------------------------------


def _pair(env: SizeEnv, grad: TensorSpec, x: TensorSpec, *rest: Any, **options: Any) -> TensorSpec:
    if category(x.dtype) != 2 or grad.dtype is not x.dtype:
        raise Invalid("gradients are floats")
    return elementwise(env, x.dtype, (grad, x))


def gradient(name: str, scalar: Callable[..., Any], infer: Callable[..., Any] = _pair) -> None:
    """Define `aten.<name>_backward(grad, x or result, *parameters)`, a product of `grad` and a derivative."""
    define(
        f"aten.{name}_backward.default",
        kind="pointwise",
        infer=infer,
        scalar=scalar,
        operands=2,
        compute=lambda grad, x, *rest, **options: (compute_dtype(x.dtype),) * 2,
    )


def _gelu(e: Any, grad: Any, x: Any, *, approximate: str = "none") -> Any:
    if approximate == "none":
        below = e.mul(0.5, e.add(1.0, e.erf(e.mul(x, math.sqrt(0.5)))))
        density = e.mul(1 / math.sqrt(2 * math.pi), e.exp(e.mul(e.mul(x, x), -0.5)))
        return e.mul(grad, e.add(below, e.mul(x, density)))
    if approximate != "tanh":
        raise NotCovered("approximate")
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    square = e.mul(x, x)
    tanh = e.tanh(e.mul(scale, e.add(x, e.mul(cubic, e.mul(square, x)))))
    left = e.mul(0.5, x)
    slope = e.mul(scale, e.add(1.0, e.mul(3 * cubic, square)))
    right = e.mul(e.mul(left, e.sub(1.0, e.mul(tanh, tanh))), slope)
    return e.mul(grad, e.add(e.mul(0.5, e.add(1.0, tanh)), right))


def _silu(e: Any, grad: Any, x: Any) -> Any:
    sigmoid = e.sigmoid(x)
    return e.mul(e.mul(grad, sigmoid), e.add(1.0, e.mul(x, e.sub(1.0, sigmoid))))


def _mish(e: Any, grad: Any, x: Any) -> Any:
    sigmoid = e.sigmoid(x)
    tanh = e.tanh(e.log1p(e.exp(x)))
    return e.mul(grad, e.add(tanh, e.mul(e.mul(x, sigmoid), e.sub(1.0, e.mul(tanh, tanh)))))


def _softplus(e: Any, grad: Any, x: Any, beta: float, threshold: float) -> Any:
    scaled = e.mul(x, beta)
    power = e.exp(scaled)
    return e.where(e.gt(scaled, threshold), grad, e.truediv(e.mul(grad, power), e.add(power, 1.0)))


def _inside(e: Any, grad: Any, x: Any, low: float, high: float) -> Any:
    return e.where(e.logical_and(e.gt(x, low), e.lt(x, high)), grad, 0.0)


def _shrunk(e: Any, grad: Any, x: Any, lambd: float) -> Any:
    return e.where(e.logical_or(e.lt(x, -lambd), e.gt(x, lambd)), grad, 0.0)


def _hardswish(e: Any, grad: Any, x: Any) -> Any:
    middle = e.mul(grad, e.add(e.truediv(x, 3.0), 0.5))
    return e.where(e.le(x, -3.0), 0.0, e.where(e.ge(x, 3.0), grad, middle))


gradient("threshold", lambda e, grad, x, threshold: e.where(e.le(x, threshold), 0.0, grad),
         infer=lambda env, grad, x, *rest: _pair(env, x, grad))
gradient("gelu", _gelu)
gradient("silu", _silu)
gradient("mish", _mish)
gradient("tanh", lambda e, grad, y: e.mul(grad, e.sub(1.0, e.mul(y, y))))
gradient("sigmoid", lambda e, grad, y: e.mul(e.mul(grad, e.sub(1.0, y)), y))
gradient("softplus", _softplus)
gradient("hardtanh", _inside)
gradient("hardswish", _hardswish)
#: Eager multiplies float64 gradients by a sixth in float32, too.
_SIXTH = 0.1666666716337204
gradient(
    "hardsigmoid",
    lambda e, grad, x: _inside(e, e.mul(grad, _SIXTH), x, -3.0, 3.0),
)
gradient("hardshrink", _shrunk)
gradient("softshrink", _shrunk)
gradient(
    "leaky_relu",
    lambda e, grad, x, slope, is_result: e.where(e.gt(x, 0.0), grad, e.mul(grad, slope)),
)


def _elu(b: Any, grad: Any, alpha: float, scale: float, input_scale: float, is_result: bool, x: Any) -> Any:
    """Of a result or of an input, as the flag says."""
    dtype = x.spec.dtype
    if not all(isinstance(number, (int, float)) for number in (alpha, scale, input_scale)):
        raise NotCovered("numbers known only at run time")
    grad, x = (cast(b, v, compute_dtype(dtype)) for v in (grad, x))
    if is_result:
        slope = b.call("aten.add.Tensor", x, alpha * scale)
    else:
        slope = b.call("aten.exp.default", b.call("aten.mul.Tensor", x, input_scale))
        slope = b.call("aten.mul.Tensor", slope, alpha * scale)
    negative = b.call("aten.mul.Tensor", b.call("aten.mul.Tensor", grad, input_scale), slope)
    positive = b.call("aten.mul.Tensor", grad, scale)
    return cast(b, b.call("aten.where.self", b.call("aten.le.Scalar", x, 0.0), negative, positive), dtype)


define("aten.elu_backward.default", decompose=_elu)


def _log_sigmoid(b: Any, grad: Any, x: Any, buffer: Any) -> Any:
    """`buffer` holds exp(-|x|) for the kernels that want it; it is as cheap to compute."""
    dtype = x.spec.dtype
    grad, x = (cast(b, v, compute_dtype(dtype)) for v in (grad, x))
    slope = b.call("aten.sigmoid.default", b.call("aten.neg.default", x))
    return cast(b, b.call("aten.mul.Tensor", grad, slope), dtype)


define("aten.log_sigmoid_backward.default", decompose=_log_sigmoid)


def _glu(b: Any, grad: Any, x: Any, dim: int) -> Any:
    axis = normalize_dim(dim, x.spec.ndim)
    half = x.spec.shape[axis] // 2
    dtype = x.spec.dtype
    compute = compute_dtype(dtype)
    grad = cast(b, grad, compute)
    first = cast(b, b.call("aten.slice.Tensor", x, axis, 0, half), compute)
    gate = b.call("aten.sigmoid.default", cast(b, b.call("aten.slice.Tensor", x, axis, half, 2 * half), compute))
    of_first = b.call("aten.mul.Tensor", grad, gate)
    rest = b.call("aten.mul.Tensor", b.call("aten.sub.Tensor", b.call("aten.ones_like.default", gate), gate), first)
    return cast(b, b.call("aten.cat.default", [of_first, b.call("aten.mul.Tensor", of_first, rest)], axis), dtype)


define("aten.glu_backward.default", decompose=_glu)


# -- Dropout ------------------------------------------------------------------------------------------------------


def _dropout(b: Any, grad: Any, mask: Any, scale: float) -> Any:
    return b.call("aten.mul.Tensor", b.call("aten.mul.Tensor", grad, cast(b, mask, grad.spec.dtype)), scale)


define("aten.native_dropout_backward.default", decompose=_dropout)


# -- Softmax ------------------------------------------------------------------------------------------------------


def _softmax_spec(env: SizeEnv, grad: TensorSpec, y: TensorSpec, dim: int, dtype: torch.dtype) -> TensorSpec:
    if dtype is not grad.dtype or y.dtype is not dtype or len(grad.shape) != len(y.shape):
        raise NotCovered("dtypes")
    return TensorSpec(dtype, grad.shape, contiguous_stride(grad.shape), grad.device)


def _softmax_operands(b: Any, grad: Any, y: Any, dim: int) -> tuple[Any, Any, list[int]]:
    if not y.spec.shape:
        raise NotCovered("a 0-dim tensor")
    compute = compute_dtype(y.spec.dtype)
    return cast(b, grad, compute), cast(b, y, compute), [normalize_dim(dim, y.spec.ndim)]


def _softmax(b: Any, grad: Any, y: Any, dim: int, dtype: torch.dtype) -> Any:
    grad, y, axis = _softmax_operands(b, grad, y, dim)
    total = b.call("aten.sum.dim_IntList", b.call("aten.mul.Tensor", grad, y), axis, True)
    return cast(b, b.call("aten.mul.Tensor", b.call("aten.sub.Tensor", grad, total), y), dtype)


def _log_softmax(b: Any, grad: Any, y: Any, dim: int, dtype: torch.dtype) -> Any:
    grad, y, axis = _softmax_operands(b, grad, y, dim)
    total = b.call("aten.sum.dim_IntList", grad, axis, True)
    share = b.call("aten.mul.Tensor", b.call("aten.exp.default", y), total)
    return cast(b, b.call("aten.sub.Tensor", grad, share), dtype)


define("aten._softmax_backward_data.default", infer=_softmax_spec, decompose=_softmax)
define("aten._log_softmax_backward_data.default", infer=_softmax_spec, decompose=_log_softmax)


# -- Losses -------------------------------------------------------------------------------------------------------


def _loss_gradient(slope: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of an elementwise loss: `slope(b, x, target, *parameters)` times `grad`, over the number of
    elements for a mean."""

    def decompose(b: Any, grad: Any, x: Any, target: Any, reduction: int, *rest: Any) -> Any:
        dtype = x.spec.dtype
        if target.spec.dtype is not dtype or category(dtype) != 2:
            raise NotCovered("dtypes")
        grad, x, target = (cast(b, v, compute_dtype(dtype)) for v in (grad, x, target))
        value = b.call("aten.mul.Tensor", slope(b, x, target, *rest), grad)
        if reduction == 1:
            value = b.call("aten.div.Tensor", value, prod(value.spec.shape))
        return cast(b, value, dtype)

    return decompose


def _mse_slope(b: Any, x: Any, target: Any) -> Any:
    return b.call("aten.mul.Tensor", b.call("aten.sub.Tensor", x, target), 2.0)


# Elements that are no number count as near, as in eager: their gradients are no numbers either.


def _smooth_l1_slope(b: Any, x: Any, target: Any, beta: float) -> Any:
    distance = b.call("aten.sub.Tensor", x, target)
    sign = b.call("aten.sign.default", distance)
    if beta == 0:
        return sign
    far = b.call("aten.ge.Scalar", b.call("aten.abs.default", distance), beta)
    return b.call("aten.where.self", far, sign, b.call("aten.div.Tensor", distance, beta))


def _huber_slope(b: Any, x: Any, target: Any, delta: float) -> Any:
    distance = b.call("aten.sub.Tensor", x, target)
    far = b.call("aten.gt.Scalar", b.call("aten.abs.default", distance), delta)
    bounded = b.call("aten.mul.Tensor", b.call("aten.sign.default", distance), delta)
    return b.call("aten.where.self", far, bounded, distance)


define("aten.mse_loss_backward.default", decompose=_loss_gradient(_mse_slope))
define("aten.smooth_l1_loss_backward.default", decompose=_loss_gradient(_smooth_l1_slope))
define("aten.huber_loss_backward.default", decompose=_loss_gradient(_huber_slope))


def _nll_forward(
    b: Any, x: Any, target: Any, weight: Any, reduction: int, ignore_index: int, axis: int
) -> tuple[Any, Any]:
    dtype = x.spec.dtype
    logs = cast(b, x, compute_dtype(dtype))
    if reduction == 0 and x.spec.ndim == 1:
        reduction = 2  # eager sums the one sample, and tells its weight
    value, total = nll_of(b, logs, target, weight, reduction, ignore_index, axis)
    if total is None:
        total = b.call("aten.zeros.default", [], dtype=dtype, device=x.spec.device)
    return cast(b, value, dtype), cast(b, total, dtype)


def _nll_backward(
    b: Any,
    grad: Any,
    x: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total: Any,
    axis: int,
) -> Any:
    """A comparison with the class at each place: whoever reads the gradient does it, no one-hot tensor is made."""
    dtype = x.spec.dtype
    compute = compute_dtype(dtype)
    share = b.call("aten.neg.default", cast(b, grad, compute))
    if reduction == 1:
        share = b.call("aten.div.Tensor", share, cast(b, total, compute))
    if weight is not None:
        safe = b.call("aten.where.ScalarOther", b.call("aten.ne.Scalar", target, ignore_index), target, 0)
        share = b.call("aten.mul.Tensor", share, b.call("aten.index.Tensor", cast(b, weight, compute), [safe]))
    counted = b.call("aten.ne.Scalar", target, ignore_index)
    share = b.call("aten.where.ScalarOther", counted, share, 0.0)
    classes = b.call("aten.arange.default", x.spec.shape[axis], device=x.spec.device)
    if x.spec.ndim - axis > 1:
        classes = b.call("aten.reshape.default", classes, [-1] + [1] * (x.spec.ndim - axis - 1))
    chosen = b.call("aten.eq.Tensor", classes, b.call("aten.unsqueeze.default", target, axis))
    if x.spec.ndim > 1:
        share = b.call("aten.unsqueeze.default", share, axis)
    return cast(b, b.call("aten.where.ScalarOther", chosen, share, 0.0), dtype)


def _classes_last(x: Any) -> int:
    return x.spec.ndim - 1


for _name, _axis in (("nll_loss", _classes_last), ("nll_loss2d", lambda x: 1)):
    define(
        f"aten.{_name}_forward.default",
        decompose=lambda b, x, *rest, _axis=_axis: _nll_forward(b, x, *rest, _axis(x)),  # type: ignore[call-arg]
    )
    define(
        f"aten.{_name}_backward.default",
        decompose=lambda b, grad, x, *rest, _axis=_axis: _nll_backward(b, grad, x, *rest, _axis(x)),  # type: ignore[call-arg]
    )


# -- Parts of a tensor --------------------------------------------------------------------------------------------


def _placed(part: Callable[..., TensorSpec]) -> Callable[..., TensorSpec]:
    """The shape rule of an op that puts a gradient where the view op of the rule `part` took it from. The gradient may
    be broadcast to that place."""

    def infer(env: SizeEnv, grad: TensorSpec, shape: Sequence[Any], *place: Any) -> TensorSpec:
        whole = TensorSpec(grad.dtype, tuple(shape), contiguous_stride(tuple(shape)), grad.device)
        taken = part(env, whole, *place).shape
        if grad.shape != taken and broadcast_shapes(env, (taken, grad.shape)) != taken:
            raise Invalid("the gradient does not fit its place")
        return whole

    return infer


define("aten.slice_backward.default", infer=_placed(slice_part))
define("aten.select_backward.default", infer=_placed(select))
define("aten.diagonal_backward.default", infer=_placed(diagonal))
