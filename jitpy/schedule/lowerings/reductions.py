"""Reductions, softmax, variance, arg-reductions, scans."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...ir.op import NotCovered
from ...ir.spec import Dim, prod
from ..expr import carrier
from ..lower import Lowering, lowering
from ..values import Value
from .pointwise import number
from .views import axis_of


def count(shape: tuple[Dim, ...], dims: tuple[int, ...]) -> Dim:
    """How many elements are reduced."""
    return prod(tuple(shape[d] for d in dims))


@lowering("sum", "sum.dim_IntList", "nansum")
def sum_(low: Lowering, node: Any, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    fn = (lambda e, a: e.where(e.isnan(a), 0, a)) if "nansum" in node.op.name and x.dtype.is_floating_point else None
    return low.reduce("sum", x, low.dims(dim, len(x.shape)), node.tensor.dtype, keepdim, fn=fn)


@lowering("mean", "mean.dim")
def mean(low: Lowering, node: Any, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    dims = low.dims(dim, len(x.shape))
    return mean_of(low, x, dims, node.tensor.dtype, keepdim)


def mean_of(low: Lowering, x: Value, dims: tuple[int, ...], dtype: torch.dtype, keepdim: bool) -> Value:
    total = low.reduce("sum", x, dims, dtype, keepdim)
    return low.apply(lambda e, a, n: e.truediv(a, n), [total, count(x.shape, dims)], total.shape, dtype, dtype, "mean")


@lowering("prod", "prod.dim_int")
def product(low: Lowering, node: Any, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return low.reduce("prod", x, low.dims(dim, len(x.shape)), node.tensor.dtype, keepdim)


def _extreme(kind: str) -> None:
    @lowering(f"a{kind}", kind)
    def op(low: Lowering, node: Any, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        return low.reduce(kind, x, low.dims(dim, len(x.shape)), keepdim=keepdim)

    @lowering(f"{kind}.dim")
    def with_index(low: Lowering, node: Any, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        dims = low.dims(dim, len(x.shape))
        if x.dtype is torch.bool or not dims:
            raise NotCovered("operand")
        return (low.reduce(kind, x, dims, keepdim=keepdim), low.reduce(f"arg{kind}", x, dims, keepdim=keepdim))

    @lowering(f"arg{kind}")
    def position(low: Lowering, node: Any, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        if x.dtype is torch.bool:
            raise NotCovered("bool operand")
        return low.reduce(f"arg{kind}", x, low.dims(dim, len(x.shape)), keepdim=keepdim)


_extreme("max")
_extreme("min")


@lowering("aminmax")
def aminmax(low: Lowering, node: Any, x: Value, *, dim: Any = None, keepdim: bool = False) -> tuple[Value, Value]:
    dims = low.dims(dim, len(x.shape))
    return low.reduce("min", x, dims, keepdim=keepdim), low.reduce("max", x, dims, keepdim=keepdim)


@lowering("any", "any.dim", "any.dims")
def any_(low: Lowering, node: Any, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _truth(low, node, "any", x, dim, keepdim)


@lowering("all", "all.dim", "all.dims")
def all_(low: Lowering, node: Any, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _truth(low, node, "all", x, dim, keepdim)


def _truth(low: Lowering, node: Any, kind: str, x: Value, dim: Any, keepdim: bool) -> Value:
    if node.tensor.dtype is not torch.bool:
        raise NotCovered("uint8 result")
    return low.reduce(kind, x, low.dims(dim, len(x.shape)), torch.bool, keepdim)


@lowering("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(low: Lowering, node: Any, x: Value, dim: Any = None) -> Value:
    truth = low.apply(lambda e, a: e.cast(a, torch.bool), [x], x.shape, torch.bool, x.dtype)
    return low.reduce("sum", truth, low.dims(dim, len(x.shape)), torch.int64)


def variance(low: Lowering, x: Value, dims: tuple[int, ...], correction: float, dtype: torch.dtype) -> tuple[Value, Value]:
    """Variance and mean over `dims`, axes kept: the mean first, then the mean square distance from it."""
    average = mean_of(low, x, dims, dtype, True)
    centred = low.apply(lambda e, a, m: e.sub(a, m), [x, average], x.shape, dtype, dtype, "centred")
    squares = low.reduce("sum", centred, dims, dtype, True, "squares", fn=lambda e, a: e.mul(a, a))
    size = count(x.shape, dims)
    if isinstance(size, int):
        left: Any = max(float(size) - correction, 0.0)
    elif float(correction).is_integer():
        left = size - int(correction)
    else:
        raise NotCovered("correction")
    return low.apply(lambda e, a, n: e.truediv(a, n), [squares, left], squares.shape, dtype, dtype, "var"), average


def _correction(args: tuple[Any, ...], kwargs: dict[str, Any], ndim: int) -> tuple[Any, float, bool]:
    """`(dim, correction, keepdim)` of the overloads of var and std."""
    if kwargs.keys() & {"correction"}:
        correction = 1 if kwargs["correction"] is None else kwargs["correction"]
        return (args[0] if args else kwargs.get("dim")), correction, kwargs.get("keepdim", False)
    if args and isinstance(args[0], bool) or "unbiased" in kwargs and not args and "dim" not in kwargs:
        return None, 1.0 if (args[0] if args else kwargs["unbiased"]) else 0.0, False
    dim = args[0] if args else kwargs.get("dim")
    unbiased = args[1] if len(args) > 1 else kwargs.get("unbiased", True)
    return dim, 1.0 if unbiased else 0.0, args[2] if len(args) > 2 else kwargs.get("keepdim", False)


def _drop(low: Lowering, value: Value, dims: tuple[int, ...], keepdim: bool) -> Value:
    return value if keepdim else low.squeeze(value, dims)


def _variances(name: str) -> None:
    @lowering(name, f"{name}.dim", f"{name}.correction")
    def op(low: Lowering, node: Any, x: Value, *args: Any, **kwargs: Any) -> Any:
        dim, correction, keepdim = _correction(args, kwargs, len(x.shape))
        dims = low.dims(dim, len(x.shape))
        spec = node.spec[0] if isinstance(node.spec, tuple) else node.spec
        number(correction, "correction")
        if not x.dtype.is_floating_point:
            raise NotCovered("integer operand")
        var, average = variance(low, x, dims, correction, spec.dtype)
        if name.startswith("std"):
            var = low.apply(lambda e, a: e.sqrt(a), [var], var.shape, spec.dtype, spec.dtype, "std")
        if not isinstance(node.spec, tuple):
            return _drop(low, var, dims, keepdim)
        return _drop(low, var, dims, keepdim), _drop(low, average, dims, keepdim)


for _name in ("var", "std", "var_mean", "std_mean"):
    _variances(_name)


@lowering("softmax.int", "_softmax", "special_softmax")
def softmax(low: Lowering, node: Any, x: Value, dim: int, *args: Any, **kwargs: Any) -> Value:
    return softmax_of(low, _cast(low, x, node.tensor.dtype), axis_of(dim, len(x.shape)))


def _cast(low: Lowering, x: Value, dtype: torch.dtype) -> Value:
    return low.convert(x, dtype)


def softmax_of(low: Lowering, x: Value, dim: int) -> Value:
    if not x.shape:
        return low.fill((), x.dtype, 1.0)
    top = low.reduce("max", x, (dim,), keepdim=True)
    powers = low.apply(lambda e, a, m: e.exp(e.sub(a, m)), [x, top], x.shape, x.dtype, x.dtype, "exp")
    total = low.reduce("sum", powers, (dim,), keepdim=True)
    return low.apply(lambda e, a, s: e.truediv(a, s), [powers, total], x.shape, x.dtype, x.dtype)


@lowering("log_softmax.int", "_log_softmax", "special_log_softmax")
def log_softmax(low: Lowering, node: Any, x: Value, dim: int, *args: Any, **kwargs: Any) -> Value:
    return log_softmax_of(low, _cast(low, x, node.tensor.dtype), axis_of(dim, len(x.shape)))


def log_softmax_of(low: Lowering, x: Value, dim: int) -> Value:
    if not x.shape:
        return low.fill((), x.dtype, 0.0)
    top = low.reduce("max", x, (dim,), keepdim=True)
    total = low.reduce("sum", low.apply(lambda e, a, m: e.exp(e.sub(a, m)), [x, top], x.shape, x.dtype, x.dtype, "exp"),
                       (dim,), keepdim=True)
    return low.apply(lambda e, a, m, s: e.sub(e.sub(a, m), e.log(s)), [x, top, total], x.shape, x.dtype, x.dtype)


@lowering("logsumexp")
def logsumexp(low: Lowering, node: Any, x: Value, dim: Any, keepdim: bool = False) -> Value:
    dims = low.dims(dim, len(x.shape))
    x = _cast(low, x, node.tensor.dtype)
    top = low.reduce("max", x, dims, keepdim=True)
    finite = low.apply(lambda e, m: e.where(e.eq(e.abs(m), math.inf), 0.0, m), [top], top.shape, x.dtype, x.dtype, "top")
    total = low.reduce("sum", low.apply(lambda e, a, m: e.exp(e.sub(a, m)), [x, finite], x.shape, x.dtype, x.dtype, "exp"),
                       dims, keepdim=True)
    result = low.apply(lambda e, s, m: e.add(e.log(s), m), [total, finite], total.shape, x.dtype, x.dtype)
    return _drop(low, result, dims, keepdim)


@lowering("linalg_vector_norm")
def vector_norm(low: Lowering, node: Any, x: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, *,
                dtype: Any = None) -> Value:
    return norm_of(low, x, ord, dim, keepdim, node.tensor.dtype)


@lowering("norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dim_dtype")
def norm(low: Lowering, node: Any, x: Value, p: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Value:
    return norm_of(low, x, 2 if p is None else p, dim, keepdim, node.tensor.dtype)


def norm_of(low: Lowering, x: Value, p: Any, dim: Any, keepdim: bool, dtype: torch.dtype) -> Value:
    dims = low.dims(dim, len(x.shape))
    if not x.dtype.is_floating_point or p not in (1, 2, math.inf):
        raise NotCovered("order of the norm")
    x = low.convert(x, dtype)
    if p == 2:
        total = low.reduce("sum", x, dims, dtype, keepdim, fn=lambda e, a: e.mul(a, a))
        return low.apply(lambda e, a: e.sqrt(a), [total], total.shape, dtype, dtype)
    return low.reduce("sum" if p == 1 else "max", x, dims, dtype, keepdim, fn=lambda e, a: e.abs(a))


def _scans(name: str, kind: str) -> None:
    @lowering(name)
    def op(low: Lowering, node: Any, x: Value, dim: int, *, dtype: Any = None) -> Value:
        if not x.shape or node.tensor.dtype in (torch.float16, torch.bfloat16):
            raise NotCovered("operand")
        return low.scan(kind, x, axis_of(dim, len(x.shape)), node.tensor.dtype)


_scans("cumsum", "sum")
_scans("cumprod", "prod")

__all__ = ["carrier", "log_softmax_of", "mean_of", "softmax_of", "variance"]
