"""Views: every op that only renames indices. Nothing is computed or moved for them inside a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.op import NotCovered
from ...ir.spec import Dim
from ..index import ZERO, Index, of
from ..lower import Lowering, lowering
from ..values import Value
from .pointwise import number


def axis_of(dim: Any, ndim: int) -> int:
    """A non-negative axis."""
    if not isinstance(dim, int):
        raise NotCovered("axis")
    return dim + max(ndim, 1) if dim < 0 else dim


@lowering("view", "reshape", "_unsafe_view", "_reshape_alias", "flatten.using_ints", "unflatten.int", "view_as",
          "reshape_as", "ravel", "_reshape_copy", "view_copy")
def reshape(low: Lowering, node: Any, x: Value, *args: Any, **kwargs: Any) -> Value:
    if node.tensor.dtype is not x.dtype:
        raise NotCovered("view as another dtype")
    return low.reshape(x, node.tensor.shape)


@lowering("unsqueeze")
def unsqueeze(low: Lowering, node: Any, x: Value, dim: int) -> Value:
    return low.unsqueeze(x, axis_of(dim, len(x.shape) + 1))


@lowering("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(low: Lowering, node: Any, x: Value, dim: Any = None) -> Value:
    wanted = low.dims(dim, len(x.shape))
    return low.squeeze(x, [d for d in wanted if type(x.shape[d]) is int and x.shape[d] == 1])


@lowering("permute")
def permute(low: Lowering, node: Any, x: Value, dims: Sequence[int]) -> Value:
    return low.permute(x, [axis_of(d, len(x.shape)) for d in dims])


@lowering("transpose.int", "swapaxes", "swapdims")
def transpose(low: Lowering, node: Any, x: Value, a: int, b: int) -> Value:
    if not x.shape:
        return low.view(x, (), lambda index: index)
    order = list(range(len(x.shape)))
    a, b = axis_of(a, len(order)), axis_of(b, len(order))
    order[a], order[b] = order[b], order[a]
    return low.permute(x, order)


@lowering("t", "numpy_T", "mT")
def t(low: Lowering, node: Any, x: Value) -> Value:
    order = list(range(len(x.shape)))
    if node.op.name == "aten.numpy_T.default":
        order.reverse()
    elif len(order) >= 2:
        order[-1], order[-2] = order[-2], order[-1]
    return low.permute(x, order)


@lowering("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def movedim(low: Lowering, node: Any, x: Value, source: Any, destination: Any) -> Value:
    ndim = len(x.shape)
    sources, targets = low.dims(source, ndim), low.dims(destination, ndim)
    order: list[int | None] = [None] * ndim
    for a, b in zip(sources, targets):
        order[b] = a
    rest = iter(k for k in range(ndim) if k not in sources)
    return low.permute(x, [next(rest) if k is None else k for k in order])


@lowering("expand", "broadcast_to", "expand_as")
def expand(low: Lowering, node: Any, x: Value, *args: Any, **kwargs: Any) -> Value:
    return low.expand(x, node.tensor.shape)


@lowering("select.int")
def select(low: Lowering, node: Any, x: Value, dim: int, at: Any) -> Value:
    number(at, "index")
    axis = axis_of(dim, len(x.shape))
    if isinstance(at, int) and at < 0:
        at = at + x.shape[axis]
    return low.select(x, axis, at)


@lowering("slice.Tensor", "slice_copy.Tensor")
def slice_(low: Lowering, node: Any, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    number(start, "start"), number(step, "step")
    axis = axis_of(dim, len(x.shape))
    return low.slice(x, axis, clamp_start(low, start, x.shape[axis]), node.tensor.shape[axis], step)


def clamp_start(low: Lowering, start: Any, size: Dim) -> Dim:
    """A slice's first element, as Python's slices count. Where that depends on the sizes, they were guarded in capture."""
    if start is None:
        return 0
    if isinstance(start, int) and isinstance(size, int):
        return max(0, min(start + size if start < 0 else start, size))
    value, limit = low.hint(start), low.hint(size)
    if value < 0:
        return start + size if value + limit >= 0 else 0
    return size if value > limit else start


@lowering("narrow")
def narrow(low: Lowering, node: Any, x: Value, dim: int, start: Any, length: Any) -> Value:
    number(start, "start"), number(length, "length")
    if low.hint(start) < 0:
        start = start + x.shape[axis_of(dim, len(x.shape))]
    return low.slice(x, axis_of(dim, len(x.shape)), start, length)


@lowering("split.Tensor", "split.sizes", "split_with_sizes", "chunk", "tensor_split.sections", "unsafe_split.Tensor",
          "unsafe_chunk", "unsafe_split_with_sizes", "hsplit.int", "split_with_sizes_copy", "split_copy.Tensor")
def split(low: Lowering, node: Any, x: Value, sizes: Any, dim: int = 0) -> tuple[Value, ...]:
    axis = axis_of(dim, len(x.shape))
    if node.op.name.startswith("aten.hsplit"):
        axis = 0 if len(x.shape) == 1 else 1
    parts, start = [], 0
    for spec in node.spec:
        size = spec.shape[axis]
        parts.append(low.slice(x, axis, start, size))
        start = start + size
    return tuple(parts)


@lowering("unbind.int", "unbind_copy.int")
def unbind(low: Lowering, node: Any, x: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = axis_of(dim, len(x.shape))
    return tuple(low.select(x, axis, k) for k in range(len(node.spec)))


@lowering("diagonal")
def diagonal(low: Lowering, node: Any, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    a, b = axis_of(dim1, len(x.shape)), axis_of(dim2, len(x.shape))
    number(offset, "offset")

    def remap(index: tuple[Index, ...]) -> tuple[Index, ...]:
        rest, along = iter(index[:-1]), index[-1]
        return tuple(along + max(-offset, 0) if k == a else along + max(offset, 0) if k == b else next(rest)
                     for k in range(len(x.shape)))

    return low.view(x, node.tensor.shape, remap)


@lowering("unfold")
def unfold(low: Lowering, node: Any, x: Value, dim: int, size: int, step: int) -> Value:
    axis = axis_of(dim, len(x.shape))
    if not x.shape:
        raise NotCovered("unfold of a 0-dim tensor")
    return low.view(x, node.tensor.shape,
                    lambda index: (*index[:axis], index[axis] * step + index[-1], *index[axis + 1:-1]))


# copies in eager, renamed indices here

@lowering("flip", "fliplr", "flipud")
def flip(low: Lowering, node: Any, x: Value, dims: Any = None) -> Value:
    name = node.op.name
    axes = (1,) if "fliplr" in name else (0,) if "flipud" in name else low.dims(tuple(dims), len(x.shape)) if dims else ()
    return low.copy(low.view(x, x.shape, lambda index: tuple(
        of(x.shape[k] - 1) - i if k in axes else i for k, i in enumerate(index))))


@lowering("repeat", "tile")
def repeat(low: Lowering, node: Any, x: Value, repeats: Sequence[Any]) -> Value:
    shape = node.tensor.shape
    lead = len(shape) - len(x.shape)

    def remap(index: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(index[lead + k] % x.shape[k] if not x.shape[k] == 1 else ZERO for k in range(len(x.shape)))

    return low.copy(low.view(x, shape, remap))


@lowering("repeat_interleave.self_int")
def repeat_interleave(low: Lowering, node: Any, x: Value, repeats: Any, dim: Any = None, *, output_size: Any = None) -> Value:
    number(repeats, "repeats")
    if dim is None:
        x, dim = low.reshape(x, (x.numel,)), 0
    axis = axis_of(dim, len(x.shape))
    return low.copy(low.view(x, node.tensor.shape, lambda index: (*index[:axis], index[axis] // repeats, *index[axis + 1:])))


@lowering("roll")
def roll(low: Lowering, node: Any, x: Value, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Value:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    if not all(isinstance(s, int) for s in (*shifts, *x.shape)):
        raise NotCovered("roll of symbolic sizes")
    if not dims:
        return low.copy(low.reshape(_rolled(low, low.reshape(x, (x.numel,)), 0, shifts[0]), x.shape))
    for shift, dim in zip(shifts, low.dims(tuple(dims), len(x.shape))):
        x = _rolled(low, x, dim, shift)
    return low.copy(x)


def _rolled(low: Lowering, x: Value, dim: int, shift: int) -> Value:
    size = x.shape[dim]
    return low.view(x, x.shape, lambda index: (
        *index[:dim], (index[dim] + (size - shift) % size) % size, *index[dim + 1:]))


