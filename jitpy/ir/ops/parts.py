"""Parts of a tensor: views of some of its elements.

Ops with several results take the result's number as `output=` of their index maps (see `views.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..algebra import sympy
from ..op import NotCovered, Op
from ..sizes import SizeEnv, floordiv
from ..spec import Dim, TensorSpec
from .layout import is_static, less, normalize_dim
from .table import Invalid, declare, define
from .views import Index, natural, not_above, view, view_size

#: for questions about sizes that need no guards
_NOWHERE = SizeEnv()


def select(env: SizeEnv, x: TensorSpec, dim: int, index: Any) -> TensorSpec:
    axis = normalize_dim(dim, len(x.shape))
    if not x.shape:
        raise Invalid("a 0-dim tensor has no axis")
    position = _position(env, index, x.shape[axis])
    return view(
        x,
        x.shape[:axis] + x.shape[axis + 1 :],
        x.stride[:axis] + x.stride[axis + 1 :],
        x.offset + position * x.stride[axis],
    )


def _position(env: SizeEnv, index: Any, size: Dim) -> Dim:
    index = natural(env, view_size(index))
    if less(env, index, 0):
        index = index + size
    if not not_above(env, 0, index) or not not_above(env, index + 1, size):
        raise Invalid("index out of range")
    return index


def _select_index(index: Index, x: TensorSpec, dim: int, at: Any) -> tuple[Any, ...]:
    axis = normalize_dim(dim, len(x.shape))
    if type(at) is not int:
        raise NotCovered("symbolic index")
    return (*index[:axis], at + x.shape[axis] if at < 0 else at, *index[axis:])


define("aten.select.int", kind="view", infer=select, index=_select_index)


def slice_bounds(env: SizeEnv, size: Dim, start: Any, end: Any, step: Any) -> tuple[Dim, Dim]:
    """First position and number of elements of a slice, clamped as Python does."""
    if type(step) is not int or step < 1:
        raise Invalid("step")
    first = 0 if start is None else _clamped(env, view_size(start), size)
    last = size if end is None or type(end) is int and end >= sys.maxsize else _clamped(env, view_size(end), size)
    if first == 0 and last is size:
        count: Dim = size
    elif env.is_unbacked(first) or env.is_unbacked(last):
        count = last - first if env.known(sympy.Le(first, last)) else sympy.Max(last - first, 0)
    elif not less(env, first, last):
        return first, 0
    else:
        count = last - first
    return first, count if step == 1 else floordiv(count + (step - 1), step)


def _clamped(env: SizeEnv, position: Dim, size: Dim) -> Dim:
    if position is size or position == size:
        return size
    if env.is_unbacked(position) or env.is_unbacked(size):
        return _clamped_at_run_time(env, natural(env, position), size)
    if less(env, position, 0):
        position = position + size
        if less(env, position, 0):
            return 0
    return position if less(env, position, size) else size


def _clamped_at_run_time(env: SizeEnv, position: Dim, size: Dim) -> Dim:
    if type(position) is int and position < 0:
        position = position + size
        return position if env.known(sympy.Ge(position, 0)) else sympy.Max(position, 0)
    if env.known(sympy.Le(position, size)):
        return position
    return size if env.known(sympy.Ge(position, size)) else sympy.Min(position, size)


def slice_part(
    env: SizeEnv, x: TensorSpec, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> TensorSpec:
    if not x.shape:
        raise Invalid("a 0-dim tensor has no axis")
    axis = normalize_dim(dim, len(x.shape))
    first, count = slice_bounds(env, x.shape[axis], start, end, step)
    pace = x.stride[axis]
    return view(
        x,
        (*x.shape[:axis], count, *x.shape[axis + 1 :]),
        (*x.stride[:axis], pace * step, *x.stride[axis + 1 :]),
        x.offset + first * pace,
    )


def _slice_index(
    index: Index, x: TensorSpec, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> tuple[Any, ...]:
    axis = normalize_dim(dim, len(x.shape))
    first = 0 if start is None else start
    if type(first) is not int or type(x.shape[axis]) is not int and first < 0:
        if first is not start or type(first) is int:
            raise NotCovered("symbolic start")
    if type(first) is int and type(x.shape[axis]) is int:
        first, _ = slice_bounds(_NOWHERE, x.shape[axis], first, None, 1)
    position = index[axis] if type(step) is int and step == 1 else index[axis] * step
    return (*index[:axis], position if type(first) is int and first == 0 else position + first, *index[axis + 1 :])


define("aten.slice.Tensor", kind="view", infer=slice_part, index=_slice_index)


def _narrow(env: SizeEnv, x: TensorSpec, dim: int, start: Any, length: Any) -> TensorSpec:
    axis = normalize_dim(dim, len(x.shape))
    if not x.shape or type(start) is TensorSpec:
        raise NotCovered("narrow")
    size, length, start = x.shape[axis], natural(env, view_size(length)), natural(env, view_size(start))
    if less(env, start, 0):
        start = start + size
    if not (not_above(env, 0, start) and not_above(env, 0, length) and not_above(env, start + length, size)):
        raise Invalid("narrow out of range")
    return view(x, (*x.shape[:axis], length, *x.shape[axis + 1 :]), x.stride, x.offset + start * x.stride[axis])


define(
    "aten.narrow.default",
    kind="view",
    infer=_narrow,
    index=lambda index, x, dim, start, length: _slice_index(index, x, dim, start),
)


#: Ops of parts -> where their arguments say the tensor's sizes (a node or a list), the axis and the first position.
PARTS = {
    "aten.slice.Tensor": (0, 1, 2),
    "aten.narrow.default": (0, 1, 2),
    "aten.slice_scatter.default": (0, 2, 3),
    "aten.slice_backward.default": (1, 2, 3),
}


def with_first_position(
    env: SizeEnv, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a part of a symbolic size, with the position that it begins at from the front and in range: what
    lowers the node does not know what the sizes of the program said about that."""
    places = PARTS[op.name]
    whole, dim, start = (
        args[place] if place < len(args) else kwargs.get(name)
        for place, name in zip(places, ("self", "dim", "start"), strict=True)
    )
    shape = whole if isinstance(whole, (list, tuple)) else whole.tensor.shape  # type: ignore[union-attr]
    size = shape[normalize_dim(dim or 0, len(shape))]
    if start is None or type(start) is int and (start == 0 or type(size) is int):
        return args, kwargs
    if type(start) is not int and not isinstance(start, sympy.Expr):
        return args, kwargs
    first = _clamped(env, start, size)
    if places[2] < len(args):
        return (*args[: places[2]], first, *args[places[2] + 1 :]), kwargs
    return args, {**kwargs, "start": first}


def _pieces(env: SizeEnv, x: TensorSpec, dim: int, sizes: Sequence[Any]) -> tuple[TensorSpec, ...]:
    axis = normalize_dim(dim, len(x.shape))
    if not x.shape:
        raise Invalid("a 0-dim tensor has no axis")
    if not env.equal(sum(view_size(s) for s in sizes), x.shape[axis], "split"):
        raise Invalid("split sizes")
    start: Dim = 0
    result = []
    for size in sizes:
        if not not_above(env, 0, size):
            raise Invalid("split sizes")
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        result.append(view(x, shape, x.stride, x.offset + start * x.stride[axis]))
        start = start + size
    return tuple(result)


def _split_sizes(env: SizeEnv, size: Dim, piece: Any) -> list[Dim]:
    """The sizes of pieces of `piece` elements, the last one maybe smaller. The number of pieces must be known."""
    size = (
        env.specialize(size, "the number of pieces of a split")
        if type(size) is not int and type(piece) is int
        else size
    )
    if type(size) is not int and type(piece) is not int:
        count = env.specialize(floordiv(size + piece - 1, piece), "the number of pieces of a split")
        return [piece] * (count - 1) + [size - piece * (count - 1)]
    if type(piece) is not int or piece <= 0:
        raise Invalid("split size")
    count = max((size + piece - 1) // piece, 1)
    return [piece] * (count - 1) + [size - piece * (count - 1)]


def _split(env: SizeEnv, x: TensorSpec, size: Any, dim: int = 0) -> tuple[TensorSpec, ...]:
    if not x.shape:
        raise Invalid("a 0-dim tensor has no axis")
    return _pieces(env, x, dim, _split_sizes(env, x.shape[normalize_dim(dim, len(x.shape))], size))


def _split_with_sizes(env: SizeEnv, x: TensorSpec, sizes: Sequence[Any], dim: int = 0) -> tuple[TensorSpec, ...]:
    return _pieces(env, x, dim, sizes)


def _chunk(env: SizeEnv, x: TensorSpec, chunks: int, dim: int = 0) -> tuple[TensorSpec, ...]:
    if not x.shape or type(chunks) is not int or chunks < 1:
        raise Invalid("chunk")
    size = x.shape[normalize_dim(dim, len(x.shape))]
    if type(size) is int and size == 0:
        raise NotCovered("chunks of nothing")
    return _split(env, x, _chunk_size(size, chunks), dim)


def _chunk_size(size: Dim, chunks: int) -> Dim:
    return floordiv(size + chunks - 1, chunks)


def _unbind(env: SizeEnv, x: TensorSpec, dim: int = 0) -> tuple[TensorSpec, ...]:
    axis = normalize_dim(dim, len(x.shape))
    if not x.shape:
        raise Invalid("a 0-dim tensor has no axis")
    return tuple(select(env, x, axis, i) for i in range(env.specialize(x.shape[axis], "unbind")))


def _piece_index(start_of: Callable[[Dim, Any, int], Dim]) -> Callable[..., tuple[Any, ...]]:
    """The index map of pieces; `start_of(size, what, output)` says where piece number `output` starts."""

    def index_map(index: Index, x: TensorSpec, what: Any, dim: int = 0, *, output: int) -> tuple[Any, ...]:
        axis = normalize_dim(dim, len(x.shape))
        start = start_of(x.shape[axis], what, output)
        return (*index[:axis], index[axis] + start if start != 0 else index[axis], *index[axis + 1 :])

    return index_map


define("aten.split.Tensor", kind="view", infer=_split, index=_piece_index(lambda size, piece, output: piece * output))
define(
    "aten.split.sizes",
    "aten.split_with_sizes.default",
    kind="view",
    infer=_split_with_sizes,
    index=_piece_index(lambda size, pieces, output: sum(pieces[:output])),
)
define("aten.chunk.default", kind="view", infer=_chunk, index=_piece_index(
    lambda size, chunks, output: _chunk_size(size, chunks) * output))
define(
    "aten.unbind.int",
    kind="view",
    infer=_unbind,
    index=lambda index, x, dim=0, *, output: _select_index(index, x, dim, output),
)


def diagonal(env: SizeEnv, x: TensorSpec, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> TensorSpec:
    ndim = len(x.shape)
    a, b = normalize_dim(dim1, ndim), normalize_dim(dim2, ndim)
    if a == b or ndim < 2 or type(offset) is not int or not is_static(x.shape):
        raise NotCovered("diagonal")
    rows, columns = x.shape[a], x.shape[b]
    count = max(min(rows, columns - offset), 0) if offset >= 0 else max(min(rows + offset, columns), 0)
    start: Dim = 0
    if count:
        start = offset * x.stride[b] if offset >= 0 else -offset * x.stride[a]
    keep = [i for i in range(ndim) if i not in (a, b)]
    return view(
        x,
        (*(x.shape[i] for i in keep), count),
        (*(x.stride[i] for i in keep), x.stride[a] + x.stride[b]),
        x.offset + start,
    )


def _diagonal_index(index: Index, x: TensorSpec, offset: int = 0, dim1: int = 0, dim2: int = 1) -> tuple[Any, ...]:
    ndim = len(x.shape)
    a, b = normalize_dim(dim1, ndim), normalize_dim(dim2, ndim)
    rest = iter(index[:-1])
    along = index[-1]
    return tuple(
        along + max(-offset, 0) if i == a else along + max(offset, 0) if i == b else next(rest) for i in range(ndim)
    )


define("aten.diagonal.default", kind="view", infer=diagonal, index=_diagonal_index)


def _unfold_index(index: Index, x: TensorSpec, dim: int, size: int, step: int) -> tuple[Any, ...]:
    axis = normalize_dim(dim, len(x.shape))
    return (*index[:axis], index[axis] * step + index[-1], *index[axis + 1 : -1])


define("aten.unfold.default", kind="view", index=_unfold_index)


declare("unbind.int", "split.Tensor", "split.sizes", "split_with_sizes.default", "chunk.default",
        "tensor_split.sections", "tensor_split.indices", is_split=True)
