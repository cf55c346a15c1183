"""Activation functions: pointwise bodies in eager's formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..op import NotCovered
from ..sizes import SizeEnv
from ..spec import TensorSpec, contiguous_stride
from .pointwise import elementwise, like
from .promotion import category, compute_dtype
from .table import Invalid, define


def _activation(env: SizeEnv, x: TensorSpec, *rest: Any, **options: Any) -> TensorSpec:
    if category(x.dtype) != 2:
        raise Invalid("activations are for floats")
    return elementwise(env, x.dtype, (x,))


def _activation_like(env: SizeEnv, x: TensorSpec, *rest: Any, **options: Any) -> TensorSpec:
    _activation(env, x)
    return like(env, x)


def _any_real_like(env: SizeEnv, x: TensorSpec, *rest: Any, **options: Any) -> TensorSpec:
    _any_real(env, x)
    return like(env, x)


def _log_sigmoid_spec(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    found = _activation(env, x)
    return found.with_(stride=contiguous_stride(x.shape)) if x.device.type == "cpu" else like(env, x)


def _any_real(env: SizeEnv, x: TensorSpec, *rest: Any, **options: Any) -> TensorSpec:
    if category(x.dtype) not in (1, 2):
        raise NotCovered("dtype")
    return elementwise(env, x.dtype, (x,))


def activation(name: str, scalar: Callable[..., Any], infer: Callable[..., Any] = _activation) -> None:
    define(
        f"aten.{name}.default",
        kind="pointwise",
        infer=infer,
        scalar=scalar,
        operands=1,
        compute=lambda x, *rest, **options: (compute_dtype(x.dtype),),
    )


def _gelu(e: Any, x: Any, *, approximate: str = "none") -> Any:
    if approximate == "none":
        return e.mul(e.mul(x, 0.5), e.add(1.0, e.erf(e.mul(x, math.sqrt(0.5)))))
    if approximate != "tanh":
        raise NotCovered("approximate")
    cube = e.mul(e.mul(x, x), x)
    inner = e.mul(math.sqrt(2 / math.pi), e.add(x, e.mul(0.044715, cube)))
    return e.mul(e.mul(0.5, x), e.add(1.0, e.tanh(inner)))


def _clipped(e: Any, x: Any, low: float, high: float) -> Any:
    return e.minimum(e.maximum(x, low), high)


def _softplus(e: Any, x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x if beta == 1 else e.mul(x, beta)
    soft = e.log1p(e.exp(scaled))
    if beta != 1:
        soft = e.truediv(soft, beta)
    return e.where(e.gt(scaled, threshold), x, soft)


def _elu(e: Any, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    scaled = x if input_scale == 1 else e.mul(x, input_scale)
    negative = e.mul(e.expm1(scaled), alpha * scale)
    positive = x if scale == 1 else e.mul(x, scale)
    return e.where(e.le(x, 0.0), negative, positive)


def _celu(e: Any, x: Any, alpha: float = 1.0) -> Any:
    if alpha == 0:
        raise NotCovered("an alpha of 0, for which torch raises")
    return _elu(e, x, alpha, 1.0, 1.0 / alpha)


def _log_sigmoid(e: Any, x: Any) -> Any:
    return e.sub(e.minimum(0.0, x), e.log1p(e.exp(e.neg(e.abs(x)))))


def _relu(e: Any, x: Any) -> Any:
    return e.relu(x)


activation("relu", _relu, _any_real)
activation("relu6", lambda e, x: _clipped(e, x, 0, 6), _any_real_like)
activation("hardtanh", lambda e, x, min_val=-1, max_val=1: _clipped(e, x, min_val, max_val), _activation_like)
activation("gelu", _gelu)
activation("silu", lambda e, x: e.truediv(x, e.add(1.0, e.exp(e.neg(x)))))
activation("mish", lambda e, x: e.mul(x, e.tanh(e.log1p(e.exp(x)))))
activation("softplus", _softplus)
activation("hardswish", lambda e, x: e.truediv(e.mul(x, _clipped(e, e.add(x, 3.0), 0.0, 6.0)), 6.0))
activation("hardsigmoid", lambda e, x: e.truediv(_clipped(e, e.add(x, 3.0), 0.0, 6.0), 6.0))
activation("elu", _elu)
activation("celu", _celu)
activation("selu", lambda e, x: _elu(e, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946))
activation("leaky_relu", lambda e, x, negative_slope=0.01: e.where(e.gt(x, 0.0), x, e.mul(x, negative_slope)))
activation("log_sigmoid", _log_sigmoid, _log_sigmoid_spec)
activation("threshold", lambda e, x, threshold, value: e.where(e.le(x, threshold), value, x), _activation)
activation(
    "softshrink",
    lambda e, x, lambd=0.5: e.where(
        e.gt(x, lambd),
        e.sub(x, lambd),
        e.where(e.lt(x, -lambd), e.add(x, lambd), e.mul(x, 0.0)),
    ),
)
activation(
    "hardshrink",
    lambda e, x, lambd=0.5: e.where(e.logical_and(e.ge(x, -lambd), e.le(x, lambd)), 0.0, x),
)
