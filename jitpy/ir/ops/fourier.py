"""Fourier transforms: what their CPU kernels return is not laid out as their meta kernels say.

A kernel transforms along the innermost axes of a copy: the other axes first, then those of the transform, each in the
order of the argument's strides, and what halves or doubles comes last.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from ..op import NotCovered
from ..sizes import SizeEnv, floordiv
from ..spec import Dim, TensorSpec
from .layout import dense_stride, normalize_dim, stride_less
from .table import define

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {wide: narrow for narrow, wide in _COMPLEX.items()}


def _by_stride(env: SizeEnv, axes: Sequence[int], shape: Sequence[Dim], stride: Sequence[Dim]) -> list[int]:
    """Axes from the largest stride to the smallest."""

    def compare(a: int, b: int) -> int:
        if stride[a] == stride[b]:
            if shape[a] == 1 or shape[b] == 1:
                return 0  # wherever that one goes, the others stay where they are
            raise NotCovered("a Fourier transform of a tensor with equal strides")
        return 1 if stride_less(env, stride[a], stride[b]) else -1

    return sorted(axes, key=functools.cmp_to_key(compare))


def _axes(env: SizeEnv, x: TensorSpec, dims: Sequence[int], dtypes: dict[torch.dtype, torch.dtype]) -> list[int]:
    """The axes of a transform that the rules below cover."""
    if x.device.type != "cpu" or x.dtype not in dtypes or any(s == 0 for s in x.shape):
        raise NotCovered("a Fourier transform")
    axes = [normalize_dim(dim, len(x.shape)) for dim in dims]
    if not axes or len(set(axes)) != len(axes):
        raise NotCovered("axes of a Fourier transform")
    return axes


def _others(axes: Sequence[int], x: TensorSpec) -> list[int]:
    return [a for a in range(len(x.shape)) if a not in axes]


def _complex_stride(env: SizeEnv, x: TensorSpec, axes: list[int], stride: Sequence[Dim]) -> tuple[Dim, ...]:
    order = [*_by_stride(env, _others(axes, x), x.shape, stride), *_by_stride(env, axes, x.shape, stride)]
    return dense_stride(x.shape, reversed(order))


def _complex_to_complex(
    env: SizeEnv, x: TensorSpec, dim: Sequence[int], normalization: int, forward: bool
) -> TensorSpec:
    axes = _axes(env, x, dim, _REAL)
    return TensorSpec(x.dtype, x.shape, _complex_stride(env, x, axes, x.stride), x.device)


def _real_to_complex(env: SizeEnv, x: TensorSpec, dim: Sequence[int], normalization: int, onesided: bool) -> TensorSpec:
    if not onesided:
        raise NotCovered("a Fourier transform with both sides")
    *axes, last = _axes(env, x, dim, _COMPLEX)
    shape = list(x.shape)
    shape[last] = floordiv(shape[last], 2) + 1
    order = [*_by_stride(env, _others((*axes, last), x), x.shape, x.stride), *_by_stride(env, axes, x.shape, x.stride)]
    return TensorSpec(_COMPLEX[x.dtype], tuple(shape), dense_stride(tuple(shape), (last, *reversed(order))), x.device)


def _complex_to_real(
    env: SizeEnv, x: TensorSpec, dim: Sequence[int], normalization: int, last_dim_size: Dim
) -> TensorSpec:
    *axes, last = _axes(env, x, dim, _REAL)
    stride = _complex_stride(env, x, axes, x.stride) if axes else x.stride  # the other axes are transformed before
    shape = list(x.shape)
    shape[last] = last_dim_size
    order = [*_by_stride(env, _others([last], x), x.shape, stride), last]
    return TensorSpec(_REAL[x.dtype], tuple(shape), dense_stride(tuple(shape), reversed(order)), x.device)


define("aten._fft_c2c.default", infer=_complex_to_complex)
define("aten._fft_r2c.default", infer=_real_to_complex)
define("aten._fft_c2r.default", infer=_complex_to_real)
