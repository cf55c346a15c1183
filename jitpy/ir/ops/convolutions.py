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
        return _on_gpus("aten.convolution.default")(
            env, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    return _convolution(axes)(env, x, weight, bias, stride, padding, dilation, groups)


def _on_gpus(name: str, first: int = 0) -> Any:
    """The rule of an op whose image and weight are arguments `first` and the next: images on GPUs alone, whose results
    and gradients are laid out so, whatever torch's meta kernel says."""

    def infer(env: SizeEnv, *args: Any, **options: Any) -> Any:
        image, weight = args[first : first + 2]
        if image.device.type != "cuda" or len(image.shape) != 4:
            raise NotCovered("the derived rule")
        lays_out = _convolution_layout(env, image, weight)

        def laid_out(one: Any) -> Any:
            return one.with_(stride=lays_out(one.shape)) if isinstance(one, TensorSpec) and one.ndim == 4 else one

        made = derive(get(name), env, args, options, False).spec
        return tuple(map(laid_out, made)) if isinstance(made, tuple) else laid_out(made)

    return infer


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
for _name in ("aten.conv_transpose2d.input", "aten.conv2d.padding"):
    define(_name, infer=_on_gpus(_name))
define("aten.convolution_backward.default", infer=_on_gpus("aten.convolution_backward.default", 1))

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
