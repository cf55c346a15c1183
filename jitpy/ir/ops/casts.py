"""Copies and conversions: clone, contiguous, to."""

from __future__ import annotations

from typing import Any

import torch

from ..op import NotCovered
from ..sizes import SizeEnv
from ..spec import TensorSpec
from .layout import channels_last_stride, format_stride, has_format
from .table import declare, define


def _identity(e: Any, x: Any, *rest: Any, **options: Any) -> Any:
    return x


def _own(x: TensorSpec, *rest: Any, **options: Any) -> tuple[torch.dtype]:
    return (x.dtype,)


def _clone(env: SizeEnv, x: TensorSpec, *, memory_format: torch.memory_format | None = None) -> TensorSpec:
    return TensorSpec(x.dtype, x.shape, format_stride(env, x, memory_format), x.device)


define("aten.clone.default", kind="pointwise", infer=_clone, scalar=_identity, operands=1, compute=_own)


def _filled(env: SizeEnv, x: TensorSpec, low: float = 0, high: float = 1, *, generator: Any = None) -> TensorSpec:
    """A clone that is filled with random numbers. (torch's own rule has the strides of `x`, gaps and all.)"""
    return _clone(env, x)


define("aten.uniform.default", infer=_filled)


def _has_format(env: SizeEnv, x: TensorSpec, memory_format: torch.memory_format | None) -> bool:
    if memory_format is None or memory_format is torch.preserve_format:
        return True
    return has_format(env, x, memory_format) or (
        memory_format is not torch.contiguous_format and x.stride == channels_last_stride(x.shape))


def _contiguous(
    env: SizeEnv, x: TensorSpec, *, memory_format: torch.memory_format = torch.contiguous_format
) -> TensorSpec:
    if memory_format is torch.preserve_format:
        raise NotCovered("memory format")
    return x if _has_format(env, x, memory_format) else _clone(env, x, memory_format=memory_format)


define(
    "aten.contiguous.default",
    kind="pointwise",
    infer=_contiguous,
    scalar=_identity,
    operands=1,
    compute=_own,
    aliasing=lambda env, x, **options: "self" if _contiguous(env, x, **options) is x else "copy",
)


def convert(
    env: SizeEnv,
    x: TensorSpec,
    dtype: torch.dtype | None,
    device: torch.device | None,
    copy: bool,
    memory_format: torch.memory_format | None,
) -> TensorSpec:
    """`Tensor.to`: the input's own spec where nothing is to be done."""
    if device is not None and device != x.device:
        if device.index is not None or x.device.index is None or device.type != x.device.type:
            stride = format_stride(env, x, memory_format)
            return TensorSpec(dtype or x.dtype, x.shape, stride, _indexed(device))
    if not copy and (dtype is None or dtype is x.dtype) and _has_format(env, x, memory_format):
        return x
    return TensorSpec(dtype or x.dtype, x.shape, format_stride(env, x, memory_format), x.device)


def _indexed(device: torch.device) -> torch.device:
    if device.type == "cpu" or device.index is not None:
        return device
    raise NotCovered("the current device")


def _to_layout(
    env: SizeEnv,
    x: TensorSpec,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> TensorSpec:
    if layout not in (None, torch.strided) or pin_memory:
        raise NotCovered("layout")
    return convert(env, x, dtype, None if device is None else torch.device(device), copy, memory_format)


def _to_copy(env: SizeEnv, x: TensorSpec, **options: Any) -> TensorSpec:
    return _to_layout(env, x, copy=True, **options)


def _define(name: str, rule: Any) -> None:
    define(
        name,
        kind="pointwise",
        infer=rule,
        scalar=_identity,
        operands=1,
        compute=_own,
        aliasing=lambda env, x, *rest, **options: "self" if rule(env, x, *rest, **options) is x else "copy",
    )


_define("aten.to.dtype", lambda env, x, dtype, non_blocking=False, copy=False, memory_format=None:
        convert(env, x, dtype, None, copy, memory_format))
_define("aten.to.device", lambda env, x, device, dtype, non_blocking=False, copy=False, memory_format=None:
        convert(env, x, dtype, torch.device(device), copy, memory_format))
_define("aten.to.other", lambda env, x, other, non_blocking=False, copy=False, memory_format=None:
        convert(env, x, other.dtype, other.device, copy, memory_format))
_define("aten.to.dtype_layout", _to_layout)
_define("aten._to_copy.default", _to_copy)
_define("aten.type_as.default", lambda env, x, other: convert(env, x, other.dtype, other.device, False, None))

declare("_to_copy.default", "to.dtype", "clone.default", is_copy=True)
