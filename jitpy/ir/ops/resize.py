"""Images made larger or smaller: `torch.nn.functional.interpolate` in its modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..algebra import sympy
from ..op import NotCovered
from ..sizes import SizeEnv
from ..spec import Dim, TensorSpec, contiguous_spec
from .indexing import row_major_only
from .layout import channels_last_stride, is_channels_last, is_contiguous
from .table import Invalid, define


def _scaled(size: Dim, factor: float) -> Dim:
    """`int(size * factor)`; NotCovered where that is no polynomial of the size."""
    if type(size) is int:
        return int(size * factor)
    if factor != int(factor):
        raise NotCovered("a symbolic size times a fraction")
    return size * int(factor)


def _resized(axes: int) -> Callable[..., TensorSpec]:
    """The rule of the ops that resize the last `axes` axes of (batch, channels, *sizes)."""

    def infer(env: SizeEnv, x: TensorSpec, output_size: Sequence[Dim] | None, *options: Any) -> TensorSpec:
        if len(x.shape) != axes + 2:
            raise Invalid("rank")
        channels_last = axes == 2 and x.shape[1] != 1 and is_channels_last(x.shape, x.stride)
        if not channels_last:
            row_major_only(env, (x,))
            if not is_contiguous(x.shape, x.stride):
                raise NotCovered("layout")
        if any(size == 0 for size in x.shape):
            raise NotCovered("layout of nothing")
        factors: Any = options[-1] if options else None
        if (output_size is None) == (factors is None):
            raise Invalid("either the sizes or the factors")
        sizes = tuple(output_size) if output_size is not None else tuple(map(_scaled, x.shape[2:], factors))
        if len(sizes) != axes or any(type(size) is int and size <= 0 for size in sizes):
            raise Invalid("output size")
        for size in (*x.shape[2:], *sizes):
            if not env.require(sympy.Gt(size, 0), "images have elements"):
                raise Invalid("no elements")
        spec = contiguous_spec(x.dtype, (*x.shape[:2], *sizes), x.device)
        return spec.with_(stride=channels_last_stride(spec.shape)) if channels_last else spec

    return infer


def _resized_back(axes: int) -> Callable[..., TensorSpec]:
    """The rule of the gradients of those ops, which lie as the gradient that they are given."""

    def infer(env: SizeEnv, grad: TensorSpec, output_size: Sequence[Dim], input_size: Sequence[Dim],
              *options: Any) -> TensorSpec:
        if len(grad.shape) != axes + 2 or len(input_size) != axes + 2:
            raise Invalid("rank")
        channels_last = axes == 2 and grad.shape[1] != 1 and is_channels_last(grad.shape, grad.stride)
        if not channels_last and not is_contiguous(grad.shape, grad.stride):
            raise NotCovered("layout")
        if any(size == 0 for size in (*grad.shape, *input_size)):
            raise NotCovered("layout of nothing")
        spec = contiguous_spec(grad.dtype, tuple(input_size), grad.device)
        return spec.with_(stride=channels_last_stride(spec.shape)) if channels_last else spec

    return infer


for _axes, _names in {
    1: ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"),
    2: ("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d",
        "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    3: ("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
}.items():
    for _name in _names:
        define(f"aten.{_name}.vec", infer=_resized(_axes))
        define(f"aten.{_name}_backward.default", infer=_resized_back(_axes))
