"""Iteration spaces: how tensors of different shapes line up with the axes of one loop nest.

A space is a row-major list of axes, each parallel or reduced. A tensor has one element for each of the space's points,
in row-major order, or for each point of some axes alone: see `Extent`. Axes are refined until every tensor's own axes
are runs of whole space axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ..ir.spec import Dim, prod
from .index import ZERO, Axis, Index, exact_quotient, of, same

#: `(size, reduced)` per axis, neighbours of one kind merged, sizes of 1 left out.
Signature = tuple[tuple[Dim, bool], ...]


class Extent(Enum):
    """For what a tensor has one element each: the points of a space, its rows (points of the parallel axes: results of
    reductions, and what is computed from these), or its columns (points of the reduced axes)."""

    POINTS = "points"
    ROWS = "rows"
    COLUMNS = "columns"

    def has(self, reduced: bool) -> bool:
        """Whether such a tensor has the axes of this kind."""
        return self is Extent.POINTS or reduced is (self is Extent.COLUMNS)


def signature(shape: Sequence[Dim], reduced: frozenset[int] | set[int]) -> Signature:
    """The signature of a reduction over axes `reduced` of `shape`."""
    merged: list[tuple[Dim, bool]] = []
    for k, size in enumerate(shape):
        if type(size) is int and size == 1:
            continue
        kind = k in reduced
        if merged and merged[-1][1] == kind:
            merged[-1] = (merged[-1][0] * size, kind)
        else:
            merged.append((size, kind))
    return tuple(merged)


def full_size(space: Signature) -> Dim:
    return prod(tuple(size for size, _ in space))


def outer_size(space: Signature) -> Dim:
    return prod(tuple(size for size, reduced in space if not reduced))


def column_size(space: Signature) -> Dim:
    return prod(tuple(size for size, reduced in space if reduced))


def crosses(a: Signature, b: Signature) -> bool:
    """Whether one reduces the rows of a matrix, and the other its columns."""
    other = tuple((size, not reduced) for size, reduced in b)
    return len(a) == 2 and a[0][1] is not a[1][1] and same_signature(a, other)


def same_signature(a: Signature, b: Signature) -> bool:
    return len(a) == len(b) and all(x[1] == y[1] and same(x[0], y[0]) for x, y in zip(a, b, strict=True))


class Misaligned(Exception):
    """A tensor's axes do not fall on the space's axes."""


class Space:
    """A list of `Axis`, refined as shapes are placed on it."""

    def __init__(self, sizes: Signature) -> None:
        self.sizes: list[tuple[Dim, bool]] = list(sizes)
        self.axes: list[Axis] = []

    def refine(self, shape: Sequence[Dim], extent: Extent) -> None:
        """Split axes so that each axis of `shape` is a run of whole ones. Raises Misaligned."""
        k = len(self.sizes) - 1
        left: Dim = 1  # of the tensor's axis, still to be covered
        dims = [s for s in shape if not (type(s) is int and s == 1)]
        while True:
            while k >= 0 and not extent.has(self.sizes[k][1]):
                k -= 1
            if type(left) is int and left == 1:
                if not dims:
                    break
                left = dims.pop()
            if k < 0:
                raise Misaligned("the shapes do not line up")
            size, reduced = self.sizes[k]
            if same(size, left):
                left = 1
                k -= 1
                continue
            rest = exact_quotient(size, left)
            if rest is not None:
                self.sizes[k : k + 1] = [(rest, reduced), (left, reduced)]
                left = 1
                continue
            rest = exact_quotient(left, size)
            if rest is None:
                raise Misaligned("the shapes do not line up")
            left = rest
            k -= 1
        while k >= 0 and not extent.has(self.sizes[k][1]):
            k -= 1
        if k >= 0:
            raise Misaligned("the shapes do not line up")

    def split(self, axis: Axis, inner: Dim) -> bool:
        """Split the axis into runs of `inner`; False where that does not divide it. Axes are made anew by
        `make_axes`."""
        k = self.axes.index(axis)
        rest = exact_quotient(self.sizes[k][0], inner)
        if rest is None or type(rest) is int and rest == 1:
            return False
        self.sizes[k : k + 1] = [(rest, axis.reduced), (inner, axis.reduced)]
        self.axes[k : k + 1] = [Axis(rest, axis.reduced), Axis(inner, axis.reduced)]
        return True

    def make_axes(self) -> list[Axis]:
        self.axes = [Axis(size, reduced) for size, reduced in self.sizes]
        return self.axes

    def place(self, shape: Sequence[Dim], extent: Extent) -> tuple[Index, ...]:
        """The tensor's index at a point of the (refined) space."""
        result: list[Index] = []
        axes = [a for a in self.axes if extent.has(a.reduced)]
        for size in reversed(shape):
            index, step = ZERO, 1
            if not (type(size) is int and size == 1):
                left = size
                while not (type(left) is int and left == 1):
                    if not axes:
                        raise Misaligned("the shapes do not line up")
                    axis = axes.pop()
                    index = index + of(axis) * step
                    step = step * axis.size
                    quotient = exact_quotient(left, axis.size)
                    if quotient is None:
                        raise Misaligned("the shapes do not line up")
                    left = quotient
            result.append(index)
        return tuple(reversed(result))
