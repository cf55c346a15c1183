"""Convolutions: sizes, and how eager's kernels lay out results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..op import Convolution, NotCovered
from ..sizes import SizeEnv, floordiv
from ..spec import Dim, TensorSpec, contiguous_stride
from .derived import derive
from .indexing import one_device, row_major_only
from .layout import channels_last_stride, is_channels_last_strides, is_contiguous, is_static, less
from .promotion import is_float
from .table import Invalid, declare, define, get


def _convolution(axes: int) -> Any:
    def infer(
        env: SizeEnv,
        x: TensorSpec,
        weight: TensorSpec,
        bias: TensorSpec | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> TensorSpec:
        if len(weight.shape) != axes + 2 or len(x.shape) not in (axes + 1, axes + 2) or not is_static(weight.shape):
            raise NotCovered("convolution")
        lays_out = _convolution_layout(env, x, weight)
        if weight.dtype is not x.dtype or not is_float(x.dtype):
            raise NotCovered("convolution")
        if bias is not None and (bias.dtype is not x.dtype or bias.shape != (weight.shape[0],)):
            raise NotCovered("convolution")
        channels = x.shape[-axes - 1]
        if type(groups) is not int or groups < 1 or weight.shape[0] % groups or not env.equal(
                channels, weight.shape[1] * groups, "channels"):
            raise Invalid("convolution channels")
        sizes = []
        for i in range(axes):
            pace, pad, spread = _nth(stride, i), _nth(padding, i), _nth(dilation, i)
            kernel = weight.shape[2 + i]
            if pace < 1 or pad < 0 or spread < 1 or kernel < 1:
                raise NotCovered("convolution")
            room = x.shape[-axes + i] + 2 * pad - spread * (kernel - 1) - 1
            if less(env, room, 0):
                raise Invalid("kernel larger than its input")
            sizes.append(floordiv(room, pace) + 1)
        shape = (*x.shape[: -axes - 1], weight.shape[0], *sizes)
        return TensorSpec(x.dtype, shape, lays_out(shape), x.device)

    return infer


def _convolution_layout(
    env: SizeEnv, x: TensorSpec, weight: TensorSpec
) -> Callable[[tuple[Dim, ...]], tuple[Dim, ...]]:
    """How eager's kernels lay out a result of some shape: over two axes channels-last where either operand is."""
    device = one_device((x, weight)).type
    if device not in ("cpu", "cuda") or device == "cuda" and (torch.version.hip is not None or len(x.shape) != 4):
        raise NotCovered("convolution")
    if device == "cuda" and (x.dtype is torch.float64 or not torch.backends.cudnn.enabled):
        return contiguous_stride
    if len(x.shape) == 4 and any(is_channels_last_strides(env, s.shape, s.stride) for s in (x, weight)):
        return channels_last_stride
    if device == "cuda":
        return contiguous_stride
    row_major_only(env, (x, weight))
    if not is_contiguous(x.shape, x.stride) or not is_contiguous(weight.shape, weight.stride):
        raise NotCovered("convolution")
    return contiguous_stride


def _any_convolution(
    env: SizeEnv,
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> TensorSpec:
    axes = len(weight.shape) - 2
    if len(x.shape) != axes + 2:
        raise NotCovered("convolution of one example")
    if transposed:
        return _transposed(env, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _convolution(axes)(env, x, weight, bias, stride, padding, dilation, groups)


def _transposed(
    env: SizeEnv,
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> TensorSpec:
    """Images alone, on the CPU in channels-last; the derived rule knows the others."""
    if len(x.shape) != 4 or len(weight.shape) != 4:
        raise NotCovered("transposed convolution")
    if weight.dtype is not x.dtype or x.shape[1] != weight.shape[0] or not is_static(weight.shape) or not is_static(
        x.shape
    ):
        raise NotCovered("transposed convolution")
    lays_out = _convolution_layout(env, x, weight)
    if x.device.type == "cpu" and lays_out is not channels_last_stride:
        raise NotCovered("transposed convolution")
    if bias is not None and bias.dtype is not x.dtype:
        raise NotCovered("transposed convolution")
    sizes = [(x.shape[2 + i] - 1) * _nth(stride, i) - 2 * _nth(padding, i)
             + _nth(dilation, i) * (weight.shape[2 + i] - 1) + _nth(output_padding, i) + 1 for i in range(2)]
    if min(sizes) < 1:
        raise NotCovered("transposed convolution")
    shape = (x.shape[0], weight.shape[1] * groups, *sizes)
    return TensorSpec(x.dtype, shape, lays_out(shape), x.device)


def _padded_convolution(
    env: SizeEnv,
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    stride: Any = 1,
    padding: str = "valid",
    dilation: Any = 1,
    groups: int = 1,
) -> TensorSpec:
    """Images on GPUs alone; the derived rule knows the others."""
    if x.device.type != "cuda" or len(x.shape) != 4 or len(weight.shape) != 4 or not is_static(weight.shape):
        raise NotCovered("padded convolution")
    room = [_nth(dilation, i) * (weight.shape[2 + i] - 1) for i in range(2)]
    if padding not in ("valid", "same") or padding == "same" and (room[0] % 2 or room[1] % 2):
        raise NotCovered("padded convolution")
    pads = [size // 2 if padding == "same" else 0 for size in room]
    return _convolution(2)(env, x, weight, bias, stride, pads, dilation, groups)


def _convolution_backward(
    env: SizeEnv, grad: TensorSpec, x: TensorSpec, weight: TensorSpec, *options: Any
) -> tuple[TensorSpec | None, ...]:
    """Images on GPUs alone: the gradients of image and weight are laid out as results are, whatever torch's meta kernel
    says."""
    if x.device.type != "cuda" or len(x.shape) != 4:
        raise NotCovered("gradients of a convolution")
    lays_out = _convolution_layout(env, x, weight)
    made: Any = derive(get("aten.convolution_backward.default"), env, (grad, x, weight, *options), {}, False).spec
    of_image, of_weight, of_bias = made
    return *(one if one is None else one.with_(stride=lays_out(one.shape)) for one in (of_image, of_weight)), of_bias


def _nth(value: Any, i: int) -> int:
    """Entry `i` of an int, a list of one or a full list."""
    if type(value) is int:
        return value
    if not isinstance(value, (tuple, list)) or not value or not all(type(v) is int for v in value):
        raise NotCovered("convolution parameters")
    return value[i] if len(value) > 1 else value[0]


for _axes in (1, 2, 3):
    define(f"aten.conv{_axes}d.default", infer=_convolution(_axes))
define("aten.convolution.default", infer=_any_convolution)
define("aten.conv_transpose2d.input", infer=_transposed)
define("aten.conv2d.padding", infer=_padded_convolution)
define("aten.convolution_backward.default", infer=_convolution_backward)

declare("conv2d.default", groups=6)
declare("convolution.default", groups=8)
declare("convolution_backward.default", groups=9)
declare("convolution.default", convolution=Convolution(8, 6))
declare("conv1d", "conv2d", "conv3d", convolution=Convolution(6))
declare("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", convolution=Convolution(6, True))

# ops of images whose results may have their axes in the order of their operands'
declare("conv2d.default", "convolution.default", "batch_norm.default", "avg_pool2d.default",
        "_adaptive_avg_pool2d.default", "upsample_nearest2d.default", "upsample_nearest2d.vec",
        "upsample_nearest2d_backward.default", "constant_pad_nd.default", "cat.default", axes=((0,), (None,)))
declare("native_batch_norm.default", "_native_batch_norm_legit_functional.default",
        "_native_batch_norm_legit.no_stats", axes=((0,), (0,)))
declare("convolution_backward.default", "native_batch_norm_backward.default", axes=((0, 1), (0,)))
declare("avg_pool2d_backward.default", "_adaptive_avg_pool2d_backward.default", "native_dropout_backward.default",
        axes=((0, 1), (None,)))
declare("max_pool2d_with_indices.default", "native_dropout.default", axes=((0,), (0, 1)))
declare("max_pool2d_with_indices_backward.default", axes=((0, 1, 7), (None,)))
declare("batch_norm.default", "native_batch_norm.default", is_batch_norm=True)
# gradients that read the sizes of their operand alone
declare("max_pool2d_with_indices_backward.default", "avg_pool2d_backward.default",
        "_adaptive_avg_pool2d_backward.default", sizes_only=1)
