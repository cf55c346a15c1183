"""Attributes of modules: what lies in their `__dict__`, and what their class has, where that is one of its own."""

from __future__ import annotations

import types
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex_attention

from ..guards.guard_set import MISSING
from ..guards.source import Source, constant
from ..polyfills.attention import COMPILER
from ..values import BuiltinMethodValue, Interpreter, PyValue, Value, const, unsupported
from ..values.attribute_rules import attributes_of
from .attributes import _with_hook, attribute_error, is_data_descriptor

#: classes of modules that torch fills when something is asked for
_LAZY_MODULES = (type(torch.ops), torch._ops._OpNamespace)


def load_module_attr(interp: Interpreter, value: PyValue, name: str) -> Any:
    """`module.name`."""

    context = interp.context
    module = context.pin(value)
    if module is torch.backends.cudnn and name == "enabled" and interp.frame.globals.real is vars(torch.nn.functional):
        return const(torch.backends.cudnn.enabled)  # for norms, which answer alike: not worth a question at each call
    if module is torch and name in COMPILER and interp.frame.globals.real is vars(flex_attention):
        return context.const_object(COMPILER[name])
    if isinstance(module, _LAZY_MODULES):
        hasattr(module, name)  # what was not asked for before is put into the module now
        cls: type = types.ModuleType
    else:
        cls = type(module)  # which programs assign
        context.guards.add(_source(value), "type", cls, context.why)
    getattribute, hook = context.class_lookup(cls, "__getattribute__"), context.class_lookup(cls, "__getattr__")
    getter = None if getattribute is types.ModuleType.__getattribute__ else context.const_object(getattribute)
    if getter is not None and hook is not MISSING:
        return _with_hook(interp, hook, getter, value, name, const(name))
    if getter is not None:
        return interp.call(getter, [value, const(name)], {})
    return _find(interp, value, cls, name, hook)


def module_getattribute(interp: Interpreter, value: Value, name: str) -> Any:
    """`types.ModuleType.__getattribute__(value, name)`."""
    if not isinstance(value.opaque, types.ModuleType):
        raise unsupported(value, "an attribute looked for as in modules")
    return _find(interp, value, type(interp.context.pin(value)), name, MISSING)


def _find(interp: Interpreter, value: PyValue, cls: type, name: str, hook: Any) -> Any:
    """The attribute that modules find by themselves, else one through the `__getattr__` of their class, which is
    `hook`."""

    context = interp.context
    space = context.module_dict(value.obj)
    if name == "__dict__":
        return space
    if name == "__class__":
        return context.const_object(cls)
    found = _of_class(interp, cls, name)
    if found is not MISSING and is_data_descriptor(interp, found):
        return _get(interp, value, cls, name, found, hook)
    own = context.dict_get(space, name)
    if own is not None:
        return own
    if found is not MISSING:
        return _get(interp, value, cls, name, found, hook)
    if name == "__getattribute__":
        return BuiltinMethodValue(types.ModuleType.__getattribute__, value)
    if any(name in owner.__dict__ for owner in types.ModuleType.__mro__):
        return context.const_object(getattr(value.obj, name))
    of_module = context.dict_get(space, "__getattr__")
    if of_module is not None and hook is not MISSING:
        raise unsupported(value, f".{name} through two functions __getattr__")
    if of_module is not None:
        return interp.call(of_module, [const(name)], {})
    if hook is not MISSING:
        return interp.call(context.const_object(hook), [value, const(name)], {})
    raise attribute_error(interp, value, name)


def _of_class(interp: Interpreter, cls: type, name: str) -> Any:
    """The attribute of the module's class under a name, or MISSING; all modules have what modules have."""
    found = interp.context.class_lookup(cls, name)
    plain = next((owner.__dict__[name] for owner in types.ModuleType.__mro__ if name in owner.__dict__), MISSING)
    return MISSING if found is plain else found


def _get(interp: Interpreter, value: PyValue, cls: type, name: str, found: Any, hook: Any) -> Any:
    if isinstance(hook, types.FunctionType) and type(found) is property and isinstance(found.fget, types.FunctionType):
        return _with_hook(interp, hook, interp.context.const_object(found.fget), value, name)
    return interp.descriptor_get(found, value, cls, name)


def writes_to_dict(interp: Interpreter, value: PyValue, name: str) -> bool:
    """Whether a module keeps an attribute in its `__dict__`; those of a class of their own (`torch.backends.cudnn`) may
    have setters."""
    context, cls = interp.context, type(value.obj)
    context.guards.add(_source(value), "type", cls, context.why)
    plain = all(context.class_lookup(cls, method) is getattr(types.ModuleType, method)
                for method in ("__setattr__", "__delattr__"))
    found = context.class_lookup(cls, name)
    return plain and (found is MISSING or not is_data_descriptor(interp, found))


def _set(interp: Interpreter, value: PyValue, name: str, new: Value) -> Any:
    if not writes_to_dict(interp, value, name):
        raise unsupported(value, f".{name} = ...")
    context = interp.context
    context.dict_set(context.module_dict(context.pin(value)), name, new, const(name))
    return None


def _delete(interp: Interpreter, value: PyValue, name: str) -> Any:
    if not writes_to_dict(interp, value, name):
        raise unsupported(value, f"del .{name}")
    context = interp.context
    space = context.module_dict(context.pin(value))
    if context.dict_get(space, name) is None:
        raise interp.throw(AttributeError, f"'module' object has no attribute {name!r}")
    context.dict_delete(space, name)
    return None


attributes_of(types.ModuleType, get=load_module_attr, set=_set, delete=_delete)


def _source(module: PyValue) -> Source:
    return module.source or constant(module.obj, module.obj.__name__)
