"""Whether the operands of an in-place op overlap in memory in a way that eager refuses or leaves undefined.

A graph reads the values from before the write. Eager reads what it has just written, or raises: the two agree only
where an operand is the written tensor itself, element by element, or lies apart from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jitpy.ir import Dim, TensorSpec

from .traced import TracedTensor, Uncapturable

if TYPE_CHECKING:
    from .recorder import Recorder


def check_operands(recorder: Recorder, targets: Iterable[TracedTensor], operands: Iterable[TracedTensor]) -> None:
    """Raises Uncapturable where an operand shares elements of a target, but not each with the element in its place."""
    operands = list(operands)
    for target in targets:
        for operand in operands:
            if operand.storage is not target.storage or operand is target:
                continue
            if not _same_elements(operand.spec, target.spec) and not _apart(operand, target):
                raise Uncapturable("unsupported_op", "a write to memory that another operand overlaps")


def _same_elements(a: TensorSpec, b: TensorSpec) -> bool:
    return (a.shape, a.stride, a.offset, a.dtype) == (b.shape, b.stride, b.offset, b.dtype)


def _apart(a: TracedTensor, b: TracedTensor) -> bool:
    """Whether the two views surely share no element: their ranges of addresses are disjoint, or interleave."""
    first, second = a.spec, b.spec
    ranges = [_range(first), _range(second)]
    if any(type(bound) is not int for low_high in ranges for bound in low_high):
        return False
    (low_a, high_a), (low_b, high_b) = ranges
    scale_a, scale_b = first.dtype.itemsize, second.dtype.itemsize
    if high_a * scale_a <= low_b * scale_b or high_b * scale_b <= low_a * scale_a:
        return True
    # Columns of one matrix: the same strides, and less than a step apart.
    if first.dtype != second.dtype or first.shape != second.shape or first.stride != second.stride:
        return False
    step = min((s for s, n in zip(first.stride, first.shape, strict=True) if n != 1), default=0)
    aligned = all(type(s) is int and step and s % step == 0 for s in first.stride)
    return aligned and (low_a - low_b) % step != 0  # type: ignore[operator]


def _range(spec: TensorSpec) -> tuple[Dim, Dim]:
    """First element, and the one after the last, counted from the start of the storage."""
    if any(size == 0 for size in spec.shape):
        return spec.offset, spec.offset
    last = spec.offset
    for size, stride in zip(spec.shape, spec.stride, strict=True):
        last = last + (size - 1) * stride
    return spec.offset, last + 1
