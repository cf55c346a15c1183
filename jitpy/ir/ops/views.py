"""Views: results that share their input's memory, and the reshapes that sometimes do.

`Op.index(index, x, *args)` maps an index of the result to the index of the same element in the input `x` (a
spec); indices are whatever supports `+ - * // %` (ints, sympy, the schedule's own). Ops with several results take the
result's number as `output=`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..algebra import sympy
from ..op import NotCovered, Op
from ..sizes import SizeEnv, floordiv, simplify
from ..spec import Dim, TensorSpec, contiguous_stride, prod
from .layout import Shape, format_stride, has_format, is_static, less, normalize_dim, theorem
from .table import Invalid, declare, define

Index = Sequence[Any]


def view(x: TensorSpec, shape: Shape, stride: Shape, offset: Dim | None = None) -> TensorSpec:
    """A view of `x`."""
    return TensorSpec(x.dtype, shape, stride, x.device, False, x.offset if offset is None else simplify(offset))


def view_size(value: Any) -> Dim:
    if type(value) is int or isinstance(value, sympy.Expr):
        return value
    raise NotCovered(f"size {value!r}")


def _natural(env: SizeEnv, size: Dim) -> Dim:
    """A size that data decides must not be negative, not even the -1 that asks for one."""
    if env.is_unbacked(size) and not env.require(sympy.Ge(size, 0), "a size"):
        raise Invalid("a negative size")
    return size


def _not_above(env: SizeEnv, a: Dim, b: Dim) -> bool:
    """Whether a <= b, as it must be lest eager raise."""
    if env.is_unbacked(a) or env.is_unbacked(b):
        return env.require(sympy.Le(a, b), "bounds of a part")
    return not less(env, b, a)


# -- Reshapes -----------------------------------------------------------------------------------------------------


def resolve_shape(env: SizeEnv, numel: Dim, shape: Sequence[Any]) -> Shape:
    """The requested shape with -1 filled in. NotCovered where the number of elements does not match."""
    sizes = [_natural(env, view_size(s)) for s in shape]
    unknown = [i for i, s in enumerate(sizes) if type(s) is int and s == -1]
    if len(unknown) > 1 or any(type(s) is int and s < -1 for s in sizes):
        raise Invalid("shape")
    if unknown:
        known = prod(tuple(s for i, s in enumerate(sizes) if i != unknown[0]))
        if type(known) is int and known == 0:
            raise Invalid("-1 next to a size of 0")
        if env.is_unbacked(known) and not env.require(sympy.Gt(known, 0), "-1 in a shape"):
            raise Invalid("-1 next to a size of 0")
        sizes[unknown[0]] = floordiv(numel, known)
    if not env.equal(prod(tuple(sizes)), numel, "a reshape"):
        raise Invalid("the number of elements differs")
    return tuple(sizes)


def _has_room(env: SizeEnv, taken: Dim, have: Dim) -> bool:
    """Whether a run of axes has more elements than were assigned. The rest of a size that depends on data is taken
    for larger than 1, which the graph checks: with 0 or 1 eager finds views, and strides, where there are none else."""
    if env.is_unbacked(taken) or env.is_unbacked(have):
        left, over = sympy.fraction(sympy.sympify(have) / taken)
        if over == 1 and env.is_unbacked(left):
            return env.require(sympy.Gt(left, 1), "a view")
    return less(env, taken, have)


def _as_many(env: SizeEnv, a: Dim, b: Dim) -> bool:
    """Whether two numbers of elements are equal; also where only their quotient tells."""
    if type(a) is int and type(b) is int or a == b:
        return a == b
    return theorem(env, sympy.Ne(a, b)) is not True and env.equal(a, b, "a view")


def view_stride(env: SizeEnv, x: TensorSpec, shape: Shape) -> Shape | None:
    """The strides with which `shape` views x's memory; None where only a copy will do."""
    old, stride = x.shape, x.stride
    if not old:
        return (1,) * len(shape)
    if shape == old and (1 not in shape or 0 in shape):
        return stride  # axes of size 1 get new strides even so
    if any(type(s) is int and s == 0 for s in old):
        return contiguous_stride(shape)
    if not (is_static(shape) and is_static(old)) and stride == contiguous_stride(old):
        return contiguous_stride(shape)
    result: list[Dim] = [0] * len(shape)
    position = len(shape) - 1
    base = stride[-1]
    have: Dim = 1  # elements of the present run of axes that lie evenly in memory
    taken: Dim = 1  # elements of the new axes assigned to that run
    for axis in range(len(old) - 1, -1, -1):
        have = have * old[axis]
        if axis and (old[axis - 1] == 1 or _as_many(env, stride[axis - 1], have * base)):
            continue
        while position >= 0 and (shape[position] == 1 or _has_room(env, taken, have)):
            result[position] = taken * base
            taken = taken * shape[position]
            position -= 1
        if not _as_many(env, taken, have):
            return None
        if axis:
            base, have, taken = stride[axis - 1], 1, 1
    return tuple(result) if position == -1 else None


def _view(env: SizeEnv, x: TensorSpec, shape: Sequence[Any]) -> TensorSpec:
    sizes = resolve_shape(env, x.numel, shape)
    stride = view_stride(env, x, sizes)
    if stride is None:
        raise Invalid("strides do not allow this view")
    return view(x, sizes, stride)


def _reshape(env: SizeEnv, x: TensorSpec, shape: Sequence[Any]) -> TensorSpec:
    sizes = resolve_shape(env, x.numel, shape)
    stride = view_stride(env, x, sizes)
    if stride is None:
        return TensorSpec(x.dtype, sizes, contiguous_stride(sizes), x.device)
    return view(x, sizes, stride)


def reshape_index(index: Index, old: Shape, new: Shape) -> tuple[Any, ...]:
    """The index into `old` of the element at `index` of `new`, axis groups of equal size mapped one by one."""
    result: list[Any] = [0] * len(old)
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [], []
        have: Dim = 1
        want: Dim = 1
        if i < len(old):
            olds.append(i)
            have, i = old[i], i + 1
        if j < len(new):
            news.append(j)
            want, j = new[j], j + 1
        while have != want and (i < len(old) or j < len(new)):
            grow_old = i < len(old) and (j >= len(new) or _is_smaller(have, want))
            if grow_old:
                olds.append(i)
                have, i = have * old[i], i + 1
            else:
                news.append(j)
                want, j = want * new[j], j + 1
        _map_group(result, index, olds, news, old, new)
    return tuple(result)


def _is_smaller(have: Dim, want: Dim) -> bool:
    """Whether `want` has factors that `have` lacks."""
    if type(have) is int and type(want) is int:
        return have < want
    quotient = sympy.cancel(sympy.sympify(want) / have)
    return quotient > 1 if quotient.is_number else quotient.is_polynomial()


def _map_group(result: list[Any], index: Index, olds: list[int], news: list[int], old: Shape, new: Shape) -> None:
    olds = [a for a in olds if old[a] != 1]
    news = [a for a in news if new[a] != 1]
    if len(olds) == 1 and len(news) == 1:
        result[olds[0]] = index[news[0]]
        return
    flat: Any = index[news[0]] if news else 0
    for axis in news[1:]:
        flat = flat * new[axis] + index[axis]
    rest: Dim = 1
    for position in range(len(olds) - 1, -1, -1):
        axis = olds[position]
        quotient = flat if rest == 1 else flat // rest
        result[axis] = quotient if position == 0 else quotient % old[axis]
        rest = rest * old[axis]


def _flattened(env: SizeEnv, x: TensorSpec, start: int = 0, end: int = -1) -> Shape | None:
    """The shape of `flatten`; None where it returns its input."""
    ndim = len(x.shape)
    first, last = normalize_dim(start, ndim), normalize_dim(end, ndim)
    if first > last:
        raise Invalid("start after end")
    if not ndim:
        return (1,)
    if first == last:
        return None
    return (*x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :])


def _flatten(env: SizeEnv, x: TensorSpec, start: int = 0, end: int = -1) -> TensorSpec:
    shape = _flattened(env, x, start, end)
    return x if shape is None else _reshape(env, x, shape)


def _unflattened(env: SizeEnv, x: TensorSpec, dim: int, sizes: Sequence[Any]) -> Shape:
    axis = normalize_dim(dim, len(x.shape))
    if not x.shape or not sizes:
        raise NotCovered("unflatten")
    return (*x.shape[:axis], *resolve_shape(env, x.shape[axis], sizes), *x.shape[axis + 1 :])


def _reshape_aliasing(shape_of: Callable[..., Any]) -> Callable[..., str]:
    def aliasing(env: SizeEnv, x: TensorSpec, *args: Any, **kwargs: Any) -> str:
        shape = shape_of(env, x, *args, **kwargs)
        if shape is None:
            return "self"
        return "copy" if view_stride(env, x, resolve_shape(env, x.numel, shape)) is None else "view"

    return aliasing


_NOWHERE = SizeEnv()


def _reshape_map(shape_of: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    def index_map(index: Index, x: TensorSpec, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        shape = shape_of(_NOWHERE, x, *args, **kwargs)
        if shape is None:
            return tuple(index)
        return reshape_index(index, x.shape, resolve_shape(_NOWHERE, x.numel, shape))

    return index_map


def _given(env: SizeEnv, x: TensorSpec, shape: Sequence[Any]) -> Sequence[Any]:
    return shape


def _others(env: SizeEnv, x: TensorSpec, other: TensorSpec) -> Shape:
    return other.shape


define("aten.view.default", "aten._unsafe_view.default", kind="view", infer=_view, index=_reshape_map(_given))
define(
    "aten.view_as.default",
    kind="view",
    infer=lambda env, x, other: _view(env, x, other.shape),
    index=_reshape_map(_others),
)
define(
    "aten.reshape.default", kind="view", infer=_reshape, aliasing=_reshape_aliasing(_given), index=_reshape_map(_given)
)
define(
    "aten.reshape_as.default",
    kind="view",
    infer=lambda env, x, other: _reshape(env, x, other.shape),
    aliasing=_reshape_aliasing(_others),
    index=_reshape_map(_others),
)
define(
    "aten.flatten.using_ints",
    kind="view",
    infer=_flatten,
    aliasing=_reshape_aliasing(_flattened),
    index=_reshape_map(_flattened),
)


def _ravel(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    if has_format(env, x, torch.contiguous_format):
        return _view(env, x, (-1,))
    return TensorSpec(x.dtype, (x.numel,), (1,), x.device)


define(
    "aten.ravel.default",
    kind="view",
    infer=_ravel,
    aliasing=lambda env, x: "view" if has_format(env, x, torch.contiguous_format) else "copy",
    index=lambda index, x: reshape_index(index, x.shape, (x.numel,)),
)
define(
    "aten.unflatten.int",
    kind="view",
    infer=lambda env, x, dim, sizes: _view(env, x, _unflattened(env, x, dim, sizes)),
    index=_reshape_map(_unflattened),
)


# -- Axes of size 1 -----------------------------------------------------------------------------------------------


def _unsqueeze(env: SizeEnv, x: TensorSpec, dim: int) -> TensorSpec:
    axis = normalize_dim(dim, len(x.shape) + 1)
    step = 1 if axis == len(x.shape) else x.shape[axis] * x.stride[axis]
    return view(x, (*x.shape[:axis], 1, *x.shape[axis:]), (*x.stride[:axis], step, *x.stride[axis:]))


def _unsqueeze_index(index: Index, x: TensorSpec, dim: int) -> tuple[Any, ...]:
    axis = normalize_dim(dim, len(x.shape) + 1)
    return (*index[:axis], *index[axis + 1 :])


define("aten.unsqueeze.default", kind="view", infer=_unsqueeze, index=_unsqueeze_index)


def _squeezed(env: SizeEnv, x: TensorSpec, dims: Any) -> list[int]:
    """The axes that `squeeze` removes."""
    ndim = len(x.shape)
    if dims is None:
        axes = list(range(ndim))
    else:
        axes = [normalize_dim(d, ndim) for d in (dims if isinstance(dims, (tuple, list)) else (dims,))]
        if len(set(axes)) != len(axes):
            raise Invalid("an axis appears twice")
    return [a for a in axes if ndim and env.equal(x.shape[a], 1, "squeeze")]


def _squeeze(env: SizeEnv, x: TensorSpec, dims: Any = None) -> TensorSpec:
    gone = _squeezed(env, x, dims)
    keep = [a for a in range(len(x.shape)) if a not in gone]
    return view(x, tuple(x.shape[a] for a in keep), tuple(x.stride[a] for a in keep))


def _squeeze_index(index: Index, x: TensorSpec, dims: Any = None) -> tuple[Any, ...]:
    candidates, count = _squeeze_candidates(x, dims), len(x.shape) - len(index)
    gone = [a for a in candidates if x.shape[a] == 1]
    if len(gone) != count:  # a symbolic size that a fact of the environment says is 1
        gone = candidates
    if len(gone) != count:
        return ()  # which axes are gone is not in the shapes: no index
    rest = iter(index)
    return tuple(0 if a in gone else next(rest) for a in range(len(x.shape)))


def _squeeze_candidates(x: TensorSpec, dims: Any) -> list[int]:
    if dims is None:
        return list(range(len(x.shape)))
    return [normalize_dim(d, len(x.shape)) for d in (dims if isinstance(dims, (tuple, list)) else (dims,))]


define(
    "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", kind="view", infer=_squeeze, index=_squeeze_index
)


# -- Permutations -------------------------------------------------------------------------------------------------


def _permuted(x: TensorSpec, order: Sequence[int]) -> TensorSpec:
    return view(x, tuple(x.shape[a] for a in order), tuple(x.stride[a] for a in order))


def _permutation(name: str | tuple[str, ...], order_of: Callable[..., Sequence[int]]) -> None:
    """A view that reorders axes: `order_of(ndim, *args)` lists the input's axes in the result's order."""

    def infer(env: SizeEnv, x: TensorSpec, *args: Any) -> TensorSpec:
        return _permuted(x, order_of(len(x.shape), *args))

    def index_map(index: Index, x: TensorSpec, *args: Any) -> tuple[Any, ...]:
        result: list[Any] = [0] * len(x.shape)
        for position, axis in enumerate(order_of(len(x.shape), *args)):
            result[axis] = index[position]
        return tuple(result)

    names = (name,) if isinstance(name, str) else name
    define(*names, kind="view", infer=infer, index=index_map, order=order_of)


def _given_order(ndim: int, dims: Sequence[Any]) -> list[int]:
    order = [normalize_dim(d, ndim) for d in dims]
    if sorted(order) != list(range(ndim)):
        raise Invalid("no permutation")
    return order


def _swapped(ndim: int, first: Any, second: Any) -> list[int]:
    order = list(range(ndim))
    a, b = normalize_dim(first, ndim), normalize_dim(second, ndim)
    if ndim:
        order[a], order[b] = b, a
    return order


def _matrix_transposed(ndim: int) -> list[int]:
    if ndim > 2:
        raise Invalid("t() takes at most two axes")
    return list(range(ndim - 1, -1, -1))


def _last_two(ndim: int) -> list[int]:
    if ndim < 2:
        raise Invalid("mT needs two axes")
    return _swapped(ndim, -2, -1)


def _reversed(ndim: int) -> list[int]:
    if ndim not in (0, 2):
        raise NotCovered("deprecated .T")
    return list(range(ndim - 1, -1, -1))


def _moved(ndim: int, source: Any, destination: Any) -> list[int]:
    sources = [normalize_dim(d, ndim) for d in (source if isinstance(source, (tuple, list)) else (source,))]
    targets = [
        normalize_dim(d, ndim) for d in (destination if isinstance(destination, (tuple, list)) else (destination,))
    ]
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise Invalid("axes")
    if not ndim:
        return []
    fixed = dict(zip(targets, sources, strict=True))
    rest = iter(a for a in range(ndim) if a not in sources)
    return [fixed[p] if p in fixed else next(rest) for p in range(ndim)]


_permutation("aten.permute.default", _given_order)
_permutation(("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default"), _swapped)
_permutation("aten.t.default", _matrix_transposed)
_permutation("aten.numpy_T.default", _reversed)
_permutation("aten.mT.default", _last_two)
_permutation(("aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist"), _moved)


# -- Broadcasting -------------------------------------------------------------------------------------------------


def _expand(env: SizeEnv, x: TensorSpec, shape: Sequence[Any], *, implicit: bool = False) -> TensorSpec:
    lead = len(shape) - len(x.shape)
    if lead < 0:
        raise Invalid("fewer axes than the tensor has")
    if not x.shape:
        if any(type(s) is int and s < 0 for s in shape):
            raise Invalid("-1 in a new axis")
        return view(x, tuple(map(view_size, shape)), (0,) * len(shape))
    sizes: list[Dim] = []
    strides: list[Dim] = []
    for position in range(len(shape) - 1, -1, -1):
        wanted, axis = _natural(env, view_size(shape[position])), position - lead
        minus = type(wanted) is int and wanted == -1
        if axis >= 0:
            size, step = x.shape[axis], x.stride[axis]
        else:
            if minus or type(wanted) is int and wanted < 0:
                raise Invalid("-1 in a new axis")
            size = 1
            step = sizes[-1] * strides[-1] if sizes else 1
        if type(size) is int and size == 1 and env.is_unbacked(wanted) and not env.equal(wanted, 1, "expand"):
            size, step = wanted, 0
        elif not minus and not env.equal(size, wanted, "expand"):
            if not env.equal(size, 1, "expand"):
                raise Invalid("sizes do not match")
            size, step = wanted, 0
        elif not minus and type(size) is not int and type(wanted) is int:
            size = wanted
        sizes.append(size)
        strides.append(step)
    return view(x, tuple(reversed(sizes)), tuple(reversed(strides)))


def _expand_index(index: Index, x: TensorSpec, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    lead = len(index) - len(x.shape)
    return tuple(0 if size == 1 else index[lead + a] for a, size in enumerate(x.shape))


define("aten.expand.default", "aten.broadcast_to.default", kind="view", infer=_expand, index=_expand_index)
define(
    "aten.expand_as.default", kind="view", infer=lambda env, x, other: _expand(env, x, other.shape), index=_expand_index
)


# -- Parts --------------------------------------------------------------------------------------------------------


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
    index = _natural(env, view_size(index))
    if less(env, index, 0):
        index = index + size
    if not _not_above(env, 0, index) or not _not_above(env, index + 1, size):
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
        return _clamped_at_run_time(env, _natural(env, position), size)
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
    size, length, start = x.shape[axis], _natural(env, view_size(length)), _natural(env, view_size(start))
    if less(env, start, 0):
        start = start + size
    if not (_not_above(env, 0, start) and _not_above(env, 0, length) and _not_above(env, start + length, size)):
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
        if not _not_above(env, 0, size):
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


def _unfold(env: SizeEnv, x: TensorSpec, dim: int, size: Any, step: Any) -> TensorSpec:
    axis = normalize_dim(dim, len(x.shape))
    if not x.shape or type(size) is not int or type(step) is not int or step <= 0 or size < 0:
        raise Invalid("unfold")
    if less(env, x.shape[axis], size):
        raise Invalid("unfold past the end")
    count = floordiv(x.shape[axis] - size, step) + 1
    return view(
        x,
        (*x.shape[:axis], count, *x.shape[axis + 1 :], size),
        (*x.stride[:axis], step * x.stride[axis], *x.stride[axis + 1 :], x.stride[axis]),
    )


def _unfold_index(index: Index, x: TensorSpec, dim: int, size: int, step: int) -> tuple[Any, ...]:
    axis = normalize_dim(dim, len(x.shape))
    return (*index[:axis], index[axis] * step + index[-1], *index[axis + 1 : -1])


define("aten.unfold.default", kind="view", infer=_unfold, index=_unfold_index)


def _unchanged(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    return view(x, x.shape, x.stride)


def _same_index(index: Index, x: TensorSpec, *args: Any) -> tuple[Any, ...]:
    return tuple(index)


define("aten.alias.default", kind="view", infer=_unchanged, index=_same_index)
define("aten.detach.default", kind="view", infer=_unchanged, index=_same_index, differentiable=False)


# -- Rearranging copies -------------------------------------------------------------------------------------------


def _flip(env: SizeEnv, x: TensorSpec, dims: Sequence[int]) -> TensorSpec:
    axes = [normalize_dim(d, len(x.shape)) for d in dims]
    if len(set(axes)) != len(axes):
        raise Invalid("an axis appears twice")
    return TensorSpec(x.dtype, x.shape, format_stride(env, x, None), x.device)


def _flip_index(index: Index, x: TensorSpec, dims: Sequence[int]) -> tuple[Any, ...]:
    axes = {normalize_dim(d, len(x.shape)) for d in dims}
    return tuple(x.shape[a] - 1 - i if a in axes else i for a, i in enumerate(index))


define("aten.flip.default", infer=_flip, index=_flip_index)


def _roll(env: SizeEnv, x: TensorSpec, shifts: Any, dims: Any = ()) -> TensorSpec:
    if not dims:
        raise NotCovered("a roll of the flattened tensor")
    shifts = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    if len(shifts) != len(dims) or not all(type(s) is int for s in shifts) or not is_static(x.shape):
        raise NotCovered("roll")
    if not x.shape:
        raise Invalid("a roll of a number")
    for d in dims:
        normalize_dim(d, len(x.shape))
    stride = format_stride(env, x, None) if len(dims) == 1 else contiguous_stride(x.shape)
    if stride != contiguous_stride(x.shape):
        raise NotCovered("roll of a tensor that is not row-major")
    return TensorSpec(x.dtype, x.shape, stride, x.device)


def _roll_index(index: Index, x: TensorSpec, shifts: Any, dims: Any = ()) -> tuple[Any, ...]:
    if not dims:
        raise NotCovered("a roll of the flattened tensor")
    result = list(index)
    for shift, dim in zip(
        shifts if isinstance(shifts, (tuple, list)) else (shifts,),
        dims if isinstance(dims, (tuple, list)) else (dims,),
        strict=True,
    ):
        axis = normalize_dim(dim, len(x.shape))
        size = x.shape[axis]
        result[axis] = (result[axis] + (size - shift % size)) % size
    return tuple(result)


define("aten.roll.default", infer=_roll, index=_roll_index)


def _repeat(env: SizeEnv, x: TensorSpec, repeats: Sequence[Any]) -> TensorSpec:
    lead = len(repeats) - len(x.shape)
    if lead < 0 or any(type(r) is int and r < 0 for r in repeats):
        raise NotCovered("repeat")
    shape = tuple(view_size(r) * (x.shape[i - lead] if i >= lead else 1) for i, r in enumerate(repeats))
    return TensorSpec(x.dtype, shape, contiguous_stride(shape), x.device)


def _repeat_index(index: Index, x: TensorSpec, repeats: Sequence[Any]) -> tuple[Any, ...]:
    lead = len(repeats) - len(x.shape)
    return tuple(
        0 if size == 1 else index[lead + a] if repeats[lead + a] == 1 else index[lead + a] % size
        for a, size in enumerate(x.shape)
    )


define("aten.repeat.default", infer=_repeat, index=_repeat_index)

declare("view.default", "_unsafe_view.default", "view_as.default", "reshape.default", "reshape_as.default",
        "flatten.using_ints", "ravel.default", "unflatten.int", is_reshape=True)
declare("view_as_real.default", "view_as_complex.default", "view.dtype", reads_memory=True)
declare("unbind.int", "split.Tensor", "split.sizes", "split_with_sizes.default", "chunk.default",
        "tensor_split.sections", "tensor_split.indices", is_split=True)
declare("view.default", "view.dtype", "_unsafe_view.default", "as_strided.default", "reshape.default",
        "flatten.using_ints", "unflatten.int", "view_as_real.default", "view_as_complex.default", asks_for_layout=True)
