"""numpy's functions on tensors: what stands for an array is its tensor.

Bodies have the names of numpy's parameters. The caller has converted operands to the dtype in which numpy computes,
asks numpy itself for the dtype and layout of the result, and makes the result so; `dtype`, `out`, `order` and `casting`
are its business too. Arguments that a body does not take break the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from .registry import give_up


@dataclass(frozen=True)
class Counterpart:
    """A body; the operands that are converted to the dtype of the result; letters of the kinds of dtypes it is right
    for: `b`ool, `i`nteger, `f`loat, `d`: float32 and float64 only, `c`omplex."""

    body: Callable[..., Any]
    converted: tuple[str, ...]
    kinds: str


#: Name of numpy's function -> its body, and of the ufunc.
FUNCTIONS: dict[str, Counterpart] = {}
UFUNCS: dict[str, Counterpart] = {}

#: The names of each body as a method of arrays.
METHODS: dict[str, Counterpart] = {}

Body = TypeVar("Body", bound=Callable[..., Any])

_REAL = "bif"
_ALL = "bifc"


def _function(*names: str, converted: str = "", kinds: str = _REAL, method: bool = False) -> Callable[[Body], Body]:
    """Register a body for functions of numpy's, and for the methods of the same names."""

    def register(body: Body) -> Body:
        made = Counterpart(body, tuple(converted.split()), kinds)
        for name in names:
            FUNCTIONS[name] = made
            if method:
                METHODS[name] = made
        return body

    return register


def _method(*names: str, converted: str = "", kinds: str = _REAL) -> Callable[[Body], Body]:
    """Register a body for methods of arrays only."""

    def register(body: Body) -> Body:
        for name in names:
            METHODS[name] = Counterpart(body, tuple(converted.split()), kinds)
        return body

    return register


def _ufunc(*names: str, kinds: str = "f") -> Callable[[Body], Body]:
    def register(body: Body) -> Body:
        for name in names:
            UFUNCS[name] = Counterpart(body, (), kinds)
        return body

    return register


# -- elementwise

for _names, _op, _kinds in (
    ("add", torch.add, _ALL), ("subtract", torch.sub, "ifc"), ("multiply", torch.mul, _ALL),
    ("true_divide divide", torch.div, "f"), ("maximum", torch.maximum, _REAL), ("minimum", torch.minimum, _REAL),
    ("fmax", torch.fmax, "f"), ("fmin", torch.fmin, "f"), ("arctan2", torch.atan2, "f"), ("hypot", torch.hypot, "f"),
    ("logaddexp", torch.logaddexp, "f"), ("copysign", torch.copysign, "f"), ("fmod", torch.fmod, "f"),
    ("less", torch.lt, _REAL), ("less_equal", torch.le, _REAL), ("greater", torch.gt, _REAL),
    ("greater_equal", torch.ge, _REAL), ("equal", torch.eq, _ALL), ("not_equal", torch.ne, _ALL),
    ("logical_and", torch.logical_and, _REAL), ("logical_or", torch.logical_or, _REAL),
    ("logical_xor", torch.logical_xor, _REAL), ("bitwise_and", torch.bitwise_and, "bi"),
    ("bitwise_or", torch.bitwise_or, "bi"), ("bitwise_xor", torch.bitwise_xor, "bi"),
    ("negative", torch.neg, "ifc"), ("positive", torch.clone, "ifc"), ("absolute", torch.abs, "if"),
    ("exp", torch.exp, "f"), ("exp2", torch.exp2, "f"), ("expm1", torch.expm1, "f"), ("log", torch.log, "f"),
    ("log2", torch.log2, "f"), ("log10", torch.log10, "f"), ("log1p", torch.log1p, "f"), ("sqrt", torch.sqrt, "f"),
    ("square", torch.square, "if"), ("reciprocal", torch.reciprocal, "f"), ("sin", torch.sin, "f"),
    ("cos", torch.cos, "f"), ("tan", torch.tan, "f"), ("arcsin", torch.asin, "f"), ("arccos", torch.acos, "f"),
    ("arctan", torch.atan, "f"), ("sinh", torch.sinh, "f"), ("cosh", torch.cosh, "f"), ("tanh", torch.tanh, "f"),
    ("arcsinh", torch.asinh, "f"), ("arccosh", torch.acosh, "f"), ("arctanh", torch.atanh, "f"),
    ("floor", torch.floor, "if"), ("ceil", torch.ceil, "if"), ("trunc", torch.trunc, "if"), ("rint", torch.round, "f"),
    ("isnan", torch.isnan, _REAL), ("isinf", torch.isinf, _REAL), ("isfinite", torch.isfinite, _REAL),
    ("signbit", torch.signbit, "f"), ("logical_not", torch.logical_not, _REAL), ("invert", torch.bitwise_not, "bi"),
    ("deg2rad radians", torch.deg2rad, "f"), ("rad2deg degrees", torch.rad2deg, "f"),
    ("conjugate", torch.clone, "if"), ("matmul", torch.matmul, "if"),
):
    _ufunc(*_names.split(), kinds=_kinds)(_op)


@_ufunc("sign", kinds="if")
def sign(x: Any, /) -> Any:
    found = torch.sign(x)
    return torch.where(torch.isnan(x), x, found) if x.is_floating_point() else found


@_ufunc("floor_divide", kinds="if")
def floor_divide(a: Any, b: Any, /) -> Any:
    _check_divisor(a, b)
    return torch.floor_divide(a, b)


@_ufunc("remainder", "mod", kinds="if")
def remainder(a: Any, b: Any, /) -> Any:
    """A remainder of zero has the sign of the divisor."""
    _check_divisor(a, b)
    found = torch.remainder(a, b)
    if not found.is_floating_point():
        return found
    divisor = b if isinstance(b, torch.Tensor) else torch.full((), b, dtype=a.dtype, device=a.device)
    return torch.where(found == 0, torch.copysign(found, divisor), found)


def _check_divisor(a: Any, b: Any) -> None:
    if not a.is_floating_point() and (isinstance(b, torch.Tensor) or b < 1):
        give_up("a division of integers, of which numpy makes zero where the divisor is zero")


@_ufunc("power", kinds="if")
def power(a: Any, b: Any, /) -> Any:
    if not a.is_floating_point() and (isinstance(b, torch.Tensor) or b < 0):
        give_up("an integer to a power that may be negative")
    return torch.pow(a, b)


# -- reductions


def _axes(axis: Any) -> Any:
    return axis if axis is None or isinstance(axis, tuple) else (axis,)


@_function("sum", converted="a", kinds="bid", method=True)
def sum(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.sum(a, dim=_axes(axis), keepdim=keepdims)


@_function("prod", converted="a", kinds="bid", method=True)
def prod(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    if axis is None:
        found = torch.prod(a)
        return found.reshape((1,) * a.ndim) if keepdims else found
    if isinstance(axis, tuple):
        give_up("a product over several axes")
    return torch.prod(a, axis, keepdim=keepdims)


@_function("mean", converted="a", kinds="d", method=True)
def mean(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.mean(a, dim=_axes(axis), keepdim=keepdims)


def _check_count(a: Any, axis: Any, ddof: Any) -> None:
    count = 1
    for dim in range(a.ndim) if axis is None else _axes(axis):
        count = count * a.shape[dim]
    if count <= ddof:
        give_up("a variance of too few numbers")


@_function("var", converted="a", kinds="d", method=True)
def var(a: Any, axis: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
    _check_count(a, axis, ddof)
    return torch.var(a, dim=_axes(axis), correction=ddof, keepdim=keepdims)


@_function("std", converted="a", kinds="d", method=True)
def std(a: Any, axis: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
    _check_count(a, axis, ddof)
    return torch.std(a, dim=_axes(axis), correction=ddof, keepdim=keepdims)


@_function("linalg.norm", converted="x", kinds="d")
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    if ord is not None and (isinstance(ord, str) or isinstance(axis, tuple) or axis is None and x.ndim != 1):
        give_up("a norm of matrices")
    return torch.linalg.vector_norm(x, 2 if ord is None else ord, dim=_axes(axis), keepdim=keepdims)


@_function("max", "amax", method=True)
def max(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.amax(a, dim=() if axis is None else axis, keepdim=keepdims)


@_function("min", "amin", method=True)
def min(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.amin(a, dim=() if axis is None else axis, keepdim=keepdims)


@_function("ptp")
def ptp(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return max(a, axis, keepdims) - min(a, axis, keepdims)


def _truths(reduction: Any, a: Any, axis: Any, keepdims: bool) -> Any:
    """`torch.any` or `torch.all` of what is not zero."""
    if axis is not None:
        return reduction(a != 0, dim=axis, keepdim=keepdims)
    found = reduction(a != 0)
    return found.reshape((1,) * a.ndim) if keepdims else found


@_function("any", method=True)
def any(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return _truths(torch.any, a, axis, keepdims)


@_function("all", method=True)
def all(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return _truths(torch.all, a, axis, keepdims)


@_function("argmax", method=True)
def argmax(a: Any, axis: Any = None) -> Any:
    return torch.argmax(a.to(torch.uint8) if a.dtype is torch.bool else a, dim=axis)


@_function("argmin", method=True)
def argmin(a: Any, axis: Any = None) -> Any:
    return torch.argmin(a.to(torch.uint8) if a.dtype is torch.bool else a, dim=axis)


@_function("cumsum", converted="a", kinds="bid", method=True)
def cumsum(a: Any, axis: Any = None) -> Any:
    return torch.cumsum(a.reshape(-1), 0) if axis is None else torch.cumsum(a, axis)


@_function("cumprod", converted="a", kinds="bid", method=True)
def cumprod(a: Any, axis: Any = None) -> Any:
    return torch.cumprod(a.reshape(-1), 0) if axis is None else torch.cumprod(a, axis)


# -- shapes


@_function("reshape", kinds=_ALL)
def reshape(a: Any, shape: Any) -> Any:
    return torch.reshape(a, (shape,) if isinstance(shape, int) else tuple(shape))


@_method("reshape", kinds=_ALL)
def reshape_method(a: Any, *shape: Any) -> Any:
    return reshape(a, shape[0] if len(shape) == 1 else shape)


@_function("transpose", kinds=_ALL)
def transpose(a: Any, axes: Any = None) -> Any:
    return a.permute(tuple(reversed(range(a.ndim))) if axes is None else tuple(axes))


@_method("transpose", kinds=_ALL)
def transpose_method(a: Any, *axes: Any) -> Any:
    if len(axes) == 1 and not isinstance(axes[0], int):
        return transpose(a, axes[0])
    return transpose(a, axes or None)


@_function("swapaxes", kinds=_ALL, method=True)
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    return torch.transpose(a, axis1, axis2)


@_function("moveaxis", kinds=_ALL)
def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    return torch.movedim(a, source, destination)


@_function("ravel", kinds=_ALL, method=True)
def ravel(a: Any) -> Any:
    return torch.reshape(a, (-1,))


@_method("flatten", kinds=_ALL)
def flatten(a: Any) -> Any:
    return torch.reshape(a, (-1,))


@_function("squeeze", kinds=_ALL, method=True)
def squeeze(a: Any, axis: Any = None) -> Any:
    return torch.squeeze(a) if axis is None else torch.squeeze(a, axis)


@_function("expand_dims", kinds=_ALL)
def expand_dims(a: Any, axis: Any) -> Any:
    if not isinstance(axis, int):
        give_up("several axes")
    return torch.unsqueeze(a, axis)


@_function("atleast_1d", kinds=_ALL)
def atleast_1d(ary: Any) -> Any:
    return torch.atleast_1d(ary)


@_function("concatenate", converted="arrays", kinds=_ALL)
def concatenate(arrays: Any, axis: Any = 0) -> Any:
    if axis is None:
        return torch.cat([a.reshape(-1) for a in arrays])
    return torch.cat(tuple(arrays), axis)


@_function("stack", converted="arrays", kinds=_ALL)
def stack(arrays: Any, axis: int = 0) -> Any:
    return torch.stack(tuple(arrays), axis)


@_function("vstack", converted="tup", kinds=_ALL)
def vstack(tup: Any) -> Any:
    return torch.vstack(tuple(tup))


@_function("hstack", converted="tup", kinds=_ALL)
def hstack(tup: Any) -> Any:
    return torch.hstack(tuple(tup))


@_function("split", kinds=_ALL)
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    return list(torch.tensor_split(ary, indices_or_sections, axis))


@_function("tile", kinds=_ALL)
def tile(a: Any, reps: Any) -> Any:
    return torch.tile(a, (reps,) if isinstance(reps, int) else tuple(reps))


@_function("repeat", kinds=_ALL, method=True)
def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    if not isinstance(repeats, int):
        give_up("numbers of repetitions in an array")
    return torch.repeat_interleave(a, repeats, axis)


@_function("roll", kinds=_ALL)
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    return torch.roll(a, shift) if axis is None else torch.roll(a, shift, axis)


@_function("take", method=True, kinds=_ALL)
def take(a: Any, indices: Any, axis: Any = None) -> Any:
    if axis is None:
        return a.reshape(-1)[indices]
    return torch.movedim(a, axis, 0)[indices] if axis in (0, -a.ndim) else give_up("take along an inner axis")


def picked(a: Any, index: Any) -> Any:
    """`a[index]` of one dimension, where the index is a number that the graph computes."""
    return torch.reshape(a[torch.reshape(index.to(torch.int64), (1,))], ())


def placed(a: Any, index: Any, value: Any) -> Any:
    """`a[index] = value`, likewise."""
    a.index_put_((torch.reshape(index.to(torch.int64), (1,)),), value)


# -- the rest


@_function("where", converted="x y", kinds=_ALL)
def where(condition: Any, x: Any, y: Any, /) -> Any:
    return torch.where(condition != 0, x, y)


@_function("clip", converted="a a_min a_max", method=False)
def clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    found = a if a_min is None else torch.maximum(a, a_min)
    return found if a_max is None else torch.minimum(found, a_max)


@_method("clip", converted="a min max")
def clip_method(a: Any, min: Any = None, max: Any = None) -> Any:
    return clip(a, min, max)


@_function("round", "around", method=True)
def round(a: Any, decimals: int = 0) -> Any:
    if decimals and not a.is_floating_point():
        give_up("integers rounded to places")
    if decimals == 0:
        return torch.round(a) if a.is_floating_point() else a
    scale = torch.full((), 10.0 ** abs(decimals), dtype=a.dtype, device=a.device)
    if decimals > 0:
        return torch.div(torch.round(torch.mul(a, scale)), scale)
    return torch.mul(torch.round(torch.div(a, scale)), scale)


@_function("dot", converted="a b", kinds="if", method=True)
def dot(a: Any, b: Any) -> Any:
    if a.ndim == 0 or b.ndim == 0:
        return torch.mul(a, b)
    if a.ndim > 2 or b.ndim > 2:
        give_up("a product of more than two dimensions")
    return torch.matmul(a, b)


@_function("outer", converted="a b", kinds="if")
def outer(a: Any, b: Any) -> Any:
    return torch.outer(a.reshape(-1), b.reshape(-1))


@_function("einsum", converted="operands", kinds="if")
def einsum(subscripts: str, *operands: Any) -> Any:
    return torch.einsum(subscripts, *operands)


@_function("tensordot", converted="a b", kinds="if")
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    return torch.tensordot(a, b, axes)


@_function("diff", kinds="if")
def diff(a: Any, n: int = 1, axis: int = -1) -> Any:
    return torch.diff(a, n, axis)


@_function("tril", kinds=_ALL)
def tril(m: Any, k: int = 0) -> Any:
    return torch.tril(m, k)


@_function("triu", kinds=_ALL)
def triu(m: Any, k: int = 0) -> Any:
    return torch.triu(m, k)


@_function("trace", converted="a", kinds="bid", method=True)
def trace(a: Any) -> Any:
    if a.ndim != 2:
        give_up("a trace of more than two dimensions")
    return torch.sum(torch.diagonal(a))


@_function("sort")
def sort(a: Any, axis: Any = -1) -> Any:
    return torch.sort(a.reshape(-1), 0)[0] if axis is None else torch.sort(a, axis)[0]


@_function("isclose", kinds="f")
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Any:
    if not isinstance(b, torch.Tensor) or a.dtype is not b.dtype:
        give_up("operands of several types")
    return torch.isclose(a, b, rtol, atol)


# -- new arrays; the dtype is numpy's


@_function("copy", kinds=_ALL, method=True)
def copy(a: Any) -> Any:
    return torch.clone(a)


@_function("array", "asarray", "ascontiguousarray", "asanyarray", converted="object", kinds=_ALL)
def array(object: Any, *, copy: Any = True) -> Any:
    """A list holds scalars, or arrays of one shape."""
    return torch.stack(tuple(object)) if isinstance(object, (list, tuple)) else object


@_method("astype", converted="a", kinds=_ALL)
def astype(a: Any, *, copy: Any = True) -> Any:
    return a


def filled(shape: Any, value: Any, dtype: torch.dtype) -> Any:
    """The array that `zeros`, `ones`, `full` and their like make."""
    return torch.full((shape,) if isinstance(shape, int) else tuple(shape), value, dtype=dtype, device="cpu")


def counted(start: int, stop: int, step: int, dtype: torch.dtype) -> Any:
    """`arange` of integers."""
    return torch.arange(start, stop, step, dtype=dtype, device="cpu")


def as_laid_out(tensor: Any, order: Any) -> Any:
    """A copy whose axes lie in memory in this order, the outermost first."""
    inverse = [order.index(axis) for axis in range(len(order))]
    return torch.permute(torch.clone(torch.permute(tensor, order), memory_format=torch.contiguous_format), inverse)


__all__ = ["FUNCTIONS", "METHODS", "UFUNCS", "Counterpart", "as_laid_out", "counted", "filled"]
