"""Type promotion as eager does it: dimensioned tensors over 0-dim tensors over Python numbers."""

from __future__ import annotations

from typing import Any

import torch

from ..algebra import sympy
from ..op import NotCovered
from ..spec import ScalarSpec, TensorSpec

_PROMOTED: dict[tuple[torch.dtype, torch.dtype], torch.dtype] = {}

#: 0: bool, 1: integer, 2: floating point, 3: complex
_CATEGORY: dict[torch.dtype, int] = {torch.bool: 0}
for _dtype in (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
):
    _CATEGORY[_dtype] = 1
for _dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2):
    _CATEGORY[_dtype] = 2
for _dtype in (torch.complex32, torch.complex64, torch.complex128):
    _CATEGORY[_dtype] = 3

_TO_COMPLEX = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
    torch.bfloat16: torch.complex64,
}

#: The dtype in which arithmetic on a dtype is carried out.
_COMPUTE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
SMALL_FLOATS = frozenset(_COMPUTE)


def category(dtype: torch.dtype) -> int:
    """0 bool, 1 integer, 2 floating point, 3 complex; NotCovered for anything else."""
    found = _CATEGORY.get(dtype)
    if found is None:
        raise NotCovered(f"dtype {dtype}")
    return found


def is_float(dtype: torch.dtype) -> bool:
    return _CATEGORY.get(dtype) == 2


def is_differentiable(dtype: torch.dtype) -> bool:
    """Whether tensors of this dtype may require grad."""
    return dtype.is_floating_point or dtype.is_complex


def promote_types(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """`torch.promote_types`, from a dictionary."""
    if a is b:
        return a
    found = _PROMOTED.get((a, b))
    if found is None:
        found = _PROMOTED[a, b] = torch.promote_types(a, b)
    return found


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for the 16-bit floats, else the dtype itself."""
    return _COMPUTE.get(dtype, dtype)


def scalar_dtype(value: Any) -> torch.dtype | None:
    """The dtype a Python number (or a host scalar's spec, or a size) counts as; None if it is none of these."""
    kind = type(value)
    if kind is ScalarSpec:
        kind = value.kind
    if kind is float:
        return torch.get_default_dtype()
    if kind is int:
        return torch.int64
    if kind is bool:
        return torch.bool
    if kind is complex:
        return _TO_COMPLEX.get(torch.get_default_dtype(), torch.complex64)
    if isinstance(value, sympy.Expr):
        return torch.int64 if value.is_integer else torch.get_default_dtype()
    return None


def result_type(operands: tuple[Any, ...] | list[Any]) -> torch.dtype:
    """`torch.result_type` over specs and Python numbers. Raises NotCovered for anything else."""
    dim: torch.dtype | None = None
    zero: torch.dtype | None = None
    number: torch.dtype | None = None
    for operand in operands:
        if type(operand) is TensorSpec:
            if operand.shape:
                dim = operand.dtype if dim is None else promote_types(dim, operand.dtype)
            else:
                zero = operand.dtype if zero is None else promote_types(zero, operand.dtype)
        else:
            dtype = scalar_dtype(operand)
            if dtype is None:
                raise NotCovered(f"operand {operand!r}")
            number = dtype if number is None else promote_types(number, dtype)
    result = _combine(dim, _combine(zero, number))
    if result is None:
        raise NotCovered("no operands")
    return result


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """A lower rank changes the result only where its category is higher."""
    if higher is None or lower is None or higher is lower:
        return lower if higher is None else higher
    high, low = category(higher), category(lower)
    if high == 3:
        return higher
    if high == 2:
        return _TO_COMPLEX.get(higher, higher) if low == 3 else higher
    if high == 0 or low >= 2:
        return promote_types(higher, lower)
    return higher


def float_result(dtype: torch.dtype) -> torch.dtype:
    """The result of an op that turns integers into floats (sin, true division, mean of log, ...)."""
    return dtype if category(dtype) >= 2 else torch.get_default_dtype()
