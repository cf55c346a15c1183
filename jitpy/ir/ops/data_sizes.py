"""Ops whose results have sizes that depend on data: their rules name each such size by an unbacked symbol.

`Op.sizes_by_data` is True for them, or a function of the arguments that tells whether a symbol is made. Each
call of such a rule makes new symbols, so that the frontend calls it once per call of the op.
"""

from __future__ import annotations

from typing import Any

import torch

from ..algebra import sympy
from ..op import NotCovered
from ..sizes import SizeEnv
from ..spec import Dim, TensorSpec, contiguous_spec, prod
from .layout import broadcast_shapes, normalize_dim
from .table import Invalid, define


def count(env: SizeEnv, most: Dim | None, least: int = 0) -> sympy.Symbol:
    """A symbol for a number of elements from `least` to `most`."""
    estimate = 64 if most is None else max(env.hint(most) // 2, 2)
    symbol = env.new_unbacked(estimate, least, most if isinstance(most, int) else None)
    if isinstance(most, sympy.Expr):
        env.learn(sympy.Le(symbol, most))
    return symbol


def _nonzero(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    if x.device.type != "cpu":
        raise NotCovered("nonzero on another device than the CPU")
    found = count(env, x.numel)
    # the CPU kernel writes axis by axis
    return TensorSpec(torch.int64, (found, len(x.shape)), (1, found), x.device)


def _masked_select(env: SizeEnv, x: TensorSpec, mask: TensorSpec) -> TensorSpec:
    if mask.dtype is not torch.bool or mask.device != x.device:
        raise Invalid("a mask")
    shape = broadcast_shapes(env, (x.shape, mask.shape))
    return contiguous_spec(x.dtype, (count(env, prod(shape)),), x.device)


def _distinct(env: SizeEnv, numel: Dim) -> sympy.Symbol:
    return count(env, numel, 1 if env.known(sympy.Gt(numel, 0)) else 0)


def _unique(
    env: SizeEnv, x: TensorSpec, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[TensorSpec, ...]:
    return _unique_parts(x, _distinct(env, x.numel), return_inverse, return_counts)


def _unique_consecutive(
    env: SizeEnv, x: TensorSpec, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[TensorSpec, ...]:
    if dim is not None:
        return _unique_dim_consecutive(env, x, dim, return_inverse, return_counts)
    return _unique_parts(x, _distinct(env, x.numel), return_inverse, return_counts)


def _unique_parts(x: TensorSpec, found: sympy.Symbol, inverse: bool, counts: bool) -> tuple[TensorSpec, ...]:
    return (
        contiguous_spec(x.dtype, (found,), x.device),
        contiguous_spec(torch.int64, x.shape if inverse else (0,), x.device),
        contiguous_spec(torch.int64, (found if counts else 0,), x.device),
    )


def _unique_dim(
    env: SizeEnv, x: TensorSpec, dim: int, sorted: bool = True, return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[TensorSpec, ...]:
    return _unique_dim_consecutive(env, x, dim, True, True)


def _unique_dim_consecutive(
    env: SizeEnv, x: TensorSpec, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[TensorSpec, ...]:
    if not x.shape:
        raise NotCovered("unique along an axis of a 0-dim tensor")
    if not all(env.known(sympy.Gt(size, 0)) for size in x.shape):
        raise NotCovered("unique of what may have no elements")
    axis = normalize_dim(dim, len(x.shape))
    found = _distinct(env, x.shape[axis])
    moved = contiguous_spec(x.dtype, (found, *x.shape[:axis], *x.shape[axis + 1 :]), x.device)
    # the result is made with the axis in front
    shape = (*moved.shape[1 : axis + 1], found, *moved.shape[axis + 1 :])
    stride = (*moved.stride[1 : axis + 1], moved.stride[0], *moved.stride[axis + 1 :])
    return (
        TensorSpec(x.dtype, shape, stride, x.device),
        contiguous_spec(torch.int64, (x.shape[axis],), x.device),
        contiguous_spec(torch.int64, (found,), x.device),
    )


def _repeat_interleave(env: SizeEnv, repeats: TensorSpec, *, output_size: Dim | None = None) -> TensorSpec:
    if len(repeats.shape) != 1 or repeats.dtype not in (torch.int32, torch.int64):
        raise Invalid("repeats")
    size = count(env, None) if output_size is None else output_size
    return contiguous_spec(repeats.dtype, (size,), repeats.device)


def _bincount(env: SizeEnv, x: TensorSpec, weights: TensorSpec | None = None, minlength: Any = 0) -> TensorSpec:
    if len(x.shape) != 1 or type(minlength) is not int or minlength < 0 or x.dtype.is_floating_point:
        raise Invalid("bincount")
    dtype = torch.int64 if weights is None else weights.dtype if weights.dtype is torch.float32 else torch.float64
    return contiguous_spec(dtype, (count(env, None, minlength),), x.device)


def _pack_padded_sequence(env: SizeEnv, x: TensorSpec, lengths: TensorSpec,
                          batch_first: bool) -> tuple[TensorSpec, ...]:
    if x.device.type != "cpu" or len(x.shape) < 2 or len(lengths.shape) != 1 or lengths.dtype is not torch.int64:
        raise NotCovered("packed sequences of other kinds than of tensors on the CPU")
    length, batch = x.shape[:2][:: -1 if batch_first else 1]
    if not env.equal(lengths.shape[0], batch, "lengths of a packed batch"):
        raise Invalid("lengths")
    found, steps = count(env, length * batch, 1), count(env, length, 1)
    return contiguous_spec(x.dtype, (found, *x.shape[2:]), x.device), contiguous_spec(torch.int64, (steps,), x.device)


define("aten._pack_padded_sequence.default", infer=_pack_padded_sequence, sizes_by_data=True,
       differentiable=(True, False))
define("aten.nonzero.default", infer=_nonzero, sizes_by_data=True, differentiable=False)
define("aten.masked_select.default", infer=_masked_select, sizes_by_data=True)
# their results require grad, though torch has no derivative
define("aten._unique2.default", infer=_unique, sizes_by_data=True, differentiable=(True, False, False))
define("aten.unique_consecutive.default", infer=_unique_consecutive, sizes_by_data=True,
       differentiable=(True, False, False))
define("aten.unique_dim.default", infer=_unique_dim, sizes_by_data=True, differentiable=(True, False, False))
define("aten.unique_dim_consecutive.default", infer=_unique_dim_consecutive, sizes_by_data=True,
       differentiable=(True, False, False))
define("aten.repeat_interleave.Tensor", infer=_repeat_interleave, sizes_by_data=True, differentiable=False)
define("aten.bincount.default", infer=_bincount, sizes_by_data=True)
