"""Reshapes: views where strides allow, and copies where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..algebra import sympy
from ..op import NotCovered
from ..sizes import SizeEnv, floordiv
from ..spec import Dim, TensorSpec, contiguous_stride, prod
from .layout import Shape, has_format, is_static, less, normalize_dim, theorem
from .table import Invalid, declare, define
from .views import Index, natural, view, view_size


def resolve_shape(env: SizeEnv, numel: Dim, shape: Sequence[Any]) -> Shape:
    """The requested shape with -1 filled in. NotCovered where the number of elements does not match."""
    sizes = [natural(env, view_size(s)) for s in shape]
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


def _define(*names: str, infer: Callable[..., TensorSpec], shape_of: Callable[..., Any], may_copy: bool) -> None:
    """Ops whose result has the shape `shape_of(env, x, *args)`: the input where that is None."""
    facets = {"aliasing": _reshape_aliasing(shape_of)} if may_copy else {}
    define(*names, kind="view", infer=infer, index=_reshape_map(shape_of), **facets)


_define("aten.view.default", "aten._unsafe_view.default", infer=_view, shape_of=_given, may_copy=False)
_define("aten.view_as.default", infer=lambda env, x, other: _view(env, x, other.shape), shape_of=_others,
        may_copy=False)
_define("aten.reshape.default", infer=_reshape, shape_of=_given, may_copy=True)
_define("aten.reshape_as.default", infer=lambda env, x, other: _reshape(env, x, other.shape), shape_of=_others,
        may_copy=True)
_define("aten.flatten.using_ints", infer=_flatten, shape_of=_flattened, may_copy=True)


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
_define("aten.unflatten.int", infer=lambda env, x, dim, sizes: _view(env, x, _unflattened(env, x, dim, sizes)),
        shape_of=_unflattened, may_copy=False)


declare("view.default", "_unsafe_view.default", "view_as.default", "reshape.default", "reshape_as.default",
        "flatten.using_ints", "ravel.default", "unflatten.int", is_reshape=True)
