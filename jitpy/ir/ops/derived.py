"""Shape rules derived from torch: the op itself, run on meta tensors.

This covers every op without a hand-written rule. A meta tensor has sizes and no memory, so the op's own code computes
the result's sizes, strides, dtype and whether it requires grad. Where an op has no meta kernel, or its meta kernel
raises, the real CPU kernel decides, on zeros, if that is cheap. Whether a result is a view is read off its storage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ..op import NotCovered, Op
from ..sizes import SizeEnv
from ..spec import ScalarSpec, Spec, TensorSpec

_META = torch.device("meta")

#: The largest input, in bytes, that is materialised to run a real kernel on zeros.
_REAL_LIMIT = 1 << 24

_CACHE: dict[Any, Derived] = {}
_CACHE_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Derived:
    """What running an op on meta tensors told: the result's spec, and its aliasing ('view', 'self' or 'copy')."""

    spec: Spec
    aliasing: str


def derive(op: Op, env: SizeEnv, args: tuple[Any, ...], kwargs: dict[str, Any], grad_enabled: bool = True) -> Derived:
    """Run `op` on stand-ins for `args` (specs, constants, sizes). Cached for static sizes.

    Raises what eager raises for these arguments; NotCovered where sizes depend on data, or nothing can tell.
    """
    if _mentions_symbols(args) or _mentions_symbols(tuple(kwargs.values())):
        from .symbolic import derive_symbolic

        return derive_symbolic(op, env, args, kwargs, grad_enabled)
    try:
        key = (
            op.name,
            grad_enabled,
            torch.get_default_dtype(),
            _key(args),
            tuple((k, _key(v)) for k, v in kwargs.items()),
        )
        found = _CACHE.get(key)
    except TypeError:  # an unhashable constant, such as a generator
        key = found = None
    if found is None:
        found = _derive_static(op, args, kwargs, grad_enabled)
        if key is not None:
            if len(_CACHE) >= _CACHE_LIMIT:
                _CACHE.clear()
            _CACHE[key] = found
    return found


def _mentions_symbols(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_mentions_symbols(v) for v in value)
    if type(value) is TensorSpec:
        return not value.is_static or type(value.offset) is not int
    return isinstance(value, sympy.Basic)


def _key(value: Any) -> Any:
    kind = type(value)
    if kind is tuple or kind is list:
        return (kind, *map(_key, value))
    if kind in (int, float, bool, complex):
        return kind, value
    return value


def _derive_static(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], grad_enabled: bool) -> Derived:
    refuse_data_dependent(op)
    device = common_device(op, args, kwargs)
    try:
        result, inputs = call(op, args, kwargs, grad_enabled, lambda spec: stand_in(spec, _META))
    except NotCovered:
        raise
    except Exception as error:
        # Not every meta kernel exists, and some are stricter than eager: the real kernel has the last word.
        result, inputs = _run_on_zeros(op, args, kwargs, grad_enabled, error)
    return describe(result, inputs, device)


def refuse_data_dependent(op: Op) -> None:
    """NotCovered for ops whose result's size (or value on the host) depends on the data."""
    tags = getattr(op.target, "tags", ())
    if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
        raise NotCovered(f"the result of {op.name} depends on the data")


def common_device(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device of the result: an explicit one, else that of the tensors (0-dim CPU tensors follow the others)."""
    specs: list[TensorSpec] = []
    _collect(args, specs)
    _collect(tuple(kwargs.values()), specs)
    found: torch.device | None = None
    for spec in specs:
        if (
            found is None
            or found != spec.device
            and found.type == "cpu"
            and all(s.shape == () for s in specs if s.device == found)
        ):
            found = spec.device
        elif spec.device != found and not (spec.device.type == "cpu" and spec.shape == ()):
            raise NotCovered("tensors on several devices")
    explicit = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.device)]
    if explicit:
        if found is not None and explicit[0] != found:
            raise NotCovered("a copy to another device")
        return explicit[0]
    return found if found is not None else torch.get_default_device()


def _collect(values: Any, into: list[TensorSpec]) -> None:
    for value in values:
        if type(value) is TensorSpec:
            into.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, into)


def stand_in(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """A tensor with the layout of `spec` on `device`."""
    if spec.offset == 0:
        tensor = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=device)
    else:
        extent = 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride)) if 0 not in spec.shape else 0
        base = torch.empty(spec.offset + extent, dtype=spec.dtype, device=device)
        tensor = base.as_strided(spec.shape, spec.stride, spec.offset)
    return tensor.requires_grad_() if spec.requires_grad else tensor


def _zeros(spec: TensorSpec) -> torch.Tensor:
    tensor = stand_in(spec.with_(requires_grad=False), torch.device("cpu"))
    tensor.zero_() if all(s != 0 for s, n in zip(spec.stride, spec.shape) if n > 1) else tensor.untyped_storage().fill_(
        0
    )
    return tensor.requires_grad_() if spec.requires_grad else tensor


def call(
    op: Op,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    grad_enabled: bool,
    make: Callable[[TensorSpec], torch.Tensor],
) -> tuple[Any, list[torch.Tensor]]:
    """Call the op on stand-ins built by `make`; the result, and the stand-ins."""
    inputs: list[torch.Tensor] = []
    device: torch.device | None = None

    def convert(value: Any) -> Any:
        if type(value) is TensorSpec:
            tensor = make(value)
            inputs.append(tensor)
            return tensor
        if isinstance(value, (tuple, list)):
            return type(value)(convert(v) for v in value)
        if isinstance(value, torch.device):
            return device
        if isinstance(value, ScalarSpec):
            return _number(op, value)
        return value

    with torch.set_grad_enabled(grad_enabled), _undispatched():
        device = _META if make is not _zeros else torch.device("cpu")
        call_args = tuple(convert(a) for a in args)
        call_kwargs = {k: convert(v) for k, v in kwargs.items()}
        if not inputs and isinstance(op.target, torch._ops.OpOverload):
            if any(a.name == "device" for a in op.target._schema.arguments):
                call_kwargs["device"] = device
        return op.target(*call_args, **call_kwargs), inputs


def _undispatched() -> contextlib.AbstractContextManager[Any]:
    """Keep torch-function modes of the user (`torch.device` as a context, ...) away from the stand-ins."""
    return torch._C.DisableTorchFunction()


def _number(op: Op, spec: ScalarSpec) -> Any:
    """A stand-in for a host scalar: its type matters, its value must not."""
    if op.kind not in ("pointwise", "reduction", "matmul"):
        raise NotCovered("a host scalar decides the result's size")
    return {int: 3, float: 1.5, bool: True, complex: 1.5 + 0.5j}[spec.kind]


def _run_on_zeros(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], grad_enabled: bool, error: Exception
) -> tuple[Any, list[torch.Tensor]]:
    """Run the real kernel on zeros: raises eager's own error, or gives eager's own result."""
    specs: list[TensorSpec] = []
    _collect(args, specs)
    _collect(tuple(kwargs.values()), specs)
    if (
        any(s.device.type != "cpu" for s in specs)
        or op.is_random
        or not op.is_pure
        or sum(s.numel * s.dtype.itemsize for s in specs) > _REAL_LIMIT
        or not specs
    ):
        raise NotCovered(f"{op.name} on meta tensors: {error}") from error
    return call(op, args, kwargs, grad_enabled, _zeros)


def describe(result: Any, inputs: list[torch.Tensor], device: torch.device) -> Derived:
    """The spec and the aliasing of what an op returned."""
    storages = {t.untyped_storage()._cdata for t in inputs}
    kinds: set[str] = set()

    def spec_of(value: Any) -> Spec:
        if isinstance(value, torch.Tensor):
            if (
                value.layout is not torch.strided
                or value.is_nested
                or type(value) not in (torch.Tensor, torch.nn.Parameter)
            ):
                raise NotCovered("a result that is no dense tensor")
            if any(value is t for t in inputs):
                kinds.add("self")
            elif value.untyped_storage()._cdata in storages:
                kinds.add("view")
            return TensorSpec(
                value.dtype,
                tuple(value.shape),
                tuple(value.stride()),
                device,
                value.requires_grad,
                value.storage_offset(),
            )
        if value is None:
            return None
        if isinstance(value, (tuple, list)):
            return tuple(spec_of(v) for v in value)
        if type(value) in (bool, int, float, complex):
            return ScalarSpec(type(value))
        raise NotCovered(f"a result of type {type(value).__name__}")

    spec = spec_of(result)
    return Derived(spec, "self" if kinds == {"self"} else "view" if kinds else "copy")
