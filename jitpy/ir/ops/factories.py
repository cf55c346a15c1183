"""Tensors made from nothing: constants, ranges, random numbers, and the `*_like` and `new_*` families.

`Op.fill(*args, **kwargs)` is the value that every element has, for those that are constant.
`Op.element(e, index, *args, **kwargs)` is an element's value from its index (a list of int64 expressions), for
those that follow from the position; tensor arguments arrive as expressions at that same index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..algebra import sympy
from ..op import Draws, NotCovered
from ..sizes import SizeEnv, floordiv
from ..spec import Dim, ScalarSpec, TensorSpec, contiguous_spec, contiguous_stride
from .data_sizes import count
from .layout import Shape, channels_last_stride, format_stride
from .promotion import scalar_dtype
from .table import Invalid, declare, define

_CPU = torch.device("cpu")


def _device(device: Any) -> torch.device:
    if device is None:
        return _CPU  # whatever the default device is: torch gives that to factories as their argument
    device = torch.device(device)
    if device.index is None and device.type not in ("cpu", "meta"):
        raise NotCovered("the current device")
    return device


def _sizes(env: SizeEnv, shape: Any) -> Shape:
    for size in shape:
        if not (type(size) is int and size >= 0 or isinstance(size, sympy.Expr)):
            raise NotCovered("size")
        if not env.require(sympy.Ge(size, 0), "a size") if env.is_unbacked(size) else env.less(size, 0, "a size"):
            raise NotCovered("a negative size")
    return tuple(shape)


def _plain(layout: Any, pin_memory: Any) -> None:
    if layout not in (None, torch.strided) or pin_memory:
        raise NotCovered("layout or pinned memory")


def _sized(
    env: SizeEnv,
    shape: Sequence[Any],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
    generator: Any = None,
) -> TensorSpec:
    _plain(layout, pin_memory)
    sizes = _sizes(env, shape)
    spec = contiguous_spec(dtype or torch.get_default_dtype(), sizes, _device(device))
    if memory_format in (None, torch.contiguous_format):
        return spec
    if memory_format is torch.channels_last and len(sizes) == 4:
        return spec.with_(stride=channels_last_stride(sizes))
    raise NotCovered("memory format")


def _fill_dtype(value: Any) -> torch.dtype:
    dtype = scalar_dtype(value)
    if dtype is None:
        raise NotCovered("fill value")
    return dtype


def _full(env: SizeEnv, shape: Sequence[Any], value: Any, *, dtype: torch.dtype | None = None,
          **options: Any) -> TensorSpec:
    return _sized(env, shape, dtype=dtype or _fill_dtype(value), **options)


def _scalar_tensor(env: SizeEnv, value: Any, **options: Any) -> TensorSpec:
    _fill_dtype(value)
    return _sized(env, (), **options)


def _like(
    env: SizeEnv,
    x: TensorSpec,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> TensorSpec:
    _plain(layout, pin_memory)
    where = x.device if device is None else _device(device)
    return TensorSpec(dtype or x.dtype, x.shape, format_stride(env, x, memory_format), where)


def _full_like(env: SizeEnv, x: TensorSpec, value: Any, **options: Any) -> TensorSpec:
    _fill_dtype(value)
    return _like(env, x, **options)


def _new(env: SizeEnv, x: TensorSpec, shape: Sequence[Any], *, dtype: torch.dtype | None = None, device: Any = None,
         **options: Any) -> TensorSpec:
    return _sized(env, shape, dtype=dtype or x.dtype, device=x.device if device is None else device, **options)


def _fill(env: SizeEnv, x: TensorSpec, value: Any) -> TensorSpec:
    """Some meta kernels take a value of any size, which other kernels refuse."""
    if isinstance(value, TensorSpec) and value.ndim:
        raise Invalid("sizes")
    dtype = value.dtype if isinstance(value, TensorSpec) else _fill_dtype(value)
    if dtype.is_complex and not x.dtype.is_complex:
        raise NotCovered("a complex value")
    return _like(env, x)


def _new_full(env: SizeEnv, x: TensorSpec, shape: Sequence[Any], value: Any, **options: Any) -> TensorSpec:
    _fill_dtype(value)
    return _new(env, x, shape, **options)


def _constant(value: Any) -> Any:
    return lambda *args, **kwargs: value


for _name, _value in (("zeros", 0), ("ones", 1)):
    define(f"aten.{_name}.default", kind="factory", infer=_sized, fill=_constant(_value))
    define(f"aten.{_name}_like.default", kind="factory", infer=_like, fill=_constant(_value), differentiable=False)
    define(f"aten.new_{_name}.default", kind="factory", infer=_new, fill=_constant(_value), differentiable=False)
define("aten.empty.memory_format", kind="factory", infer=_sized, is_uninitialised=True)
define("aten.empty_like.default", kind="factory", infer=_like, differentiable=False, is_uninitialised=True)
define("aten.new_empty.default", kind="factory", infer=_new, differentiable=False, is_uninitialised=True)
define("aten.full.default", kind="factory", infer=_full, fill=lambda shape, value, **options: value)
for _name, _rule, _place in (("full_like", _full_like, 1), ("new_full", _new_full, 2)):
    define(f"aten.{_name}.default", kind="factory", infer=_rule, differentiable=False,
           fill=lambda *args, _place=_place, **options: args[_place])
define("aten.scalar_tensor.default", kind="factory", infer=_scalar_tensor, fill=lambda value, **options: value)
define("aten.fill.Scalar", "aten.fill.Tensor", infer=_fill, fill=lambda x, value: value)
for _name, _draws in (("rand", Draws("uniform")), ("randn", Draws("normal"))):
    define(f"aten.{_name}.default", kind="factory", infer=_sized, draws=_draws)
    define(f"aten.{_name}_like.default", kind="factory", infer=_like, differentiable=False, draws=_draws)
declare("uniform.default", draws=Draws("uniform", bounded=True))
declare("normal_functional.default", draws=Draws("normal", bounded=True))


def _empty_strided(env: SizeEnv, shape: Sequence[Any], stride: Sequence[Any], **options: Any) -> TensorSpec:
    spec = _sized(env, shape, **options)
    if len(stride) != len(shape):
        raise NotCovered("strides")
    return spec.with_(stride=_sizes(env, stride))


define("aten.empty_strided.default", kind="factory", infer=_empty_strided, is_uninitialised=True)
declare("new_empty_strided.default", is_uninitialised=True)


# -- Ranges -------------------------------------------------------------------------------------------------------


def _arange(env: SizeEnv, start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None,
            **options: Any) -> TensorSpec:
    if dtype is None:
        kinds: list[Any] = [scalar_dtype(v) for v in (start, end, step)]
        if None in kinds or torch.complex64 in kinds:
            raise Invalid("arange bounds")
        dtype = torch.int64 if all(not k.is_floating_point for k in kinds) else torch.get_default_dtype()
    if _is_computed((start, end, step)):
        if any(isinstance(v, ScalarSpec) and v.kind is not float for v in (start, end, step)):
            raise Invalid("arange bounds")  # ints come as sizes
        return _sized(env, (count(env, None),), dtype=dtype, **options)
    if not dtype.is_floating_point and any(isinstance(v, float) for v in (start, end, step)):
        raise NotCovered("float bounds of an integer range")
    return _sized(env, (_arange_length(env, start, end, step),), dtype=dtype, **options)


def _is_computed(bounds: Sequence[Any]) -> bool:
    """Whether a number that the graph computes is among the bounds of a range: its length exists once it has run."""
    return any(isinstance(v, ScalarSpec) for v in bounds)


def _arange_length(env: SizeEnv, start: Any, end: Any, step: Any) -> Dim:
    if any(isinstance(v, bool) for v in (start, end, step)) or step == 0:
        raise Invalid("arange bounds")
    if any(isinstance(v, sympy.Expr) for v in (start, end, step)):
        if not isinstance(step, int) or step < 0 or any(isinstance(v, float) for v in (start, end)):
            raise Invalid("arange bounds")
        if not env.require(sympy.Ge(end - start, 0), "arange"):
            raise Invalid("arange bounds")
        return floordiv(end - start + step - 1, step)
    if not all(math.isfinite(v) for v in (start, end, step)) or (end - start) * (1 if step > 0 else -1) < 0:
        raise Invalid("arange bounds")
    if all(type(v) is int for v in (start, end, step)):
        return (end - start + step - (1 if step > 0 else -1)) // step
    return math.ceil((float(end) - float(start)) / float(step))


def _arange_element(e: Any, index: Sequence[Any], start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
    if not all(type(v) is int for v in (start, step)):
        raise NotCovered("a range of floats")
    scaled = index[0] if step == 1 else e.mul(index[0], step)
    return scaled if start == 0 else e.add(scaled, start)


define(
    "aten.arange.default",
    kind="factory",
    infer=lambda env, end, **options: _arange(env, 0, end, 1, **options),
    element=lambda e, index, end, **options: _arange_element(e, index, 0, end, 1, **options),
    sizes_by_data=_is_computed,
)
define("aten.arange.start", "aten.arange.start_step", kind="factory", infer=_arange, element=_arange_element,
       sizes_by_data=_is_computed)


def _eye(env: SizeEnv, rows: Any, columns: Any = None, **options: Any) -> TensorSpec:
    return _sized(env, (rows, rows if columns is None else columns), **options)


define(
    "aten.eye.default",
    "aten.eye.m",
    kind="factory",
    infer=_eye,
    element=lambda e, index, *sizes, **options: e.eq(index[0], index[1]),
)




def _linspace(env: SizeEnv, start: Any, end: Any, steps: Any, **options: Any) -> TensorSpec:
    if not all(type(v) in (int, float) for v in (start, end)):
        raise NotCovered("linspace bounds")
    return _sized(env, (steps,), **options)


define("aten.linspace.default", kind="factory", infer=_linspace)


# -- Triangles ----------------------------------------------------------------------------------------------------


def _triangle(env: SizeEnv, x: TensorSpec, diagonal: Any = 0) -> TensorSpec:
    if len(x.shape) < 2:
        raise Invalid("a triangle needs two axes")
    return TensorSpec(x.dtype, x.shape, contiguous_stride(x.shape), x.device)


def _triangle_element(keep: str) -> Any:
    def element(e: Any, index: Sequence[Any], x: Any, diagonal: Any = 0) -> Any:
        if type(diagonal) is not int:
            raise NotCovered("symbolic diagonal")
        inside = getattr(e, keep)(e.sub(index[-1], index[-2]), diagonal)
        return e.where(inside, x, 0)

    return element


define("aten.tril.default", infer=_triangle, element=_triangle_element("le"))
define("aten.triu.default", infer=_triangle, element=_triangle_element("ge"))


def _in_layout_of(old: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device)
    return made.copy_(value)


def _in_layout_of_spec(env: SizeEnv, old: TensorSpec, value: TensorSpec) -> TensorSpec:
    return old.with_(requires_grad=value.requires_grad, offset=0)


# `aten.copy`, which autograd cannot differentiate: `value` in memory of its own, with the strides of `old`
define("ir.in_layout_of", target=_in_layout_of, infer=_in_layout_of_spec,
       decompose=lambda b, old, value: b.call("aten.copy.default", old, value), aliasing=lambda env, old, value: "copy")
