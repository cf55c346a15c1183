"""Pooling and nearest-neighbour resizing: small windows, unrolled into the body of one element.

A gradient is gathered: each element of the input asks the few windows that hold it, so that nothing is added at
computed places and the sums have one order. Only that of maxima is scattered where the device does so in one order too:
most elements are no maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from ..ir.op import NotCovered
from ..ir.spec import Dim
from .expr import INT, Expr, compute_dtype
from .index import Index, of
from .lower import Lowering, lowering
from .values import IndexTuple, Trace, Value

#: Elements of a window up to which it is unrolled.
LARGEST = 36


@dataclass(frozen=True, slots=True)
class Windows:
    """Two-dimensional windows over the last two axes, `sizes` of which are the input's and `counts` the result's."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    sizes: tuple[Dim, Dim]
    counts: tuple[Dim, Dim]
    dilation: tuple[int, int] = (1, 1)

    def start(self, axis: int, at: Index) -> Index:
        """The first position of window `at`, which padding may put outside."""
        return at * self.stride[axis] - self.padding[axis]

    def covers(self, axis: int, position: Index, k: int) -> Index:
        """The `k`-th last window that may hold a position."""
        return (position + self.padding[axis]) // self.stride[axis] - k

    def most(self, axis: int) -> range:
        """Numbers for `covers`."""
        return range(-(-self.kernel[axis] // self.stride[axis]))

    def inside(self, e: Any, axis: int, position: Index) -> Expr:
        """Whether a window's position lies in the input. Nothing is asked where every one does."""
        if self.padding[axis] == 0 and self.fits(axis):
            return e.const(True, torch.bool)
        return _between(e, position, 0, self.sizes[axis])

    def first_inside(self, e: Any, axis: int, at: Index) -> Expr:
        """The first position of window `at` that is not in the padding in front."""
        start, step = self.start(axis, at), self.dilation[axis]
        behind = (start + -(-self.padding[axis] // step) * step) % step
        return e.maximum(e.index(start), e.index(behind))

    def fits(self, axis: int) -> bool:
        """Whether the last window ends within the input (and its padding, `ceil_mode` apart)."""
        reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1
        last = (self.counts[axis] - 1) * self.stride[axis] + reach
        size = self.sizes[axis]
        return type(last) is int and type(size) is int and last <= size + self.padding[axis]


def _between(e: Any, position: Index, low: Dim, high: Dim) -> Expr:
    place = e.index(position)
    found = e.lt(place, e.size(high))
    return e.logical_and(e.ge(place, e.size(low)), found)


def _pair(value: Any) -> tuple[int, int]:
    values = (value, value) if type(value) is int else tuple(value)
    if len(values) == 1:
        values = values * 2
    if len(values) != 2 or not all(type(v) is int for v in values):
        raise NotCovered("windows known only at run time")
    return values  # type: ignore[return-value]


def _windows(
    shape: Sequence[Dim], result: Sequence[Dim], kernel: Any, stride: Any, padding: Any, dilation: Any = 1
) -> Windows:
    kernel = _pair(kernel)
    if kernel[0] * kernel[1] > LARGEST:
        raise NotCovered("windows of so many elements")
    pace = _pair(stride) if type(stride) is int or len(stride) else kernel
    return Windows(kernel, pace, _pair(padding), tuple(shape[-2:]), tuple(result[-2:]),  # type: ignore[arg-type]
                   _pair(dilation))


def _fold(
    trace: Trace, windows: Windows, index: IndexTuple, step: Callable[[Index, Index, Expr], None]
) -> None:
    """`step(row, column, inside)` for each position of the window at `index`, in order."""
    e = trace.e
    top, left = windows.start(0, index[-2]), windows.start(1, index[-1])
    rows, columns = ([(place, windows.inside(e, axis, place)) for k in range(windows.kernel[axis])
                      for place in (start + k * windows.dilation[axis],)] for axis, start in enumerate((top, left)))
    for row, in_row in rows:
        for column, in_column in columns:
            step(row, column, e.logical_and(in_row, in_column))


def _gather(
    trace: Trace, windows: Windows, index: IndexTuple, element: Callable[[IndexTuple], Expr], exact: bool
) -> Expr:
    """The sum of `element` over the windows that hold the position `index`; `exact`: `element` may be asked of windows
    that only might."""
    e = trace.e
    axes: list[list[tuple[Index, Expr]]] = []
    for axis in (0, 1):
        position = index[axis - 2]
        found = []
        for k in windows.most(axis):
            window = windows.covers(axis, position, k)
            holds = _between(e, window, 0, windows.counts[axis])
            if not exact and windows.kernel[axis] % windows.stride[axis]:
                end = windows.start(axis, window) + windows.kernel[axis]
                holds = e.logical_and(holds, e.lt(e.index(position - end), 0))
            found.append((window, holds))
        axes.append(found)
    total: Expr | None = None
    for row, in_row in axes[0]:
        for column, in_column in axes[1]:
            holds = e.logical_and(in_row, in_column)
            at = (*index[:-2], row, column)
            part = trace.masked(holds, lambda: element(at))  # noqa: B023  (called at once)
            part = e.where(holds, part, 0)
            total = part if total is None else e.add(total, part)
    assert total is not None
    return total


# -- Maxima -------------------------------------------------------------------------------------------------------


@lowering("max_pool2d_with_indices")
def max_pool(
    low: Lowering,
    node: Any,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """Values and positions within the plane: the first of equals, and the last NaN."""
    shape = node.spec[0].shape
    windows = _windows(x.shape, shape, kernel, stride, padding, dilation)
    if not x.dtype.is_floating_point:
        raise NotCovered("integer pooling")

    def best(trace: Trace, index: IndexTuple) -> tuple[Expr, Expr]:
        e = trace.e
        value: Expr | None = None
        place: Expr | None = None

        def step(row: Index, column: Index, inside: Expr) -> None:
            nonlocal value, place
            element = trace.masked(inside, lambda: trace.read(x, (*index[:-2], row, column)))
            # outside lies what is larger than nothing, so that no comparison needs to ask again
            element = e.where(inside, element, e.const(float("-inf"), element.dtype))
            here = e.index(row * windows.sizes[1] + column)
            if value is None or place is None:
                value = element
                place = here
                if inside.op != "const":
                    first = [windows.first_inside(e, k, index[k - 2]) for k in (0, 1)]
                    place = e.add(e.mul(first[0], e.size(windows.sizes[1])), first[1])
                return
            larger, unknown = e.gt(element, value), e.isnan(element)
            value = e.where(unknown, element, e.where(larger, element, value))  # as `pick_max`, and why
            place = e.where(e.logical_or(larger, unknown), here, place)

        _fold(trace, windows, index, step)
        assert value is not None and place is not None
        return value, place

    values = low.pointwise(shape, x.dtype, lambda trace, index: best(trace, index)[0])
    return values, low.pointwise(shape, INT, lambda trace, index: best(trace, index)[1], "indices")


@lowering("max_pool2d_with_indices_backward")
def max_pool_backward(
    low: Lowering,
    node: Any,
    grad: Value,
    x: Value,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Value,
) -> Value:
    shape = node.tensor.shape
    if low.scatters == "ordered" and type(shape[-1]) is int and grad.dtype.itemsize >= 4:

        def target(trace: Trace, index: IndexTuple) -> IndexTuple:
            place = of(trace.read(indices, index))
            return *index[:-2], place // shape[-1], place % shape[-1]

        return low.scatter(shape, grad, grad.shape, target)
    windows = _windows(x.shape, grad.shape, kernel, stride, padding, dilation)
    if windows.dilation != (1, 1):
        raise NotCovered("dilated windows")

    def body(trace: Trace, index: IndexTuple) -> Expr:
        e = trace.e
        here = e.index(index[-2] * windows.sizes[1] + index[-1])

        def element(at: IndexTuple) -> Expr:
            return e.where(e.eq(trace.read(indices, at), here), trace.read(grad, at), 0)

        return _gather(trace, windows, index, element, True)

    return low.pointwise(node.tensor.shape, node.tensor.dtype, body)


# -- Means --------------------------------------------------------------------------------------------------------


def _divisor(
    e: Any, windows: Windows, at: IndexTuple, dtype: torch.dtype, with_padding: bool, override: int | None
) -> Expr:
    """Over how many positions a window's mean is taken."""
    if override is not None:
        return e.const(override, dtype)
    result: Expr | None = None
    for axis in (0, 1):
        size, padding = windows.sizes[axis], windows.padding[axis]
        if windows.fits(axis) and (with_padding or padding == 0):
            length = e.const(windows.kernel[axis], INT)
        else:
            start = windows.start(axis, at[axis - 2])
            end = e.minimum(e.index(start + windows.kernel[axis]), e.size(size + padding))
            first = e.index(start)
            if not with_padding:
                first, end = e.maximum(first, 0), e.minimum(end, e.size(size))
            length = e.sub(end, first)
        result = length if result is None else e.mul(result, length)
    return e.cast(result, dtype)


def _mean_pool(
    low: Lowering, x: Value, shape: Sequence[Dim], windows: Windows, padded: bool, over: int | None
) -> Value:
    kind = compute_dtype(x.dtype)

    def body(trace: Trace, index: IndexTuple) -> Expr:
        e = trace.e
        total: Expr | None = None

        def step(row: Index, column: Index, inside: Expr) -> None:
            nonlocal total
            element = trace.masked(inside, lambda: trace.read(x, (*index[:-2], row, column)))
            element = e.where(inside, element, 0)
            total = element if total is None else e.add(total, element)

        _fold(trace, windows, index, step)
        return e.truediv(total, _divisor(e, windows, index, kind, padded, over))

    return low.pointwise(shape, x.dtype, body)


def _mean_pool_backward(
    low: Lowering, grad: Value, shape: Sequence[Dim], windows: Windows, padded: bool, over: int | None
) -> Value:
    kind = compute_dtype(grad.dtype)

    def body(trace: Trace, index: IndexTuple) -> Expr:
        def element(at: IndexTuple) -> Expr:
            return trace.e.truediv(trace.read(grad, at), _divisor(trace.e, windows, at, kind, padded, over))

        return _gather(trace, windows, index, element, False)

    return low.pointwise(shape, grad.dtype, body)


@lowering("avg_pool2d")
def avg_pool(
    low: Lowering,
    node: Any,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    shape = node.tensor.shape
    windows = _windows(x.shape, shape, kernel, stride, padding)
    return _mean_pool(low, _float(x), shape, windows, count_include_pad, divisor_override)


@lowering("avg_pool2d_backward")
def avg_pool_backward(
    low: Lowering,
    node: Any,
    grad: Value,
    x: Value,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    windows = _windows(x.shape, grad.shape, kernel, stride, padding)
    return _mean_pool_backward(low, _float(grad), node.tensor.shape, windows, count_include_pad, divisor_override)


def _even(shape: Sequence[Dim], counts: Sequence[Dim]) -> Windows:
    """The windows of an adaptive pooling whose result divides its input."""
    sizes = (*shape[-2:], *counts[-2:])
    if not all(type(s) is int and s > 0 for s in sizes) or sizes[0] % sizes[2] or sizes[1] % sizes[3]:
        raise NotCovered("windows of several sizes")
    kernel = (sizes[0] // sizes[2], sizes[1] // sizes[3])
    return _windows(shape, counts, kernel, kernel, 0)


@lowering("_adaptive_avg_pool2d")
def adaptive_avg_pool(low: Lowering, node: Any, x: Value, size: Any) -> Value:
    shape = node.tensor.shape
    return _mean_pool(low, _float(x), shape, _even(x.shape, shape), True, None)


@lowering("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool_backward(low: Lowering, node: Any, grad: Value, x: Value) -> Value:
    return _mean_pool_backward(low, _float(grad), node.tensor.shape, _even(x.shape, grad.shape), True, None)


def _float(x: Value) -> Value:
    if not x.dtype.is_floating_point:
        raise NotCovered("integer pooling")
    return x


# -- Nearest neighbours -------------------------------------------------------------------------------------------


def _factors(small: Sequence[Dim], large: Sequence[Dim], scales: Sequence[float | None]) -> tuple[int, int]:
    """By how much each of the last two axes grows, where eager's float32 arithmetic picks just those neighbours."""
    found = []
    for source, target, scale in zip(small[-2:], large[-2:], scales, strict=True):
        if type(source) is not int or type(target) is not int or target % source or isinstance(scale, Value):
            raise NotCovered("neighbours at a fractional distance")
        step = numpy.float32(1.0 / scale) if scale else numpy.float32(source) / numpy.float32(target)
        places = numpy.floor(numpy.arange(target, dtype=numpy.float32) * step).astype(numpy.int64)
        factor = target // source
        if not (numpy.minimum(places, source - 1) == numpy.arange(target) // factor).all():
            raise NotCovered("neighbours at a fractional distance")
        found.append(factor)
    return found[0], found[1]


def _scales(scales: Any) -> tuple[Any, Any]:
    return (None, None) if scales is None else (scales[0], scales[1])


def _nearest(low: Lowering, node: Any, x: Value, scales: tuple[Any, Any]) -> Value:
    factors = _factors(x.shape, node.tensor.shape, scales)

    def remap(index: IndexTuple) -> IndexTuple:
        return (*index[:-2], index[-2] // factors[0], index[-1] // factors[1])

    return low.copy(low.view(x, node.tensor.shape, remap))


@lowering("upsample_nearest2d")
def upsample_nearest(
    low: Lowering, node: Any, x: Value, size: Any, rows: float | None = None, columns: float | None = None
) -> Value:
    return _nearest(low, node, x, (rows, columns))


@lowering("upsample_nearest2d.vec")
def upsample_nearest_vec(low: Lowering, node: Any, x: Value, size: Any, scales: Any) -> Value:
    return _nearest(low, node, x, _scales(scales))


@lowering("upsample_nearest2d_backward")
def upsample_nearest_backward(
    low: Lowering,
    node: Any,
    grad: Value,
    size: Any,
    input_size: Any,
    rows: float | None = None,
    columns: float | None = None,
) -> Value:
    shape = node.tensor.shape
    factors = _factors(shape, grad.shape, (rows, columns))
    if factors[0] * factors[1] > LARGEST:
        raise NotCovered("windows of so many elements")

    def body(trace: Trace, index: IndexTuple) -> Expr:
        total: Expr | None = None
        for i in range(factors[0]):
            for j in range(factors[1]):
                at = (*index[:-2], index[-2] * factors[0] + i, index[-1] * factors[1] + j)
                part = trace.read(grad, at)
                total = part if total is None else trace.e.add(total, part)
        assert total is not None
        return total

    return low.pointwise(shape, grad.dtype, body)
