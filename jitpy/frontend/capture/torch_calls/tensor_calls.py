"""Calls of torch functions: which Python callables are torch ops, and how a call reaches the graph builder.

A call is tried in this order: functions about modes and metadata (answered while tracing), shortcuts that go straight
to table ops, and the derived path, which runs the function on fake tensors (`fake_tensors.py`).
"""

from __future__ import annotations

import operator
import types
from typing import Any

import torch

from jitpy.ir import NotCovered
from jitpy.ir.ops.through_views import at, put

from ...arity import accepts
from .. import derived_calls, fast_calls, quantised_calls
from ..computed_sizes import as_sizes, has_computed_int
from ..default_devices import with_default_device
from ..overloads import PYTHON_OPERATORS, Reads
from ..torch_state import torch_state_functions
from ..traced import DECLINED, GraphBuilder, Uncapturable, tensors_in
from . import attention_calls, foreach, generator_state  # noqa: F401  (registers functions of the state)
from .batch_norm_modules import batch_norm
from .checked_values import checked_functions
from .constructors import CONSTRUCTORS
from .recurrent_modules import RECURRENT
from .scalars import item, scalar_methods
from .tensor_attributes import metadata_methods
from .tensor_indexing import getitem, setitem

#: modules and classes that have torch's functions
_OWNERS = ("torch", "torch._C._nn", "torch._C._linalg", "torch._C._fft", "torch._C._special", "_VariableFunctionsClass")

#: Python functions of torch that are recorded whole: their bodies do nothing that a program can see but call ATen.
PYTHON_FUNCTIONS: set[Any] = {
    torch.functional.einsum, torch.functional.split, torch.functional.norm, torch.functional.meshgrid,
    torch.functional.broadcast_tensors, torch.functional.cdist, torch.functional.tensordot, torch.functional.block_diag,
    torch.functional.atleast_1d, torch.functional.atleast_2d, torch.functional.atleast_3d,
    torch.functional.cartesian_prod, torch.functional.chain_matmul, torch.functional.stft, torch.functional.lu,
    torch.functional.unravel_index, torch.functional.broadcast_shapes, torch.Tensor.split, torch.Tensor.norm,
    torch.Tensor.stft, torch.Tensor.__rlshift__, torch.Tensor.__rrshift__, torch.Tensor.__ipow__, torch.Tensor.lu,
    torch.Tensor.unflatten, torch.Tensor.__contains__, torch.nn.functional.grid_sample, *PYTHON_OPERATORS,
}


def is_torch_callable(fn: Any) -> bool:
    """Whether `GraphBuilder.call` takes `fn`."""
    try:
        fn = _unwrapped(fn)
        if fn in torch_state_functions or fn in _HANDLERS or fn in _SHORTCUTS or fn in PYTHON_FUNCTIONS:
            return True
    except TypeError:
        return False
    return _is_aten(fn)


def writes(fn: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> bool:
    """Whether an operator, or an overload of it, changes an argument, or is there for other effects."""
    overloads = [fn] if isinstance(fn, torch._ops.OpOverload) else [getattr(fn, name) for name in fn.overloads()]
    return any(one._schema.is_mutable or not one._schema.returns for one in overloads)


def _unwrapped(fn: Any) -> Any:
    """torch.compile, once imported, wraps some functions of torch (`torch.manual_seed`): the original."""
    inner = getattr(fn, "__wrapped__", None)
    return inner if inner in torch_state_functions else fn


def _is_aten(fn: Any) -> bool:
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return issubclass(torch.Tensor, fn.__objclass__) and fn.__objclass__ is not object
    if isinstance(fn, types.BuiltinFunctionType):
        return fn in _TORCH_BUILTINS or getattr(fn.__self__, "__name__", None) in _OWNERS
    return False


_TORCH_BUILTINS = frozenset(
    value
    for module in (torch._C._nn, torch._C._VariableFunctions, torch._C._linalg, torch._C._fft, torch._C._special)
    for value in (getattr(module, name) for name in dir(module))
    if isinstance(value, types.BuiltinFunctionType)
)


def dispatch(builder: GraphBuilder, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """See `GraphBuilder.call`."""
    kwargs = with_default_device(fn, kwargs, builder.state.device_of_factories)
    if kwargs.get("requires_grad") is True:  # a factory makes a leaf
        made = dispatch(builder, fn, args, {name: value for name, value in kwargs.items() if name != "requires_grad"})
        builder.speculation.begin(made)
        return made
    if type(fn) is types.FunctionType:
        fn = _unwrapped(fn)
    handler = _HANDLERS.get(fn)
    if fn not in metadata_methods:
        result = quantised_calls.run(builder, fn, args, kwargs)
        if result is not DECLINED:
            return result
    if handler is not None:
        try:
            return handler(builder, *args, **kwargs)
        except TypeError as error:
            if accepts(handler, 1 + len(args), tuple(kwargs)):
                raise
            raise Uncapturable("unsupported_call", str(error)) from None  # eager's own words
    handler = torch_state_functions.get(fn)
    if handler is not None:
        return handler(builder, args, kwargs)
    name = foreach.foreach_name(fn)
    if name is not None:
        result = foreach.run(builder, name, args, kwargs)
        if result is not DECLINED:
            return result
    return record_call(builder, fn, args, kwargs)


def record_call(builder: GraphBuilder, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call of an op: by a shortcut, else on the derived path."""
    state = builder.state
    args, kwargs = _with_numbers(builder, fn, args, kwargs)
    if _numbers_are_sizes(fn) and (has_computed_int(args) or has_computed_int(kwargs)):
        args, kwargs = as_sizes(builder, args), as_sizes(builder, kwargs)
    if fn is attention_calls.ATTENTION and attention_calls.is_chosen(state):
        return attention_calls.with_other_kernels(builder, args, kwargs, _record_call)
    return _record_call(builder, fn, args, kwargs)


def _record_call(builder: GraphBuilder, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    state = builder.state
    mark = builder.checkpoint()  # behind the nodes of numbers that were asked for
    computed = has_computed_int(args) or has_computed_int(kwargs)
    given = args, kwargs
    whole = fn is attention_calls.ATTENTION and attention_calls.is_on_gpu(args, kwargs)
    if whole:
        args, kwargs = attention_calls.prepared(builder, args, kwargs)
    if whole or not state.autocast_enabled:
        result = _shortcut(builder, fn, args, kwargs)
        if result is not DECLINED:
            return result
        builder.rollback(mark)
        if computed:
            # an int that the graph computes, where torch takes a size
            result = _shortcut(builder, fn, as_sizes(builder, args), as_sizes(builder, kwargs))
            if result is not DECLINED:
                return result
            builder.rollback(mark)
    args, kwargs = given
    if computed:
        args, kwargs = as_sizes(builder, args), as_sizes(builder, kwargs)
    return derived_calls.run(builder, fn, args, kwargs)


def _with_numbers(
    builder: GraphBuilder, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with their `item()` in place of tensors in which torch reads a number or a size."""
    if builder.state.of_element or not any(tensor.ndim == 0 for tensor in tensors_in((args, kwargs))):
        return args, kwargs
    plan = fast_calls.plan_of(fn, args, kwargs)
    for place in plan.places if type(plan) is Reads else ():
        args, kwargs = put(args, kwargs, place, item(builder, at(args, kwargs, place)))
    return args, kwargs


def _numbers_are_sizes(fn: Any) -> bool:
    """Whether it is a factory whose Python numbers decide the size of the result."""
    return fn is torch.arange or fn is torch.range or getattr(fn, "overloadpacket", fn) is torch.ops.aten.arange


def _shortcut(builder: GraphBuilder, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    shortcut = _SHORTCUTS.get(fn)
    try:
        return fast_calls.run(builder, fn, args, kwargs) if shortcut is None else shortcut(builder, *args, **kwargs)
    except NotCovered:
        return DECLINED
    except (Uncapturable, AssertionError):
        raise
    except Exception:
        return DECLINED  # the derived path raises eager's error, if it is one


_HANDLERS: dict[Any, Any] = {**metadata_methods, **scalar_methods, **checked_functions}

_SHORTCUTS: dict[Any, Any] = {
    torch._C.TensorBase.__getitem__: getitem,
    torch._C.TensorBase.__setitem__: setitem,
    operator.getitem: getitem,
    operator.setitem: setitem,
    **CONSTRUCTORS,
    **RECURRENT,
    torch.batch_norm: batch_norm,
}

__all__ = ["PYTHON_FUNCTIONS", "dispatch", "is_torch_callable"]
