"""`inspect.signature` of Python functions."""

from __future__ import annotations

import collections
import inspect
import types
from typing import Any

from ...arity import bodiless
from ...breaks import GraphBreak
from ...guards.source import attr
from ...interpreter.callees import builtin
from ...polyfills import MODELLED_TYPES
from ...values import UNKNOWN, ConstValue, DictValue, FunctionValue, Interpreter, ModelledValue, ObjectValue, Value


@builtin(inspect.signature)
def inspect_signature(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A signature made anew, as eager makes one: computed now, and fixed by the guards on what it is made of."""
    target: Any = args[0]
    bound = target.cls is types.MethodType and target.opaque is UNKNOWN
    if bound:
        target = target.func
    while target.code is not None and (attributes := target.instance_dict(interp)) is not None:
        if interp.context.dict_get(attributes, "__signature__") is not None:
            raise GraphBreak("unsupported_call", "inspect.signature of a function with a __signature__")
        wrapped = interp.context.dict_get(attributes, "__wrapped__")
        if wrapped is None:
            break
        target = wrapped
    if target.code is None or kwargs:
        raise GraphBreak("unsupported_call", "inspect.signature")
    real = target.known  # guards know the code, and what is read of the rest
    if real is None or target.source is None:
        return _signature_of_made(interp, target, bound)
    found = inspect.signature(types.MethodType(real, object()) if bound else real)
    defaults, kwdefaults = target.parameter_defaults(interp.context)
    names = real.__code__.co_varnames[: real.__code__.co_argcount]
    by_name = dict(zip(names[len(names) - len(defaults):], defaults, strict=True)) | kwdefaults
    annotations: dict[str, Value] = {}
    if real.__annotations__:
        held: Any = interp.context.wrap(real.__annotations__, attr(target.source, "__annotations__"))
        annotations = dict(interp.context.dict_items(held))
    else:
        interp.context.guard(attr(target.source, "__annotations__"), "len", 0)
    return _signature(interp, found, by_name, annotations)


def _signature_of_made(interp: Interpreter, target: FunctionValue, bound: bool) -> Value:
    """The signature of a function that tracing made, read off a real one with the same parameters."""
    if target.annotations is not None and target.annotations.base is not tuple:
        raise GraphBreak("unsupported_call", "inspect.signature of a function with computed annotations")
    defaults, kwdefaults = target.parameter_defaults(interp.context)
    probe = bodiless(target, len(defaults), kwdefaults)
    names = target.code.co_varnames[: target.code.co_argcount]
    by_name = dict(zip(names[len(names) - len(defaults):], defaults, strict=True)) | kwdefaults
    pairs = [interp.context.force(v) for v in target.annotations.items] if target.annotations is not None else []
    annotations = {key.value: value for key, value in zip(pairs[::2], pairs[1::2], strict=True)
                   if key.is_constant}
    return _signature(interp, inspect.signature(types.MethodType(probe, object()) if bound else probe), by_name,
                      annotations)


def _signature(interp: Interpreter, real: inspect.Signature, defaults: dict[str, Value],
               annotations: dict[str, Value]) -> ObjectValue:
    empty = interp.context.const_object(inspect.Signature.empty)
    parameters = DictValue(None, collections.OrderedDict)
    for name, parameter in real.parameters.items():
        kind = interp.context.const_object(parameter.kind)
        made = _instance(interp, inspect.Parameter, _name=ConstValue(name), _kind=kind,
                         _default=defaults.get(name, empty), _annotation=annotations.get(name, empty))
        interp.context.dict_set(parameters, name, made, ConstValue(name))
    proxy = ModelledValue(types.MappingProxyType, MODELLED_TYPES[types.MappingProxyType])
    proxy.hidden["mapping"] = parameters
    return _instance(interp, inspect.Signature, _parameters=proxy, _return_annotation=annotations.get("return", empty))


def _instance(interp: Interpreter, cls: Any, **slots: Value) -> ObjectValue:
    value = ObjectValue(cls)
    for name, content in slots.items():
        interp.context.write_slot(value, vars(cls)[name], content)
    return value
