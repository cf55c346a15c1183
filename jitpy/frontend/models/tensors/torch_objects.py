"""Tensors as objects: `.grad`, read and assigned while tracing, and deep copies."""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any

import torch

from ...breaks import GraphBreak
from ...capture.inputs import check_kind, memory_range
from ...capture.layouts import dense_order
from ...capture.torch_calls.tensor_attributes import has_no_grad
from ...capture.traced import Uncapturable
from ...guards.guard_set import MISSING
from ...guards.source import Source, attr
from ...interpreter.callees import builtin, calls_of
from ...interpreter.calls import SizePayload, recording_whole
from ...interpreter.tensor_subclasses import asks_class, call_function
from ...values import (
    UNKNOWN,
    BuiltinMethodValue,
    MethodValue,
    PyValue,
    TensorValue,
    TraceContext,
    Value,
    const,
    unsupported,
)
from ...values.attribute_rules import attributes_of
from ...values.opaque import wrap_by_identity
from ...values.tensor import overloads_torch, sets_attribute
from ...values.wrapping import wraps
from .subclasses import has_dispatch, read_wrapper, wrap_subclass, wrap_wrapper

if TYPE_CHECKING:
    from ...values import Interpreter


wraps(torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator,
      by_type=False)(wrap_by_identity)


def _describe_operator(method: Any) -> None:
    @builtin(method)
    def describe(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A text that an operator has for good."""
        if len(args) != 1 or kwargs or args[0].opaque is UNKNOWN:
            raise GraphBreak("unsupported_call", f"{method.__qualname__}()")
        return const(method(interp.context.pin(args[0])))


for _method in {torch._ops.OpOverload.__str__, torch._ops.OpOverload.__repr__, torch._ops.OpOverload.name,
                torch._ops.OpOverloadPacket.__str__, torch._ops.OpOverloadPacket.__repr__}:
    _describe_operator(_method)


@wraps(torch.Tensor, by_type=False)
def _wrap_tensor(context: TraceContext, obj: torch.Tensor, cls: type, source: Source) -> Value:
    """A tensor from outside: an input of the graph, or opaque where its class or kind cannot be captured."""
    traced = None
    if has_dispatch(cls):
        wrapper = wrap_wrapper(context, obj, cls, source)
        if wrapper is not None:
            return wrapper
    elif overloads_torch(cls):
        return wrap_subclass(context, obj, cls, source)
    else:
        with contextlib.suppress(Uncapturable):
            check_kind(obj)
            traced = context.input_tensor(obj, source)
    if traced is None:
        context.guard(source, "type", cls)
        return PyValue(obj, source, pinned=False)
    found = context.tensors.get(id(traced))
    if found is None:
        found = context.tensors[id(traced)] = TensorValue(traced, cls, source, obj)
    return found


def _load_attr(interp: Interpreter, value: TensorValue, name: str) -> Any:
    context = interp.context
    if name == "__class__":
        return context.const_object(value.cls)
    found = context.class_lookup(value.cls, name)
    kind = type(found)
    if found is MISSING or not interp.is_data_descriptor(found):
        own = context.dict_get(value.instance_dict(interp), name)
        if own is not None:
            return own
        if found is MISSING:
            raise interp.attribute_error(value, name)
    if name == "__dict__":
        return value.instance_dict(interp)
    if kind is types.FunctionType:
        return MethodValue(context.const_object(found), value)
    if kind in _C_METHODS:
        return BuiltinMethodValue(found, value)
    if kind is property and name != "grad" and isinstance(found.fget, types.FunctionType):
        return interp.call(context.const_object(found.fget), [value], {})
    if value.overloads and kind is types.GetSetDescriptorType and asks_class(interp, value):
        return call_function(interp, interp.context.const_object(found.__get__), [value], [value], {})
    if name == "grad" and kind is types.GetSetDescriptorType:
        return load_grad(interp, value)
    if kind is types.MemberDescriptorType and not issubclass(torch.Tensor, found.__objclass__):
        return interp.descriptor_get(found, value, value.cls, name)
    if kind in (types.GetSetDescriptorType, property, types.MemberDescriptorType):
        return _read(interp, value, name)
    return interp.descriptor_get(found, value, value.cls, name)


def _read(interp: Interpreter, value: TensorValue, name: str) -> Value:
    """An attribute that C finds."""
    if value.has_dispatch:
        found = read_wrapper(interp, value, name)
        return interp.record(getattr(torch._C.TensorBase, name).__get__, [value],
                             {}) if found is NotImplemented else found
    with interp.recording(f"Tensor.{name}"):
        payload = interp.builder.attribute(value.traced, name)
    return interp.from_payload(SizePayload(payload) if name == "shape" else payload)


@calls_of(types.MethodWrapperType)
def _call_getter(interp: Interpreter, fn: PyValue, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """`torch.Tensor.shape.__get__(tensor)`, as `__torch_function__` is told of attributes."""
    descriptor = fn.obj.__self__
    if fn.obj.__name__ != "__get__" or not isinstance(descriptor, types.GetSetDescriptorType) or \
            not issubclass(torch.Tensor, descriptor.__objclass__) or not args or args[0].outline is None or kwargs:
        return NotImplemented
    return _load_attr(interp, args[0], descriptor.__name__)


attributes_of(TensorValue, get=_load_attr)
_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def load_grad(interp: Interpreter, value: TensorValue) -> Value:
    """`value.grad`: what was assigned while tracing, else what the real tensor has (guarded)."""

    if value.grad is None:
        is_leaf = value.source is not None and value.real.is_leaf
        real = value.real.grad if is_leaf else None
        if real is not None and value.overloads:
            raise unsupported(value, ".grad")  # code that reads it asks the class
        if isinstance(real, torch.Tensor):
            value.grad = interp.context.wrap(real, attr(value.source, "grad"))  # type: ignore[arg-type]
        elif is_leaf:
            interp.builder.guards.add(value.source, "python", has_no_grad, "grad was read")
            value.grad = const(None)
        else:
            with interp.recording("Tensor.grad"):
                value.grad = interp.from_payload(interp.builder.attribute(value.traced, "grad"))
    return value.grad


@sets_attribute("grad")
def store_grad(interp: Interpreter, value: TensorValue, new: Value) -> None:
    """`value.grad = new`, replayed later; what torch may refuse to assign breaks the graph."""
    is_leaf = value.source is not None and value.real.is_leaf or value.traced in interp.builder.parameters.data
    retains = value.source is None and interp.builder.speculation.retains(value.traced)
    if not (is_leaf or retains) or not _assignable(value, new):
        raise unsupported(value, ".grad = ...")
    load_grad(interp, value)  # guards what was there before
    assign_grad(interp, value, new)


def assign_grad(interp: Interpreter, value: TensorValue, new: Value) -> None:
    """`value.grad` is `new` from now on; it is replayed when the graph has run."""
    value.grad, value.grad_assigned = new, True
    if value.source is not None or not interp.builder.speculation.is_leaf(value.traced):
        interp.context.touch(value)  # a leaf that was made here is no result


def _assignable(value: TensorValue, new: Value) -> bool:
    if new.tensor is None or new is value:
        return new.literal is None
    want, have = value.traced.spec, new.traced.spec
    return (want.shape, want.dtype, want.device) == (have.shape, have.dtype, have.device)


def _is_bare(tensor: torch.Tensor) -> bool:
    """Guard: there is nothing besides its elements that a copy would have: attributes, a gradient, inference mode's,
    the rest of the memory that a part of it shows."""
    alone = not tensor.__dict__ and tensor.grad is None and not tensor.is_inference()
    return alone and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize


#: The entry of a memo with the tensors from outside that were copied.
_FROM_OUTSIDE = -1


def deep_copy(interp: Interpreter, value: TensorValue, memo: dict[int, Any]) -> Value:
    """`copy.deepcopy` of a tensor without a gradient: one with the same layout in memory of its own. Tensors that share
    memory, whose copies would do so, too, break the graph."""

    if value.cls is torch.nn.Parameter:
        memo[id(value)] = made = _copied_parameter(interp, value)
        return made
    traced, storage = value.traced, value.traced.storage
    plain = value.cls is torch.Tensor and not traced.spec.requires_grad and not value.flag and value.attrs is None
    if not plain or traced.chain or id(storage) in memo or True in traced.lazy_bits or \
            dense_order(interp.builder.sizes, traced.spec) is None:
        raise unsupported(value, "copy.deepcopy()")
    if value.real is not None:
        if not _is_bare(value.real) or value.source is None:
            raise unsupported(value, "copy.deepcopy()")
        interp.builder.guards.add(value.source, "python", _is_bare, "copy.deepcopy of a tensor")
    if storage.input is not None:
        _keep_apart(interp, storage.input, value, memo.setdefault(_FROM_OUTSIDE, []))
    memo[id(storage)] = memo[id(value)] = made = interp.record(torch.clone, [value], {})
    return made


def _keep_apart(interp: Interpreter, number: int, value: TensorValue, others: list[Any]) -> None:
    """Guard: an input is in other memory than those that were copied before."""
    entry = interp.builder.inputs[number]
    begin, end = memory_range(entry.value)
    if any(begin < high and low < end for low, high in (memory_range(other.value) for other in others)):
        raise unsupported(value, "copy.deepcopy(), beside tensors in the same memory,")
    if others:
        interp.builder.guards.add(entry.source, "overlap", tuple(other.source for other in others))
    others.append(entry)


def _copied_parameter(interp: Interpreter, value: TensorValue) -> Value:
    """As `Parameter.__deepcopy__`: the data, in memory of its own whoever shares it, and the flag."""

    builder = interp.builder
    with recording_whole(interp, "copy.deepcopy()"):
        flag = builder.attribute(value.traced, "requires_grad")
        data = builder.record(torch.ops.aten.detach.default, (value.traced,), {})
        made = builder.parameters.make(builder.record(torch.ops.aten.clone.default, (data,), {}), flag)
    return interp.from_payload(made, torch.nn.Parameter)
