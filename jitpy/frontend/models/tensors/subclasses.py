"""Subclasses of tensors: how they come in, what they are asked, how the program makes them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils._python_dispatch import return_and_correct_aliasing

from jitpy.ir import TensorSpec
from jitpy.ir.spec import contiguous_stride

from ...breaks import GraphBreak
from ...capture.array_inputs import plain_of
from ...capture.inputs import check_kind, describe, is_leaf, is_no_leaf
from ...capture.torch_calls.tensor_attributes import OF_SPEC
from ...capture.traced import Uncapturable
from ...guards.source import Source, slot
from ...interpreter.callees import builtin
from ...interpreter.calls import SizePayload
from ...interpreter.tensor_subclasses import (
    NOT_CONVERTED,
    call_function,
    is_function_enabled,
    tensors_in,
    unasked,
)
from ...values import (
    Interpreter,
    PyValue,
    TensorValue,
    TraceContext,
    TupleValue,
    Value,
    WrapperValue,
    const,
)
from ...values.function_block import FunctionBlockValue
from ...values.tensor import overloads_torch
from ...values.tree import dict_of

_Base = torch._C.TensorBase


# -- from outside ---------------------------------------------------------------------------------------------


def has_dispatch(cls: type) -> bool:
    """Whether a class of tensors has a `__torch_dispatch__` of its own."""
    return cls.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]


def wrap_wrapper(context: TraceContext, obj: torch.Tensor, cls: type, source: Source) -> Value | None:
    """A tensor that is made of others, as its class says with `__tensor_flatten__`; None for other kinds."""
    if not hasattr(cls, "__tensor_flatten__") or not hasattr(cls, "__tensor_unflatten__"):
        return None
    with torch._C.DisableTorchFunctionSubclass():  # what it is, and not what its class says of it
        if obj.layout is not torch.strided or obj.is_nested or obj.is_sparse:
            return None
        guard, spec = describe(context.builder, obj, source, None)
    context.guard(source, "tensor", guard)
    context.has_overloads = True
    return WrapperValue(spec, cls, source, obj)


def wrap_subclass(context: TraceContext, obj: torch.Tensor, cls: type, source: Source) -> Value:
    """A tensor with elements, of a class that says what torch makes of it: the graph gets it as a plain tensor."""
    context.guard(source, "type", cls)
    if issubclass(cls, UninitializedTensorMixin):
        return PyValue(obj, source, pinned=False)
    plain = torch._C.TensorBase.as_subclass(obj, torch.Tensor)
    try:
        check_kind(plain)
        traced = context.input_tensor(plain, slot(source, plain_of))
    except Uncapturable:
        return PyValue(obj, source, pinned=False)
    context.has_overloads = True
    value = context.tensors[id(traced)] = TensorValue(traced, cls, source, obj)
    return value


# -- attributes -----------------------------------------------------------------------------------------------


def read_wrapper(interp: Interpreter, value: WrapperValue, name: str) -> Any:
    """An attribute in C of a wrapper; NotImplemented where an operation computes it."""
    if name == "shape":
        return interp.from_payload(SizePayload(value.spec.shape))
    if name in OF_SPEC:
        return interp.from_payload(interp.builder.attribute(value, name))
    if name == "requires_grad":
        return const(value.spec.requires_grad)
    if name == "is_leaf" and (value.real is None or not value.spec.requires_grad):
        return const(True)
    if name in ("is_leaf", "grad_fn") and value.source is not None:
        interp.context.guard(value.source, "python", is_leaf if value.real.is_leaf else is_no_leaf)
        if name == "is_leaf":
            return const(value.real.is_leaf)
        if value.real.is_leaf:
            return const(None)
    if name == "grad_fn" and not value.spec.requires_grad:
        return const(None)
    return NotImplemented


# -- made by the program --------------------------------------------------------------------------------------


@builtin(torch.Tensor._make_wrapper_subclass)
def _make_wrapper_subclass(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args or not isinstance(args[0].opaque, type):
        raise GraphBreak("unsupported_call", "Tensor._make_wrapper_subclass()")
    cls = interp.context.pin(args[0])
    if not issubclass(cls, torch.Tensor) or not has_dispatch(cls):
        raise GraphBreak("exception", "Tensor._make_wrapper_subclass() of a class without __torch_dispatch__")
    payloads = {name: value.payload(interp) for name, value in kwargs.items()}
    shape = args[1].payload(interp) if len(args) == 2 else payloads.pop("size", None)
    if not isinstance(shape, (tuple, list)) or payloads.keys() - _OPTIONS or \
            payloads.get("layout", torch.strided) is not torch.strided:
        raise GraphBreak("unsupported_call", "Tensor._make_wrapper_subclass() with options that are not captured")
    stride = payloads.get("strides")
    dtype = payloads.get("dtype") or interp.builder.state.default_dtype
    device = torch.device(payloads.get("device") or "cpu")
    spec = TensorSpec(dtype, tuple(shape), contiguous_stride(tuple(shape)) if stride is None else tuple(stride), device,
                      bool(payloads.get("requires_grad", False)), payloads.get("storage_offset") or 0)
    interp.context.has_overloads = True
    return WrapperValue(spec, cls, made_with=(TupleValue(list(args)), dict_of(interp, kwargs)))


_OPTIONS = frozenset({"strides", "storage_offset", "dtype", "layout", "device", "requires_grad"})


@builtin(_Base.as_subclass)
def _as_subclass(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`tensor.as_subclass(cls)`: the same memory, for a class that adds nothing below Python."""
    given = [*args, *kwargs.values()]
    if len(given) != 2 or not isinstance(given[1].opaque, type) or given[0].outline is None or given[0].has_dispatch:
        raise GraphBreak("unsupported_call", "Tensor.as_subclass()")
    cls = interp.context.pin(given[1])
    if not issubclass(cls, torch.Tensor) or has_dispatch(cls):
        raise GraphBreak("unsupported_call", "Tensor.as_subclass() of a class with __torch_dispatch__")
    with interp.recording("Tensor.as_subclass()"):
        made = interp.builder.record(torch.ops.aten.alias.default, (given[0].payload(interp),), {})
    interp.context.has_overloads = interp.context.has_overloads or overloads_torch(cls)
    return interp.from_payload(made, cls)


@builtin(return_and_correct_aliasing)
def _correct_aliasing(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of an operation as C++ has it: what is written to is returned. Wrappers have no memory to share."""
    names = ("func", "args", "kwargs", "out")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.keys() != set(names) or not isinstance(given["func"].opaque, torch._ops.OpOverload):
        raise GraphBreak("unsupported_call", "return_and_correct_aliasing()")
    func = interp.context.pin(given["func"])
    schema = func._schema
    written = [one.alias_info for one in schema.returns if one.alias_info is not None and one.alias_info.is_write]
    if not written:
        return given["out"]
    places = [i for i, one in enumerate(schema.arguments)
              if one.alias_info is not None and one.alias_info.before_set & written[0].before_set]
    operands = given["args"].branches(interp)
    if len(written) > 1 or len(schema.returns) > 1 or torch.Tag.inplace_view in func.tags or \
            len(places) != 1 or operands is None or places[0] >= len(operands):
        raise GraphBreak("unsupported_call", f"return_and_correct_aliasing() of {schema.name}")
    return operands[places[0]]


# -- `__torch_function__` -------------------------------------------------------------------------------------


@builtin(torch.overrides.has_torch_function)
def _has_torch_function(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _has_torch_function_in(interp, args[0].branches(interp) or [], kwargs)


@builtin(torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic)
def _has_torch_function_in(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    asked = interp.context.has_overloads and any(
        value.overloads and overloads_torch(value.cls) for value in tensors_in(interp, args))
    return const(asked and is_function_enabled(interp))


@builtin(torch._C._is_torch_function_enabled)
def _is_torch_function_enabled(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return const(is_function_enabled(interp))


@builtin(torch.overrides.handle_torch_function)
def _handle_torch_function(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    if len(args) < 2:
        raise GraphBreak("exception", "handle_torch_function()")
    asked = [value for value in tensors_in(interp, args[1].branches(interp) or [])
             if value.overloads and overloads_torch(value.cls)]
    return call_function(interp, args[0], asked, args[2:], kwargs)


@builtin(torch.Tensor.__torch_function__.__func__)
def _torch_function(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """`torch.Tensor.__torch_function__`: the function as it is without classes, and results of the class."""
    given = dict(zip(("cls", "func", "types", "args", "kwargs"), args, strict=False)) | kwargs
    if {"cls", "func", "types"} - given.keys():
        raise GraphBreak("exception", "Tensor.__torch_function__()")
    cls = given["cls"].constant(interp)
    if not all(one.constant(interp) in interp.context.mro(cls) for one in given["types"].branches(interp) or ()):
        return interp.context.const_object(NotImplemented)
    named = interp.context.dict_items(given["kwargs"]) if "kwargs" in given and given["kwargs"].cls is dict else []
    state = interp.builder.state
    state.function_blocks += 1
    try:
        with interp.calling_ordinarily():
            result = interp.call_sync(given["func"], given["args"].branches(interp) or [], dict(named))
    finally:
        state.function_blocks -= 1
    function = given["func"].called
    return result if function is not None and function in NOT_CONVERTED else _converted(interp, result, given["cls"])


def _converted(interp: Interpreter, value: Value, cls: Value) -> Value:
    """A result, or the tensors in a tuple or list of results, as the class."""
    if value.outline is not None:
        plain = cls.constant(interp) in interp.context.mro(value.cls)
        return value if plain else _as_subclass(interp, [value, cls], {})
    converted = value.rebuild(interp, lambda item: _converted(interp, item, cls))
    return value if converted is None or value.cls is dict else converted


@builtin(torch._C.DisableTorchFunctionSubclass)
def _function_block(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return FunctionBlockValue(interp.step_to_break())


def _check_block(args: list[Value]) -> None:
    """A block that plain Python makes is entered and left by plain Python."""
    if not args or not args[0].is_function_block:
        raise GraphBreak("torch_mode", "a block without __torch_function__ that was made before")


@builtin(torch._C.DisableTorchFunctionSubclass.__enter__)
def _enter_block(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _check_block(args)
    interp.builder.state.function_blocks += 1
    return const(None)


@builtin(torch._C.DisableTorchFunctionSubclass.__exit__)
def _leave_block(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _check_block(args)
    interp.builder.state.function_blocks -= 1
    return const(None)


if hasattr(torch.cpu, "get_capabilities"):

    @builtin(torch.cpu.get_capabilities)
    def _get_capabilities(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        """Look up the abilities of the processor now, so that the cache in front of the function has them."""
        torch.cpu.get_capabilities()
        return NotImplemented


unasked.update({_Base.as_subclass, torch.Tensor._make_wrapper_subclass, torch.Tensor._make_subclass})
