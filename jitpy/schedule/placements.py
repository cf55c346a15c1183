"""Ops that put elements somewhere: into a part of a tensor (each element of the result asks whether it is in that
part), or at places that index tensors name (additions)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ir.op import NotCovered
from ..ir.ops.layout import is_dense, normalize_dim
from ..ir.ops.parts import diagonal, slice_bounds
from ..ir.spec import Dim, contiguous_stride
from .expr import Expr, compute_dtype
from .index import Axis, flatten, of
from .lower import Lowering, lowering
from .lowerings import position, require_integers
from .values import IndexTuple, Pointwise, Probe, Trace, Value, base_of

# -- Parts --------------------------------------------------------------------------------------------------------


def _within(trace: Trace, part: Value, at: IndexTuple, inside: Expr, base: Value | None, index: IndexTuple) -> Expr:
    """The element of `part` where `inside` holds, else that of `base` (None: zero)."""
    element = trace.masked(inside, lambda: trace.read(part, at))
    rest = trace.e.const(0, element.dtype) if base is None else trace.read(base, index)
    return trace.e.where(inside, element, rest)


def _spread(low: Lowering, part: Value, shape: Sequence[Dim]) -> Value:
    """`part` in the shape of its place, to which eager broadcasts gradients."""
    if len(part.shape) > len(shape):
        raise NotCovered("a part that has more axes than its place")
    return low.expand(part, shape)


def _slice(
    low: Lowering, node: Any, part: Value, base: Value | None, dim: int, start: Any, end: Any, step: Any
) -> Value:
    shape = node.tensor.shape
    axis = normalize_dim(dim, len(shape))
    size = shape[axis]
    start = 0 if start is None else start
    if type(start) is not int or type(step) is not int:
        raise NotCovered("a slice known only at run time")
    _, count = slice_bounds(low.env, size, start, end, step)
    part = _spread(low, part, (*shape[:axis], count, *shape[axis + 1 :]))
    if start < 0:
        start = start + size
    if type(start) is int and type(size) is int:
        start = min(max(start, 0), size)

    def body(trace: Trace, index: IndexTuple) -> Expr:
        e = trace.e
        at = index[axis] - start
        place = e.index(at)
        inside = e.const(True, torch.bool)
        if not (type(start) is int and start == 0):
            inside = e.ge(place, 0)
        inside = e.logical_and(inside, e.lt(place, e.size(count * step)))
        if step != 1:
            inside = e.logical_and(inside, e.eq(e.index(at % step), 0))
        return _within(trace, part, (*index[:axis], at // step, *index[axis + 1 :]), inside, base, index)

    return low.pointwise(shape, node.tensor.dtype, body)


@lowering("slice_backward")
def slice_backward(
    low: Lowering, node: Any, grad: Value, sizes: Any, dim: int, start: Any, end: Any, step: Any
) -> Value:
    return _slice(low, node, grad, None, dim, start, end, step)


@lowering("slice_scatter")
def slice_scatter(
    low: Lowering, node: Any, x: Value, part: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Value:
    return _slice(low, node, low.convert(part, x.dtype), x, dim, start, end, step)


def _select(low: Lowering, node: Any, part: Value, base: Value | None, dim: int, number: Any) -> Value:
    shape = node.tensor.shape
    axis = normalize_dim(dim, len(shape))
    part = _spread(low, part, (*shape[:axis], *shape[axis + 1 :]))
    if type(number) is not int:
        raise NotCovered("a position known only at run time")
    chosen: Dim = number + shape[axis] if number < 0 else number

    def body(trace: Trace, index: IndexTuple) -> Expr:
        inside = trace.e.eq(trace.e.index(index[axis]), trace.e.size(chosen))
        return _within(trace, part, index[:axis] + index[axis + 1 :], inside, base, index)

    return low.pointwise(shape, node.tensor.dtype, body)


@lowering("select_backward")
def select_backward(low: Lowering, node: Any, grad: Value, sizes: Any, dim: int, index: Any) -> Value:
    return _select(low, node, grad, None, dim, index)


@lowering("select_scatter")
def select_scatter(low: Lowering, node: Any, x: Value, part: Value, dim: int, index: Any) -> Value:
    return _select(low, node, low.convert(part, x.dtype), x, dim, index)


def _diagonal(low: Lowering, node: Any, part: Value, base: Value | None, offset: int, dim1: int, dim2: int) -> Value:
    shape = node.tensor.shape
    first, second = normalize_dim(dim1, len(shape)), normalize_dim(dim2, len(shape))
    if type(offset) is not int:
        raise NotCovered("a diagonal known only at run time")
    part = _spread(low, part, diagonal(low.env, node.tensor, offset, first, second).shape)

    def body(trace: Trace, index: IndexTuple) -> Expr:
        e = trace.e
        inside = e.eq(e.index(index[second] - index[first]), offset)
        rest = tuple(i for k, i in enumerate(index) if k not in (first, second))
        return _within(trace, part, (*rest, index[first] if offset >= 0 else index[second]), inside, base, index)

    return low.pointwise(shape, node.tensor.dtype, body)


@lowering("diagonal_backward")
def diagonal_backward(
    low: Lowering, node: Any, grad: Value, sizes: Any, offset: int, dim1: int, dim2: int
) -> Value:
    return _diagonal(low, node, grad, None, offset, dim1, dim2)


@lowering("diagonal_scatter")
def diagonal_scatter(
    low: Lowering, node: Any, x: Value, part: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    return _diagonal(low, node, low.convert(part, x.dtype), x, offset, dim1, dim2)


# -- Additions at computed places ---------------------------------------------------------------------------------


#: Elements of a result from zeros, as many times those of the source, up to which sums of 16-bit numbers in float32 are
#: faster than eager's kernels that sort.
SORTED = 4
#: The same where neighbours do not stay neighbours, and eager's kernels add in 16 bits, two at a time.
SPREAD = 0.125


def _add_at(
    low: Lowering,
    node: Any,
    x: Value,
    source: Value,
    source_shape: Sequence[Dim],
    target: Callable[[Trace, IndexTuple], IndexTuple],
    is_sorted: bool = False,
) -> Value:
    """`x` with the elements of `source` added, one after the other where the device does so in order. Gradients start
    from zeros, which are not written first. `is_sorted`: eager's kernel on GPUs sorts the places, and adds numbers of
    16 bits in float32."""
    in_float32 = SORTED if is_sorted else 0 if _side_by_side(source_shape, target) else SPREAD
    base = base_of(x)
    probe = Probe(base) if isinstance(base, Pointwise) else None
    if probe is not None and not probe.reads and probe.result.op == "const" and probe.result.attr == 0:
        return low.scatter(x.shape, source, source_shape, target, in_float32=in_float32)
    if low.scatters == "ordered" or x.dtype.itemsize >= 4 or not in_float32:
        return low.scatter(x.shape, source, source_shape, target, start=_start(low, node, x))
    scattered = low.scatter(x.shape, source, source_shape, target, in_float32=min(1, in_float32))
    dtype = compute_dtype(x.dtype)
    return low.apply(lambda e, a, b: e.add(a, b), [x, scattered], x.shape, x.dtype, dtype)


def _start(low: Lowering, node: Any, x: Value) -> Value:
    """`x`, or a copy of it, in memory as the result is."""
    start, stride = x, node.tensor.stride
    if not is_dense(low.env, x.shape, stride):
        stride = contiguous_stride(x.shape)
    if x is not base_of(x) or x.stride != stride:
        start = low.copy(x)
        start.stride = stride
    return start


def _side_by_side(shape: Sequence[Dim], target: Callable[[Trace, IndexTuple], IndexTuple]) -> bool:
    """Whether neighbours of a source go to neighbours of the result."""

    class Dry(Trace):
        def resolve(self, value: Value, index: IndexTuple) -> Any:
            return self.e.load(value, flatten(index, contiguous_stride(value.shape)), compute_dtype(value.dtype))

    axes = [Axis(size) for size in shape]
    *others, last = target(Dry(), tuple(map(of, axes)))
    return last == of(axes[-1]) and not any(axes[-1] in index.all_axes() for index in others)


def _accumulates(x: Value, source: Value) -> None:
    if x.dtype is not source.dtype or not x.dtype.is_floating_point or not x.shape:
        raise NotCovered("accumulation in this dtype")


def _in_order(low: Lowering, x: Value) -> None:
    if low.scatters == "ordered" and x.dtype.itemsize < 4:
        raise NotCovered("eager adds numbers of 16 bits in float32, and rounds once")


@lowering("embedding_dense_backward")
def embedding_dense_backward(
    low: Lowering, node: Any, grad: Value, ids: Value, rows: Dim, padding: Any, scale_by_frequency: bool
) -> Value:
    require_integers(ids)
    if type(padding) is not int:
        raise NotCovered("a padding row known only at run time")
    counts: Value | None = None
    if scale_by_frequency:
        if grad.dtype not in (torch.float32, torch.float64):
            raise NotCovered("16-bit gradients scaled by frequency")

        def row(trace: Trace, index: IndexTuple) -> IndexTuple:
            return (position(trace, ids, index, rows),)

        ones = low.fill(ids.shape, grad.dtype, 1.0)
        counts = low.scatter((rows,), ones, ids.shape, row)

    def body(trace: Trace, index: IndexTuple) -> Expr:
        element = trace.read(grad, index)
        if counts is not None:
            count = trace.read(counts, (position(trace, ids, index[:-1], rows),))
            element = trace.e.mul(element, trace.e.truediv(1.0, count))
        if padding < 0:
            return element
        padded = trace.e.eq(trace.e.cast(trace.read(ids, index[:-1]), torch.int64), padding)
        return trace.e.where(padded, 0, element)

    def target(trace: Trace, index: IndexTuple) -> IndexTuple:
        return position(trace, ids, index[:-1], rows), index[-1]

    return low.scatter(node.tensor.shape, grad, grad.shape, target, body, in_float32=SORTED)


@lowering("index_add")
def index_add(low: Lowering, node: Any, x: Value, dim: int, ids: Value, source: Value, *, alpha: Any = 1) -> Value:
    require_integers(ids)
    _accumulates(x, source)
    _in_order(low, x)
    if len(ids.shape) != 1 or type(alpha) not in (int, float):
        raise NotCovered("an index_add of another form")
    axis = normalize_dim(dim, len(x.shape))
    if alpha != 1:
        if low.scatters == "ordered":
            raise NotCovered("eager rounds a scaled index_add once or twice, as it comes")
        source = low.apply(lambda e, s: e.mul(s, alpha), [source], source.shape, source.dtype, x.dtype)

    def target(trace: Trace, index: IndexTuple) -> IndexTuple:
        return *index[:axis], position(trace, ids, (index[axis],), x.shape[axis]), *index[axis + 1 :]

    return _add_at(low, node, x, source, source.shape, target)


@lowering("scatter_add")
def scatter_add(low: Lowering, node: Any, x: Value, dim: int, ids: Value, source: Value) -> Value:
    require_integers(ids)
    _accumulates(x, source)
    _in_order(low, x)
    if len(ids.shape) != len(x.shape) or len(source.shape) != len(x.shape):
        raise NotCovered("a 0-dim operand")
    axis = normalize_dim(dim, len(x.shape))

    def target(trace: Trace, index: IndexTuple) -> IndexTuple:
        return *index[:axis], position(trace, ids, index, x.shape[axis]), *index[axis + 1 :]

    return _add_at(low, node, x, source, ids.shape, target)


@lowering("index_put", "_unsafe_index_put")
def index_put(
    low: Lowering, node: Any, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False,
    wrap: bool = True,
) -> Value:
    """`wrap`: negative indices count from the end."""
    if accumulate:
        _accumulates(x, values)
    elif x.dtype is not values.dtype or x.dtype.is_complex or not x.shape:
        raise NotCovered("a write in this dtype")
    by_axis = {k: ids for k, ids in enumerate(indices) if ids is not None}
    given = list(by_axis)
    if not given:
        raise NotCovered("no indices")
    for ids in by_axis.values():
        require_integers(ids)
    block = _broadcast([ids.shape for ids in by_axis.values()])
    if not accumulate and any(type(size) is not int or size != 1 for size in block):
        raise NotCovered("which of several writes to one place stays is eager's to decide")
    together = given == list(range(given[0], given[-1] + 1))
    first = given[0] if together else 0
    others = tuple(size for k, size in enumerate(x.shape) if k not in given)
    shape = (*others[:first], *block, *others[first:])
    expanded = {k: low.expand(ids, block) for k, ids in by_axis.items()}
    source = low.expand(values, shape)

    def target(trace: Trace, index: IndexTuple) -> IndexTuple:
        at = index[first : first + len(block)]
        rest: Any = iter(index[:first] + index[first + len(block) :])
        return tuple(
            position(trace, expanded[k], at, x.shape[k], wrap=wrap) if k in expanded else next(rest)
            for k in range(len(x.shape))
        )

    if not accumulate:
        return low.scatter(x.shape, source, shape, target, start=_start(low, node, x), adds=False)
    return _add_at(low, node, x, source, shape, target, is_sorted=True)


@lowering("index_copy")
def index_copy(low: Lowering, node: Any, x: Value, dim: int, ids: Value, source: Value) -> Value:
    if len(ids.shape) != 1 or len(source.shape) != len(x.shape):
        raise NotCovered("an index_copy of another form")
    return index_put(low, node, x, [None] * normalize_dim(dim, len(x.shape)) + [ids], source, wrap=False)


def _broadcast(shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    """The common shape of shapes that are known to match."""
    result: list[Dim] = [1] * max(map(len, shapes))
    for shape in shapes:
        for k, size in enumerate(reversed(shape), 1):
            if not (type(size) is int and size == 1):
                result[-k] = size
    return tuple(result)


