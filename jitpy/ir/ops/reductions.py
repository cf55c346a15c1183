"""Reductions, scans, and what is made of them: means, variances, norms, softmax.

`Op.reduction(*args, **kwargs)` (specs and constants in, `Reduction` out) tells the schedule how to run an op as
one loop. Ops made of several loops have a `decompose` instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..algebra import sympy
from ..op import NotCovered
from ..sizes import SizeEnv
from ..spec import TensorSpec, contiguous_stride, prod
from .layout import normalize_dim
from .promotion import category, compute_dtype, float_result
from .table import Invalid, define


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reduction loop.

    combine   'sum', 'prod', 'max', 'min' (both propagate NaN), 'any', 'all' (of x != 0), 'argmax' or 'argmin' (the
              first of equals; NaN wins), the latter over the one axis `dims`, or the flattened input where `flat`
    dims      the reduced axes, ascending
    keepdim   whether they stay as axes of size 1
    dtype     what elements are converted to and accumulated in; the result is converted to the node's dtype
    """

    combine: str
    dims: tuple[int, ...]
    keepdim: bool
    dtype: torch.dtype
    flat: bool = False


def reduced_axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """The axes that a `dim` argument names, ascending; None and [] mean all. Raises NotCovered for bad ones."""
    if dim is None:
        return tuple(range(ndim))
    if type(dim) is int:
        axes = [normalize_dim(dim, ndim)]
    else:
        if not dim:
            return tuple(range(ndim))
        axes = sorted(normalize_dim(d, ndim) for d in dim)
    if len(set(axes)) != len(axes):
        raise Invalid("an axis appears twice")
    return tuple(axes) if ndim else ()


def reduced(x: TensorSpec, axes: tuple[int, ...], keepdim: bool, dtype: torch.dtype) -> TensorSpec:
    """A fresh row-major result."""
    if keepdim:
        shape = tuple(1 if i in axes else size for i, size in enumerate(x.shape))
    else:
        shape = tuple(size for i, size in enumerate(x.shape) if i not in axes)
    return TensorSpec(dtype, shape, contiguous_stride(shape), x.device)


def require_elements(env: SizeEnv, x: TensorSpec, axes: tuple[int, ...]) -> None:
    """NotCovered where an axis without elements would be reduced by an op that has no identity."""
    for axis in axes:
        size = x.shape[axis]
        if size == 0 if type(size) is int else not env.require(sympy.Gt(size, 0), "a reduction needs elements"):
            raise Invalid("no elements")


def sum_dtype(x: TensorSpec, dtype: torch.dtype | None) -> torch.dtype:
    """The result dtype of sum, prod, cumsum: integers and bool add up in int64."""
    if dtype is not None:
        return dtype
    return torch.int64 if category(x.dtype) < 2 else x.dtype


# -- Sums and products --------------------------------------------------------------------------------------------


def _sum(
    env: SizeEnv, x: TensorSpec, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorSpec:
    return reduced(x, reduced_axes(dim, len(x.shape)), keepdim, sum_dtype(x, dtype))


def _loop(combine: str, dtype_of: Callable[[TensorSpec, torch.dtype | None], torch.dtype]) -> Callable[..., Reduction]:
    """The loop of an op, whose elements are taken in the dtype `dtype_of(x, the argument dtype)`."""

    def loop(x: TensorSpec, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Reduction:
        if combine in ("any", "all") and _is_none(dim):
            raise NotCovered("no axis to reduce")
        is_flat = combine in ("argmax", "argmin") and dim is None
        return Reduction(combine, reduced_axes(dim, len(x.shape)), keepdim, dtype_of(x, dtype), is_flat)

    return loop


def _accumulated(x: TensorSpec, dtype: torch.dtype | None) -> torch.dtype:
    return compute_dtype(sum_dtype(x, dtype))


def _own(x: TensorSpec, dtype: torch.dtype | None) -> torch.dtype:
    return compute_dtype(x.dtype)


for _name, _overload in (("sum", "dim_IntList"), ("prod", "dim_int")):
    define(f"aten.{_name}.default", f"aten.{_name}.{_overload}", kind="reduction", infer=_sum,
           reduction=_loop(_name, _accumulated))


# -- Extremes -----------------------------------------------------------------------------------------------------


def _extreme(env: SizeEnv, x: TensorSpec, dim: Any = (), keepdim: bool = False) -> TensorSpec:
    axes = reduced_axes(dim, len(x.shape))
    require_elements(env, x, axes)
    if category(x.dtype) == 3:
        raise Invalid("complex")
    return reduced(x, axes, keepdim, x.dtype)


for _name in ("max", "min"):
    define(f"aten.a{_name}.default", f"aten.{_name}.default", kind="reduction", infer=_extreme,
           reduction=_loop(_name, _own))


def _argument(env: SizeEnv, x: TensorSpec, dim: int | None = None, keepdim: bool = False) -> TensorSpec:
    axes = reduced_axes(dim, len(x.shape))
    require_elements(env, x, axes)
    if category(x.dtype) not in (1, 2):
        raise NotCovered("dtype")
    return reduced(x, axes, keepdim, torch.int64)


for _name in ("argmax", "argmin"):
    define(f"aten.{_name}.default", kind="reduction", infer=_argument, reduction=_loop(_name, _own),
           differentiable=False)


def _extreme_and_index(env: SizeEnv, x: TensorSpec, dim: int, keepdim: bool = False) -> tuple[TensorSpec, TensorSpec]:
    axes = (normalize_dim(dim, len(x.shape)),) if x.shape else ()
    require_elements(env, x, axes)
    if category(x.dtype) == 3:
        raise Invalid("complex")
    return reduced(x, axes, keepdim, x.dtype), reduced(x, axes, keepdim, torch.int64)


def _extreme_and_index_parts(value: str, index: str) -> Callable[..., Any]:
    def decompose(b: Any, x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
        return b.call(f"aten.{value}.default", x, [dim], keepdim), b.call(f"aten.{index}.default", x, dim, keepdim)

    return decompose


define("aten.max.dim", kind="reduction", infer=_extreme_and_index, decompose=_extreme_and_index_parts("amax", "argmax"))
define("aten.min.dim", kind="reduction", infer=_extreme_and_index, decompose=_extreme_and_index_parts("amin", "argmin"))


define(
    "aten.aminmax.default",
    kind="reduction",
    decompose=lambda b, x, dim=None, keepdim=False: (
        b.call("aten.amin.default", x, [] if dim is None else [dim], keepdim),
        b.call("aten.amax.default", x, [] if dim is None else [dim], keepdim),
    ),
)


# -- Truth --------------------------------------------------------------------------------------------------------


def _truth(env: SizeEnv, x: TensorSpec, dim: Any = None, keepdim: bool = False) -> TensorSpec:
    dtype = torch.uint8 if x.dtype is torch.uint8 else torch.bool
    if _is_none(dim):
        return TensorSpec(dtype, x.shape, contiguous_stride(x.shape), x.device)
    return reduced(x, reduced_axes(dim, len(x.shape)), keepdim, dtype)


def _is_none(dim: Any) -> bool:
    """Whether this is an empty list of axes, which means no axis to `any` and `all`, all of them to others."""
    return dim is not None and type(dim) is not int and not len(dim)


for _name in ("any", "all"):
    define(
        f"aten.{_name}.default",
        f"aten.{_name}.dim",
        f"aten.{_name}.dims",
        kind="reduction",
        infer=_truth,
        reduction=_loop(_name, lambda x, dtype: torch.bool),
        differentiable=False,
    )


def _count_nonzero_parts(b: Any, x: Any, dim: Any = None) -> Any:
    axes = list(reduced_axes(dim, x.spec.ndim))
    return b.call("aten.sum.dim_IntList", b.call("aten.ne.Scalar", x, 0), axes)


define(
    "aten.count_nonzero.default",
    "aten.count_nonzero.dim_IntList",
    kind="reduction",
    decompose=_count_nonzero_parts,
    differentiable=False,
)


# -- Means, variances, norms --------------------------------------------------------------------------------------


def cast(b: Any, x: Any, dtype: torch.dtype) -> Any:
    """`x` in `dtype`; no node where it is that already."""
    return x if x.spec.dtype is dtype else b.call("aten.to.dtype", x, dtype)


def _float_only(dtype: torch.dtype) -> torch.dtype:
    if category(dtype) < 2:
        raise Invalid("floats only")
    return dtype


def _mean(
    env: SizeEnv, x: TensorSpec, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorSpec:
    return reduced(x, reduced_axes(dim, len(x.shape)), keepdim, _float_only(dtype or x.dtype))


def mean_of(b: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
    """The mean of a node that is already in its compute dtype."""
    count = prod(tuple(x.spec.shape[a] for a in axes))
    return b.call("aten.div.Tensor", b.call("aten.sum.dim_IntList", x, axes, keepdim), count)


def _mean_parts(b: Any, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    result = dtype or x.spec.dtype
    axes = list(reduced_axes(dim, x.spec.ndim))
    return cast(b, mean_of(b, cast(b, x, compute_dtype(result)), axes, keepdim), result)


define("aten.mean.default", "aten.mean.dim", kind="reduction", infer=_mean, decompose=_mean_parts)


def _variance(
    env: SizeEnv, x: TensorSpec, dim: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> TensorSpec:
    if category(x.dtype) != 2:
        raise Invalid("floats only")
    return reduced(x, reduced_axes(dim, len(x.shape)), keepdim, x.dtype)


def variance_of(b: Any, x: Any, axes: list[int], correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Variance and mean (in two passes) of a node that is already in its compute dtype."""
    if correction is None:
        correction = 1
    count = prod(tuple(x.spec.shape[a] for a in axes))
    if type(count) is int:
        if count <= correction:
            raise NotCovered("too few elements for a variance")
        divisor: Any = count - correction
    elif type(correction) is int:
        divisor = sympy.Max(count - correction, 0)  # of too few elements it is nan
    else:
        raise NotCovered("correction")
    mean = mean_of(b, x, axes, True)
    centered = b.call("aten.sub.Tensor", x, mean)
    total = b.call("aten.sum.dim_IntList", b.call("aten.mul.Tensor", centered, centered), axes, keepdim)
    if not keepdim:
        shape = [s for i, s in enumerate(x.spec.shape) if i not in axes]
        mean = b.call("aten.reshape.default", mean, shape)
    return b.call("aten.div.Tensor", total, divisor), mean


def _deviation(root: bool, with_mean: bool) -> Callable[..., Any]:
    """Of `var` and `var_mean`, or (`root`) of `std` and `std_mean`."""

    def decompose(b: Any, x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
        dtype, axes = x.spec.dtype, list(reduced_axes(dim, x.spec.ndim))
        found, mean = variance_of(b, cast(b, x, compute_dtype(dtype)), axes, correction, keepdim)
        found = cast(b, b.call("aten.sqrt.default", found) if root else found, dtype)
        return (found, cast(b, mean, dtype)) if with_mean else found

    return decompose


def _unbiased(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The older overload, whose `unbiased` is a correction of 1 or 0, over all axes."""
    return lambda first, x, unbiased=True: fn(first, x, None, correction=int(unbiased))


def _unbiased_dim(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda first, x, dim=None, unbiased=True, keepdim=False: fn(
        first, x, dim, correction=int(unbiased), keepdim=keepdim
    )


for _name in ("var", "std", "var_mean", "std_mean"):
    _parts = _deviation(_name.startswith("std"), _name.endswith("mean"))
    _rule = None if _name.endswith("mean") else _variance  # torch's rule for those of one result imports sympy
    define(f"aten.{_name}.correction", kind="reduction", infer=_rule, decompose=_parts)
    define(f"aten.{_name}.default", kind="reduction", infer=_rule and _unbiased(_rule), decompose=_unbiased(_parts))
    define(f"aten.{_name}.dim", kind="reduction", infer=_rule and _unbiased_dim(_rule), decompose=_unbiased_dim(_parts))


def _vector_norm_parts(
    b: Any,
    x: Any,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    result = dtype or x.spec.dtype
    axes = list(reduced_axes(dim, x.spec.ndim))
    x = cast(b, x, compute_dtype(result))
    if ord == 2:
        value = b.call(
            "aten.sqrt.default", b.call("aten.sum.dim_IntList", b.call("aten.mul.Tensor", x, x), axes, keepdim)
        )
    elif ord == 1:
        value = b.call("aten.sum.dim_IntList", b.call("aten.abs.default", x), axes, keepdim)
    elif ord in (math.inf, -math.inf):
        name = "aten.amax.default" if ord > 0 else "aten.amin.default"
        value = b.call(name, b.call("aten.abs.default", x), axes, keepdim)
    else:
        raise NotCovered("norm of this order")
    return cast(b, value, result)


define("aten.linalg_vector_norm.default", kind="reduction", decompose=_vector_norm_parts)
define(
    "aten.norm.Scalar",
    kind="reduction",
    decompose=lambda b, x, p=2: _vector_norm_parts(b, x, p),
)
define(
    "aten.norm.ScalarOpt_dim",
    kind="reduction",
    decompose=lambda b, x, p, dim, keepdim=False: _vector_norm_parts(b, x, 2 if p is None else p, dim, keepdim),
)


# -- Softmax and relatives ----------------------------------------------------------------------------------------


def _softmax(env: SizeEnv, x: TensorSpec, dim: int, dtype: torch.dtype | None = None) -> TensorSpec:
    normalize_dim(dim, len(x.shape))
    result = dtype or x.dtype
    if category(result) != 2 or category(x.dtype) == 3:
        raise Invalid("floats only")
    return TensorSpec(result, x.shape, contiguous_stride(x.shape), x.device)


def _raw_softmax(env: SizeEnv, x: TensorSpec, dim: int, half_to_float: bool) -> TensorSpec:
    if half_to_float:
        raise NotCovered("half_to_float")
    return _softmax(env, x, dim)


def _needs_axis(x: Any, dim: int) -> int:
    axis = normalize_dim(dim, x.spec.ndim)
    if not x.spec.shape or x.spec.shape[axis] == 0:
        raise NotCovered("an axis without elements")
    return axis


def _shifted(b: Any, x: Any, dim: int, dtype: torch.dtype | None) -> tuple[Any, Any, list[int]]:
    """`x` less its maximum, and the exponentials, in the compute dtype; the axis."""
    axis = [_needs_axis(x, dim)]
    result = dtype or x.spec.dtype
    x = cast(b, cast(b, x, result), compute_dtype(result))
    shifted = b.call("aten.sub.Tensor", x, b.call("aten.amax.default", x, axis, True))
    return shifted, b.call("aten.exp.default", shifted), axis


def _softmax_parts(b: Any, x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    _, powers, axis = _shifted(b, x, dim, dtype)
    total = b.call("aten.sum.dim_IntList", powers, axis, True)
    return cast(b, b.call("aten.div.Tensor", powers, total), dtype or x.spec.dtype)


def _log_softmax_parts(b: Any, x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    shifted, powers, axis = _shifted(b, x, dim, dtype)
    total = b.call("aten.log.default", b.call("aten.sum.dim_IntList", powers, axis, True))
    return cast(b, b.call("aten.sub.Tensor", shifted, total), dtype or x.spec.dtype)


for _name, _parts in (("softmax", _softmax_parts), ("log_softmax", _log_softmax_parts)):
    define(f"aten.{_name}.int", infer=_softmax, decompose=_parts)
    define(f"aten._{_name}.default", infer=_raw_softmax,
           decompose=lambda b, x, dim, half_to_float, _parts=_parts: _parts(b, x, dim))


def _safe_softmax_parts(b: Any, x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    """Zeros where every score is masked, rather than NaN."""
    axis = [_needs_axis(x, dim)]
    hidden = b.call("aten.eq.Scalar", b.call("aten.amax.default", x, axis, True), -math.inf)
    return b.call("aten.masked_fill.Scalar", _softmax_parts(b, x, dim, dtype), hidden, 0.0)


define("aten._safe_softmax.default", infer=_softmax, decompose=_safe_softmax_parts)


def _logsumexp(env: SizeEnv, x: TensorSpec, dim: Any, keepdim: bool = False) -> TensorSpec:
    if isinstance(dim, (tuple, list)) and not dim and x.ndim:
        raise Invalid("no axes")  # kernels refuse them, or take them for all
    return reduced(x, reduced_axes(dim, len(x.shape)), keepdim, float_result(x.dtype))


def _logsumexp_parts(b: Any, x: Any, dim: Any, keepdim: bool = False) -> Any:
    result = float_result(x.spec.dtype)
    axes = list(reduced_axes(dim, x.spec.ndim))
    if any(x.spec.shape[a] == 0 for a in axes):
        raise NotCovered("an axis without elements")
    x = cast(b, x, compute_dtype(result))
    top = b.call("aten.amax.default", x, axes, True)
    top = b.call("aten.where.ScalarSelf", b.call("aten.isinf.default", top), 0.0, top)
    total = b.call("aten.sum.dim_IntList", b.call("aten.exp.default", b.call("aten.sub.Tensor", x, top)), axes, True)
    value = b.call("aten.add.Tensor", b.call("aten.log.default", total), top)
    if not keepdim:
        value = b.call("aten.reshape.default", value, [s for i, s in enumerate(x.spec.shape) if i not in axes])
    return cast(b, value, result)


define("aten.logsumexp.default", kind="reduction", infer=_logsumexp, decompose=_logsumexp_parts)


# -- Scans --------------------------------------------------------------------------------------------------------


def _scan(env: SizeEnv, x: TensorSpec, dim: int, *, dtype: torch.dtype | None = None) -> TensorSpec:
    normalize_dim(dim, len(x.shape))
    return TensorSpec(sum_dtype(x, dtype), x.shape, contiguous_stride(x.shape), x.device)


def _scan_loop(combine: str) -> Callable[..., Reduction]:
    loop = _loop(combine, _accumulated)
    return lambda x, dim, *, dtype=None: loop(x, [normalize_dim(dim, len(x.shape))], True, dtype=dtype)


define("aten.cumsum.default", infer=_scan, scan=_scan_loop("sum"))
define("aten.cumprod.default", infer=_scan, scan=_scan_loop("prod"))
