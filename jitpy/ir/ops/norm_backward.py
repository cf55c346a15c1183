"""Normalisation while training: statistics of the batch, and the gradients.

With the normalised input `h = (x - mean) * scale` and the gradient `g` of `h`, taken over the n elements that share
statistics, the gradient of `x` is `scale * (g - sum(g) / n - h * sum(g * h) / n)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..op import NotCovered
from ..sizes import SizeEnv, floordiv
from ..spec import TensorSpec, contiguous_spec, contiguous_stride, prod
from .indexing import row_major_only
from .layout import channels_last_stride, is_channels_last_strides, is_contiguous
from .nn import batch_norm_parts, group_norm_parts, normal_by, of_channels, per_channel, scale_of
from .promotion import compute_dtype, is_float
from .reductions import cast, mean_of, variance_of
from .table import Invalid, define


def _times(b: Any, x: Any, y: Any) -> Any:
    return b.call("aten.mul.Tensor", x, y)


def _through(b: Any, g: Any, h: Any, scale: Any, axes: list[int]) -> Any:
    """The gradient of the input, from that of the normalised input."""
    inner = b.call("aten.sub.Tensor", g, mean_of(b, g, axes, True))
    inner = b.call("aten.sub.Tensor", inner, _times(b, h, mean_of(b, _times(b, g, h), axes, True)))
    return _times(b, scale, inner)


def _total(b: Any, value: Any, axes: Sequence[int], like: Any, shape: Sequence[Any]) -> Any:
    """The sum over `axes`, in the shape and dtype of a parameter."""
    if axes:
        value = b.call("aten.sum.dim_IntList", value, list(axes))
    return cast(b, b.call("aten.reshape.default", value, list(shape)), like.spec.dtype)


def _layer_norm(
    b: Any, grad: Any, x: Any, shape: Sequence[Any], mean: Any, scale: Any, weight: Any, bias: Any, mask: Sequence[bool]
) -> tuple[Any, Any, Any]:
    dtype, compute = x.spec.dtype, compute_dtype(x.spec.dtype)
    lead = list(range(x.spec.ndim - len(shape)))
    axes = list(range(len(lead), x.spec.ndim))
    grad, x, mean, scale = (cast(b, v, compute) for v in (grad, x, mean, scale))
    h = _times(b, b.call("aten.sub.Tensor", x, mean), scale)
    g = grad if weight is None else _times(b, grad, cast(b, weight, compute))
    return (
        cast(b, _through(b, g, h, scale, axes), dtype) if mask[0] else None,
        _total(b, _times(b, grad, h), lead, weight, shape) if mask[1] and weight is not None else None,
        _total(b, grad, lead, bias, shape) if mask[2] and bias is not None else None,
    )


def _layer_norm_specs(env: SizeEnv, grad: TensorSpec, x: TensorSpec, shape: Sequence[Any], mean: TensorSpec,
                      scale: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None,
                      mask: Sequence[bool]) -> tuple[TensorSpec | None, ...]:
    """Row-major operands have row-major gradients. (What torch derives this from imports much.)"""
    operands = [x, *((weight,) if mask[1] and weight else ()), *((bias,) if mask[2] and bias else ())]
    if not all(is_contiguous(one.shape, one.stride) and is_float(one.dtype) for one in (grad, *operands)) or \
            grad.shape != x.shape or any(one.shape != tuple(shape) for one in operands[1:]) or 0 in x.shape:
        raise NotCovered("other gradients")
    return tuple(contiguous_spec(one.dtype, one.shape, one.device) if wanted and one is not None else None
                 for one, wanted in zip((x, weight, bias), mask, strict=True))


define("aten.native_layer_norm_backward.default", infer=_layer_norm_specs, decompose=_layer_norm)


def _rms_norm(
    b: Any, grad: Any, x: Any, shape: Sequence[Any], scale: Any, weight: Any, mask: Sequence[bool]
) -> tuple[Any, Any]:
    dtype, compute = x.spec.dtype, compute_dtype(x.spec.dtype)
    lead = list(range(x.spec.ndim - len(shape)))
    axes = list(range(len(lead), x.spec.ndim))
    grad, x, scale = (cast(b, v, compute) for v in (grad, x, scale))
    h = _times(b, x, scale)
    g = grad if weight is None else _times(b, grad, cast(b, weight, compute))
    share = _times(b, h, mean_of(b, _times(b, g, h), axes, True))
    return (
        cast(b, _times(b, scale, b.call("aten.sub.Tensor", g, share)), dtype) if mask[0] else None,
        _total(b, _times(b, grad, h), lead, weight, shape) if mask[1] and weight is not None else None,
    )


define("aten._fused_rms_norm_backward.default", decompose=_rms_norm)


# -- Groups of channels -------------------------------------------------------------------------------------------


def _group_norm_channels_last(
    env: SizeEnv, x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None, n: Any, channels: Any, rest: Any,
    groups: int, eps: float
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """The CPU's kernel keeps channels last, which the meta kernel does not know."""
    if x.device.type != "cpu" or not is_channels_last_strides(env, x.shape, x.stride):
        raise NotCovered("the meta kernel knows")
    parameter = weight if weight is not None else bias
    statistics = contiguous_spec(x.dtype if parameter is None else parameter.dtype, (n, groups), x.device)
    return TensorSpec(x.dtype, x.shape, channels_last_stride(x.shape), x.device), statistics, statistics


def _group_norm_forward(
    b: Any, x: Any, weight: Any, bias: Any, n: Any, channels: Any, rest: Any, groups: int, eps: float
) -> tuple[Any, Any, Any]:
    value, mean, scale = group_norm_parts(b, x, weight, bias, n, channels, rest, groups, eps)
    parameter = weight if weight is not None else bias
    statistics = x.spec.dtype if parameter is None else parameter.spec.dtype
    flat = [b.call("aten.reshape.default", cast(b, v, statistics), [n, groups]) for v in (mean, scale)]
    return value, flat[0], flat[1]


def _group_norm(
    b: Any,
    grad: Any,
    x: Any,
    mean: Any,
    scale: Any,
    weight: Any,
    n: Any,
    channels: Any,
    rest: Any,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    shape, dtype = x.spec.shape, x.spec.dtype
    compute = compute_dtype(dtype)
    split = [n, groups, floordiv(channels, groups), rest]
    grad, x = (b.call("aten.reshape.default", cast(b, v, compute), split) for v in (grad, x))
    mean, scale = (b.call("aten.reshape.default", cast(b, v, compute), [n, groups, 1, 1]) for v in (mean, scale))
    h = _times(b, b.call("aten.sub.Tensor", x, mean), scale)
    g = grad
    if weight is not None:
        g = _times(b, grad, b.call("aten.reshape.default", cast(b, weight, compute), [groups, split[2], 1]))
    result = None
    if mask[0]:
        result = cast(b, b.call("aten.reshape.default", _through(b, g, h, scale, [2, 3]), list(shape)), dtype)
    like = x if weight is None else weight
    return (
        result,
        _total(b, _times(b, grad, h), [0, 3], like, [channels]) if mask[1] and weight is not None else None,
        _total(b, grad, [0, 3], like, [channels]) if mask[2] and weight is not None else None,
    )


define("aten.native_group_norm.default", infer=_group_norm_channels_last, decompose=_group_norm_forward)
define("aten.native_group_norm_backward.default", decompose=_group_norm)


# -- Batches ------------------------------------------------------------------------------------------------------


def _others(x: Any) -> list[int]:
    """Every axis but that of the channels."""
    return [0, *range(2, x.spec.ndim)]


def _of_channels(b: Any, value: Any, compute: torch.dtype, ndim: int) -> Any:
    return per_channel(b, cast(b, value, compute), ndim)


#: Elements of a strip, of whose statistics those of a channel are made, and how many strips there are at most.
_STRIP, _STRIPS = 256, 1 << 17


def _batch_statistics(b: Any, x: Any, eps: float) -> tuple[Any, Any, Any]:
    """Mean, variance and scale of each channel, [1, C, 1, ...], of a node in its compute dtype."""
    if channels_first_in_memory(x.spec):
        mean, variance = _statistics_of_strips(b, x)
    else:
        variance, mean = variance_of(b, x, _others(x), 0, True)
    return mean, variance, scale_of(b, variance, eps)


def channels_first_in_memory(spec: TensorSpec) -> bool:
    """Whether neighbours in memory belong to different channels of images of known sizes."""
    return spec.is_static and spec.ndim == 4 and spec.shape[1] > 1 and not spec.is_contiguous() and (
        spec.stride[1] == 1)


def _statistics_of_strips(b: Any, x: Any) -> tuple[Any, Any]:
    """Mean and variance of each channel from those of some rows of each image (Chan, Golub, LeVeque): channels that lie
    side by side in memory leave too few rows to share among threads, strips are many. All is read once."""
    n, channels, height, width = x.spec.shape
    parts = max(k for k in range(1, height + 1)
                if height % k == 0 and (k == 1 or height // k * width >= _STRIP and n * channels * k <= _STRIPS))
    strips = b.call("aten.reshape.default", x, [n, channels, parts, height // parts, width])
    strips = b.call("aten.permute.default", strips, [0, 2, 1, 3, 4])
    variances, means = variance_of(b, strips, [3, 4], 0, True)
    mean = mean_of(b, means, [0, 1], True)
    apart = b.call("aten.sub.Tensor", means, mean)
    variance = mean_of(b, b.call("aten.add.Tensor", variances, _times(b, apart, apart)), [0, 1], True)
    shape = [1, channels, 1, 1]
    return b.call("aten.reshape.default", mean, shape), b.call("aten.reshape.default", variance, shape)


def _batch_norm_by_batch(b: Any, x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any]:
    """The result, and the statistics [C] in the dtype that kernels keep them in: mean, scale, variance."""
    dtype = x.spec.dtype
    if x.spec.ndim < 2 or any(s == 0 for s in x.spec.shape):
        raise NotCovered("nothing to normalise")
    x = cast(b, x, compute_dtype(dtype))
    mean, variance, scale = _batch_statistics(b, x, eps)
    result = normal_by(b, x, mean, scale, weight, bias, dtype)
    flat = [b.call("aten.reshape.default", v, [x.spec.shape[1]]) for v in (mean, scale, variance)]
    return result, flat[0], flat[1], flat[2]


def _statistics_dtype(x: Any, *parameters: Any) -> torch.dtype:
    return next((p.spec.dtype for p in parameters if p is not None), x.spec.dtype)


def _batch_norm_functional(
    b: Any,
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """The result, mean and scale of the batch, and the new running statistics."""
    if not training:
        raise NotCovered("batch_norm that updates nothing")
    kept = _statistics_dtype(x, weight, bias, running_mean)
    result, mean, scale, variance = _batch_norm_by_batch(b, x, weight, bias, eps)
    count = prod(tuple(x.spec.shape[a] for a in _others(x)))
    if type(count) is int and count < 2:
        raise NotCovered("the variance of one element")
    variance = b.call("aten.mul.Tensor", variance, count)
    variance = b.call("aten.div.Tensor", variance, count - 1)

    def moved(before: Any, now: Any) -> Any:
        compute = compute_dtype(before.spec.dtype)
        old = _times(b, cast(b, before, compute), 1 - momentum)
        return cast(b, b.call("aten.add.Tensor", _times(b, cast(b, now, compute), momentum), old), before.spec.dtype)

    return (
        result,
        cast(b, mean, kept),
        cast(b, scale, kept),
        moved(running_mean, mean),
        moved(running_var, variance),
    )


def _batch_norm_no_statistics(
    b: Any, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, Any, Any]:
    kept = _statistics_dtype(x, weight, bias)
    result, mean, scale, _ = _batch_norm_by_batch(b, x, weight, bias, eps)
    return result, cast(b, mean, kept), cast(b, scale, kept)


def _native_specs(env: SizeEnv, x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None,
                  running_mean: TensorSpec | None, running_var: TensorSpec | None, training: bool,
                  *rest: Any) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """The result and the statistics of the batch (empty where the running ones are used)."""
    last = x.device.type == "cpu" and is_channels_last_strides(env, x.shape, x.stride)
    if last and x.stride != channels_last_stride(x.shape):
        raise NotCovered("native_batch_norm of channels-last memory with gaps")
    if len(x.shape) < 2 or x.dtype not in (torch.float32, torch.float64):
        raise NotCovered("native_batch_norm")
    if not last:
        row_major_only(env, (x,))
        if not is_contiguous(x.shape, x.stride):
            raise NotCovered("native_batch_norm")
    channels = x.shape[1]
    if not training and (running_mean is None or running_var is None):
        raise Invalid("no running statistics")
    for parameter in (weight, bias, running_mean, running_var):
        if parameter is not None and (parameter.dtype is not x.dtype or not of_channels(env, parameter, channels)):
            raise NotCovered("parameter")
    if training and any(type(size) is int and size == 0 for size in x.shape):
        raise Invalid("statistics of nothing")
    saved = contiguous_spec(x.dtype, (channels if training else 0,), x.device)
    stride = x.stride if last else contiguous_stride(x.shape)
    return TensorSpec(x.dtype, x.shape, stride, x.device), saved, saved


def _native_batch_norm(b: Any, x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any,
                       training: bool, momentum: float, eps: float) -> tuple[Any, Any, Any]:
    """By the running statistics. Those of the batch are empty then; for 16-bit tensors on GPUs, whose specs are
    torch's, they are the running ones. Nothing reads them. Instance norms have none: these go by the batch's."""
    if training and running_mean is None and running_var is None:
        result, mean, scale, _ = _batch_norm_by_batch(b, x, weight, bias, eps)
        kept = _statistics_dtype(x, weight, bias) if x.spec.device.type == "cpu" else compute_dtype(x.spec.dtype)
        return result, cast(b, mean, kept), cast(b, scale, kept)
    result = batch_norm_parts(b, x, weight, bias, running_mean, running_var, training, momentum, eps)
    if x.spec.device.type == "cpu" or x.spec.dtype.itemsize > 2:
        return result, *(b.call("aten.new_empty.default", x, [0]) for _ in range(2))
    var = b.call("aten.add.Tensor", cast(b, running_var, torch.float32), eps)
    return result, cast(b, running_mean, torch.float32), b.call("aten.rsqrt.default", var)


define("aten.native_batch_norm.default", infer=_native_specs, decompose=_native_batch_norm,
       differentiable=(True, False, False))


def _batch_norm(
    b: Any,
    grad: Any,
    x: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    mean: Any,
    scale: Any,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """Sums over each channel, and a formula for each element. Both convert and normalise for themselves: where they are
    two kernels, the second one reads what the first one reads, not what it has made of that."""
    dtype, ndim = x.spec.dtype, x.spec.ndim
    compute = compute_dtype(dtype)
    axes, channels = _others(x), x.spec.shape[1]
    if training:
        if mean is None or scale is None:
            raise NotCovered("no statistics of the batch")
        mean, scale = (_of_channels(b, v, compute, ndim) for v in (mean, scale))
    else:
        mean = _of_channels(b, running_mean, compute, ndim)
        scale = _of_channels(b, scale_of(b, cast(b, running_var, compute), eps), compute, ndim)

    def normal() -> Any:
        return _times(b, b.call("aten.sub.Tensor", cast(b, x, compute), mean), scale)

    def total(value: Any) -> Any:
        return b.call("aten.sum.dim_IntList", value, axes, True)

    of_h, of_g = total(_times(b, cast(b, grad, compute), normal())), total(cast(b, grad, compute))
    result = None
    if mask[0]:
        factor = scale if weight is None else _times(b, scale, _of_channels(b, weight, compute, ndim))
        g = cast(b, grad, compute)
        if training:
            count = prod(tuple(x.spec.shape[a] for a in axes))
            g = b.call("aten.sub.Tensor", g, b.call("aten.div.Tensor", of_g, count))
            g = b.call("aten.sub.Tensor", g, _times(b, normal(), b.call("aten.div.Tensor", of_h, count)))
        result = cast(b, _times(b, g, factor), dtype)
    like = weight if weight is not None else x
    return (
        result,
        _total(b, of_h, (), like, [channels]) if mask[1] and weight is not None else None,
        _total(b, of_g, (), like, [channels]) if mask[2] else None,
    )


def _batch_norm_specs(
    env: SizeEnv, x: TensorSpec, *parameters: TensorSpec | None
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """The result, mean and scale: meta kernels say float32 of 16-bit statistics, and keep any order of axes."""
    if len(x.shape) < 2 or not is_float(x.dtype):
        raise NotCovered("batch_norm")
    dtype = next((p.dtype for p in parameters if p is not None), x.dtype)
    for parameter in parameters:
        if parameter is not None and (parameter.shape != (x.shape[1],) or parameter.dtype is not dtype):
            raise Invalid("parameter")
    if dtype is not x.dtype and (x.dtype.itemsize != 2 or dtype is not torch.float32):
        raise Invalid("dtypes")
    if x.device.type != "cpu" or any(type(size) is int and size == 0 for size in x.shape):
        raise NotCovered("batch_norm")
    statistics = contiguous_spec(dtype, (x.shape[1],), x.device)
    is_image = not is_contiguous(x.shape, x.stride) and is_channels_last_strides(env, x.shape, x.stride)
    stride = channels_last_stride(x.shape) if is_image else contiguous_stride(x.shape)
    return TensorSpec(x.dtype, x.shape, stride, x.device), statistics, statistics


def _functional_specs(env: SizeEnv, x: TensorSpec, *rest: Any) -> tuple[TensorSpec, ...]:
    *parameters, training, _, _ = rest
    if not training:
        raise NotCovered("batch_norm that updates nothing")
    found = _batch_norm_specs(env, x, *parameters)
    return *found, found[1], found[1]


define(
    "aten._native_batch_norm_legit_functional.default",
    infer=_functional_specs,
    decompose=_batch_norm_functional,
    differentiable=(True, False, False, False, False),
)
define(
    "aten._native_batch_norm_legit.no_stats",
    infer=lambda env, x, weight, bias, training, momentum, eps: _batch_norm_specs(env, x, weight, bias),
    decompose=_batch_norm_no_statistics,
    differentiable=(True, False, False),
)
define("aten.native_batch_norm_backward.default", decompose=_batch_norm)
