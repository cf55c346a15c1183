"""Views: results that share their input's memory; and copies that only rearrange it.

`Op.index(index, x, *args)` maps an index of the result to the index of the same element in the input `x` (a
spec); indices are whatever supports `+ - * // %` (ints, sympy, the schedule's own). Ops with several results take the
result's number as `output=`. Reshapes are in `reshapes.py`, parts of a tensor in `parts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..algebra import sympy
from ..op import NotCovered
from ..sizes import SizeEnv, simplify
from ..spec import Dim, TensorSpec, contiguous_stride
from .layout import Shape, format_stride, less, normalize_dim
from .table import Invalid, declare, define

Index = Sequence[Any]


def view(x: TensorSpec, shape: Shape, stride: Shape, offset: Dim | None = None) -> TensorSpec:
    """A view of `x`."""
    return TensorSpec(x.dtype, shape, stride, x.device, False, x.offset if offset is None else simplify(offset))


def view_size(value: Any) -> Dim:
    if type(value) is int or isinstance(value, sympy.Expr):
        return value
    raise NotCovered(f"size {value!r}")


def natural(env: SizeEnv, size: Dim) -> Dim:
    """A size that data decides must not be negative, not even the -1 that asks for one."""
    if env.is_unbacked(size) and not env.require(sympy.Ge(size, 0), "a size"):
        raise Invalid("a negative size")
    return size


def not_above(env: SizeEnv, a: Dim, b: Dim) -> bool:
    """Whether a <= b, as it must be lest eager raise."""
    if env.is_unbacked(a) or env.is_unbacked(b):
        return env.require(sympy.Le(a, b), "bounds of a part")
    return not less(env, b, a)


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
        wanted, axis = natural(env, view_size(shape[position])), position - lead
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


def _unchanged(env: SizeEnv, x: TensorSpec) -> TensorSpec:
    return view(x, x.shape, x.stride)


def _same_index(index: Index, x: TensorSpec, *args: Any) -> tuple[Any, ...]:
    return tuple(index)


define("aten.alias.default", kind="view", infer=_unchanged, index=_same_index)
define("aten.detach.default", kind="view", infer=_unchanged, index=_same_index, differentiable=False)


# -- Rearranging copies -------------------------------------------------------------------------------------------


def _flip(env: SizeEnv, x: TensorSpec, dims: Sequence[int]) -> TensorSpec:
    """Torch's rule for fake tensors gives other strides to axes of one element than its kernels do."""
    axes = [normalize_dim(d, len(x.shape)) for d in dims]
    if len(set(axes)) != len(axes):
        raise Invalid("an axis appears twice")
    return TensorSpec(x.dtype, x.shape, format_stride(env, x, None), x.device)


def _flip_index(index: Index, x: TensorSpec, dims: Sequence[int]) -> tuple[Any, ...]:
    axes = {normalize_dim(d, len(x.shape)) for d in dims}
    return tuple(x.shape[a] - 1 - i if a in axes else i for a, i in enumerate(index))


define("aten.flip.default", infer=_flip, index=_flip_index)


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


define("aten.roll.default", index=_roll_index)


def _repeat(env: SizeEnv, x: TensorSpec, repeats: Sequence[Any]) -> TensorSpec:
    lead = len(repeats) - len(x.shape)
    if lead < 0 or any(env.less(r, 0, "repeat") for r in map(view_size, repeats) if not env.is_unbacked(r)):
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

declare("view_as_real.default", "view_as_complex.default", "view.dtype", reads_memory=True)
declare("view.default", "view.dtype", "_unsafe_view.default", "as_strided.default", "reshape.default",
        "flatten.using_ints", "unflatten.int", "view_as_real.default", "view_as_complex.default", asks_for_layout=True)
