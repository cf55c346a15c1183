"""Attribute access by CPython's data model: the type's MRO, descriptors, the instance dict, `__getattr__`."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from ...marks import original_of
from ...runtime.lifetimes import is_weakly_held
from ..guards.guard_set import MISSING
from ..guards.source import attr, constant
from ..polyfills import MODELLED_ORIGINALS, MODELLED_TYPES, construct
from ..values import (
    DELETED,
    UNKNOWN,
    BuiltinMethodValue,
    ClassWrites,
    Interpreter,
    MethodValue,
    ObjectValue,
    PyValue,
    Value,
    const,
    unsupported,
)
from ..values.attribute_rules import attributes_of
from .frame import PUSHED, TracedException

_FUNCTION_LIKE = (types.FunctionType,)
_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_object_getattribute = object.__getattribute__
_module_getattr = torch.nn.Module.__getattr__


def load_attr(interp: Interpreter, value: Value, name: str) -> Any:
    """`value.name`: a Value, or PUSHED where a property or `__getattr__` in Python has to run. An AttributeError that
    it raises is told what was looked up."""
    try:
        found = find_attr(interp, value, name)
    except TracedException as error:
        error.value.tell_lookup(value, name)
        raise
    if found is PUSHED:
        interp.frame.lookup = value, name
    return found


def load_method(interp: Interpreter, value: Value, name: str) -> Any:
    """`value.name` in front of a call. Where the lookup is that of `object`, what a descriptor raises is left as it is.
    """
    lookup = interp.context.class_lookup
    plain = value.opaque is UNKNOWN and value.cls is not super and lookup(value.cls, "__getattr__") is MISSING and \
        lookup(value.cls, "__getattribute__") is object.__getattribute__
    return find_attr(interp, value, name) if plain else load_attr(interp, value, name)


def find_attr(interp: Interpreter, value: Value, name: str) -> Any:
    """As `load_attr`, without a word to the AttributeError."""
    found = value.find_attribute(interp, name)
    if found is not NotImplemented:
        return found
    cls = value.cls
    getattribute = interp.context.class_lookup(cls, "__getattribute__")
    if isinstance(getattribute, types.FunctionType):

        getter = interp.context.const_object(getattribute)
        hook = interp.context.class_lookup(cls, "__getattr__")
        if isinstance(hook, types.FunctionType):
            return _with_hook(interp, hook, getter, value, name, const(name))
        return interp.call(getter, [value, const(name)], {})
    return load_attr_default(interp, value, name)


def _with_hook(interp: Interpreter, hook: types.FunctionType, getter: Value, value: Value, name: str,
               *args: Value) -> Any:
    """`getter(value, *args)`, or what `__getattr__` says where that raises AttributeError."""

    body = interp.context.const_object(construct.attribute_or_hook)
    return interp.call(body, [interp.context.const_object(hook), getter, value, const(name), *args], {})


def _load_operator_attr(interp: Interpreter, value: PyValue, name: str) -> Any:
    """An overload of a packet, or a fact about an operator: they do not change."""
    if interp.context.class_lookup(value.cls, name) is not MISSING:
        return NotImplemented
    try:
        return interp.context.const_object(getattr(interp.context.pin(value), name))
    except AttributeError as error:
        raise interp.raise_real(error) from None


attributes_of(*_OPERATORS, get=_load_operator_attr)


def load_attr_default(interp: Interpreter, value: Value, name: str) -> Any:
    """`object.__getattribute__(value, name)`, then `__getattr__`."""
    hook = interp.context.class_lookup(value.cls, "__getattr__")
    if isinstance(hook, types.FunctionType):
        found = interp.context.class_lookup(value.cls, name)
        if is_property(interp, found) and isinstance(found.fget, types.FunctionType):
            return _with_hook(interp, hook, interp.context.const_object(found.fget), value, name)
    try:
        return object_getattribute(interp, value, name)
    except _NoAttribute:
        pass
    if hook is _module_getattr and value.is_instance:
        return _module_child(interp, value, name)
    if hook is not MISSING:

        if isinstance(hook, types.FunctionType):
            return interp.call(interp.context.const_object(hook), [value, const(name)], {})
        raise unsupported(value, f".{name} through __getattr__")
    return value.missing_attribute(interp, name)


class _NoAttribute(Exception):
    """The default lookup found nothing."""


def attribute_error(interp: Interpreter, value: Value, name: str) -> Exception:
    """The AttributeError of a lookup, which names what was looked up."""
    return _missing(interp, value, name, no_attribute(value, name))


def no_attribute(value: Value, name: str) -> str:
    return f"{value.title()} has no attribute {name!r}"


def _missing(interp: Interpreter, value: Value, name: str, message: str) -> Exception:
    error = interp.make_exception(AttributeError, message)
    error.tell_lookup(value, name)
    return interp.raise_value(error)


def object_getattribute(interp: Interpreter, value: Value, name: str) -> Any:
    """`object.__getattribute__`: raises `_NoAttribute` where it would raise AttributeError."""
    found = interp.context.class_lookup(value.cls, name)
    if found is not MISSING and is_data_descriptor(interp, found) and interp.context.has_slot(type(found), "__get__"):
        return descriptor_get(interp, found, value, value.cls, name)
    attrs = value.instance_dict(interp)
    if attrs is not None:
        own = interp.context.dict_get(attrs, name)
        if own is not None:
            return own
    if found is MISSING:
        raise _NoAttribute
    return descriptor_get(interp, found, value, value.cls, name)


def is_data_descriptor(interp: Interpreter, obj: Any) -> bool:
    cls = type(obj)
    if cls in _FUNCTION_LIKE or cls in _C_METHODS or cls is ClassWrites:
        return False
    return interp.context.has_slot(cls, "__set__", "__delete__")


def is_property(interp: Interpreter, found: Any, slot: str = "__get__") -> bool:
    """Whether something found in a class's dict is a property, or of a subclass that leaves `slot` as it is."""
    kind = type(found)
    return kind is property or isinstance(found, property) and interp.context.class_lookup(kind, slot) is getattr(
        property, slot)


def _name_by_slots(cls: type) -> str:
    """A class as slots that are not set name it."""
    if sys.version_info < (3, 13) or cls.__module__ in ("builtins", "__main__"):
        return cls.__name__
    return f"{cls.__module__}.{cls.__qualname__}"


def descriptor_get(interp: Interpreter, descr: Any, value: Value | None, owner: type, name: str,
                    told: type | None = None
                    ) -> Any:
    """`descr.__get__(value, owner)` for something found in a class's dict; `value` None means access on the class.
    `told`: the class that the descriptor is told, where a search that began behind it found this one in `owner`."""
    context = interp.context
    told = owner if told is None else told
    kind = type(descr)
    if kind is ClassWrites:
        return context.class_item(owner, name)
    if kind is types.FunctionType:
        original = MODELLED_ORIGINALS.get(descr)
        if original is not None:
            return context.const_object(original) if value is None else BuiltinMethodValue(original, value)
        func = context.const_object(descr)
        return func if value is None else MethodValue(func, value)
    if is_property(interp, descr):
        if value is None:
            return context.const_object(descr)
        if descr.fget is None:
            raise interp.throw(AttributeError, f"property {name!r} of {owner.__name__!r} object has no getter")

        return interp.call(context.const_object(descr.fget), [value], {})
    if kind is staticmethod:
        return context.const_object(descr.__func__)
    if kind is classmethod:
        cls_value = context.const_object(told)
        inner = descr.__func__
        return MethodValue(context.const_object(inner), cls_value)
    if kind in _C_METHODS:
        return context.const_object(descr) if value is None else BuiltinMethodValue(descr, value)
    if kind is types.ClassMethodDescriptorType:
        indifferent = owner in (object, type)  # `__init_subclass__`, `__prepare__`: the class does not matter
        return context.const_object(descr.__get__(None, owner if indifferent else told))
    if kind is types.MemberDescriptorType:
        if value is None:
            return context.const_object(descr)
        if name == "__dict__":
            return c_attribute(interp, value, name)
        if _is_hidden(value, descr):
            return value.hidden[name]
        found = value.member(interp, descr, owner)
        if found is None:
            raise interp.throw(AttributeError, f"{_name_by_slots(owner)!r} object has no attribute {name!r}")
        return found
    if kind is types.GetSetDescriptorType:
        if _is_hidden(value, descr):
            return value.hidden[name]
        return context.const_object(descr) if value is None else c_attribute(interp, value, name)
    jitted = original_of(descr)
    if jitted is not None:
        func = context.const_object(jitted)
        return func if value is None else MethodValue(func, value)
    get = context.class_lookup(kind, "__get__")
    if isinstance(get, types.FunctionType):

        holder = _class_item(interp, owner, name, descr)
        target = value if value is not None else const(None)
        return interp.call(context.const_object(get), [holder, target, context.const_object(told)], {})
    if get is not MISSING:
        return _c_descriptor(interp, descr, value, owner, name)
    return _class_item(interp, owner, name, descr)


def _is_hidden(value: Any, descriptor: Any) -> bool:
    """Whether a descriptor is that of a C type for the state which its model's methods see; a subclass may have
    an attribute of that name besides."""
    return value is not None and descriptor.__name__ in value.hidden and \
        MODELLED_TYPES.get(descriptor.__objclass__) is value.body


#: flag of types made by class statements
_HEAP_TYPE = 1 << 9


def _c_descriptor(interp: Interpreter, descr: Any, value: Value | None, owner: type, name: str) -> Any:
    """Descriptors implemented in C: those of torch's C types, `functools` objects, named-tuple fields."""
    if value is None:
        return interp.context.const_object(descr.__get__(None, owner))
    if value.base is tuple and type(descr).__name__ == "_tuplegetter":
        return interp.context.force(value.items[descr.__reduce__()[1][0]])
    if type(descr).__name__ in ("_lru_cache_wrapper", "cython_function_or_method"):
        return MethodValue(interp.context.const_object(descr), value)
    if value.opaque is not UNKNOWN and not isinstance(value.opaque, (type, types.ModuleType)):
        return value.c_attribute(interp, name)
    raise unsupported(value, f".{name}")


def _class_item(interp: Interpreter, cls: type, name: str, found: Any) -> Value:
    """A plain object stored in a class's dict: constants by value, anything else by the path to it."""
    if isinstance(found, (types.FunctionType, type, types.ModuleType, types.BuiltinFunctionType)):
        return interp.context.const_object(found)
    return interp.context.class_item(cls, name)


def load_class_attr(interp: Interpreter, value: PyValue, name: str) -> Any:
    """`cls.name`, as `type.__getattribute__` finds it."""
    cls = interp.context.pin(value)
    context = interp.context
    meta = type(cls)
    if name in ("__name__", "__qualname__", "__module__", "__doc__", "__mro__", "__bases__", "__base__", "__flags__",
                "__basicsize__", "__dictoffset__", "__itemsize__", "__weakrefoffset__"):
        if name in ("__mro__", "__bases__"):
            context.mro(cls)
        if name in ("__mro__", "__bases__") and is_weakly_held(cls):  # holding the tuple would keep the class alive
            return context.wrap(getattr(cls, name), attr(constant(cls, cls.__qualname__), name))
        if name in ("__name__", "__qualname__", "__module__", "__doc__") and cls.__flags__ & _HEAP_TYPE:
            return context.wrap(getattr(cls, name), attr(constant(cls, cls.__qualname__), name))
        return context.const_object(getattr(cls, name))
    if name == "__class__":
        return context.const_object(meta)
    if name == "__dict__":
        raise unsupported(value, ".__dict__")
    on_meta = context.class_lookup(meta, name)
    if on_meta is not MISSING and meta is not type and is_data_descriptor(interp, on_meta) and \
            context.has_slot(type(on_meta), "__get__"):
        return descriptor_get(interp, on_meta, value, meta, name)
    found = context.class_lookup(cls, name)
    if found is not MISSING:
        return descriptor_get(interp, found, None, cls, name)
    if on_meta is not MISSING:
        return descriptor_get(interp, on_meta, value, meta, name)
    hook = context.class_lookup(meta, "__getattr__")
    if isinstance(hook, types.FunctionType):

        return interp.call(context.const_object(hook), [value, const(name)], {})
    if hasattr(cls, name):
        raise unsupported(value, f".{name}")
    raise attribute_error(interp, value, name)


def _module_child(interp: Interpreter, value: ObjectValue, name: str) -> Any:
    """`nn.Module.__getattr__`: parameters, buffers and submodules, without tracing its Python body."""
    attrs = value.instance_dict(interp)
    assert attrs is not None
    for registry in ("_parameters", "_buffers", "_modules"):
        table = interp.context.dict_get(attrs, registry)
        found = interp.context.dict_get(table, name) if table is not None and issubclass(table.cls, dict) else None
        if found is not None:
            return found
    raise interp.throw(AttributeError, f"{value.cls.__name__!r} object has no attribute {name!r}")


def c_attribute(interp: Interpreter, value: Value, name: str) -> Value:
    """The value that a getset or member descriptor of C gives."""
    if name == "__class__":
        return interp.context.const_object(value.cls)
    if name == "__dict__":
        attrs = value.instance_dict(interp)
        if attrs is None:
            raise attribute_error(interp, value, name)
        return attrs
    return value.c_attribute(interp, name)


# -- writing ------------------------------------------------------------------------------------------------


def store_attr(interp: Interpreter, value: Value, name: str, new: Value) -> Any:
    """`value.name = new`: None, or PUSHED where a setter in Python has to run (its result is to be dropped)."""

    context = interp.context
    done = value.set_attribute(interp, name, new)
    if done is not NotImplemented:
        return done
    setter = context.class_lookup(value.cls, "__setattr__")
    if isinstance(setter, types.FunctionType):
        return interp.call(context.const_object(setter), [value, const(name), new], {})
    return object_setattr(interp, value, name, new)


def object_setattr(interp: Interpreter, value: Value, name: str, new: Value) -> Any:
    """`object.__setattr__(value, name, new)`."""

    context = interp.context
    found = context.class_lookup(value.cls, name)
    if found is not MISSING and is_data_descriptor(interp, found):
        kind = type(found)
        if is_property(interp, found, "__set__"):
            if found.fset is None:
                raise interp.throw(AttributeError, f"property {name!r} of {value.cls.__name__!r} object has no setter")
            return interp.call(context.const_object(found.fset), [value, new], {})
        if kind is types.MemberDescriptorType and value.set_member(interp, found, new):
            return None
        if kind in (types.GetSetDescriptorType, types.MemberDescriptorType):
            if not value.set_c_attribute(interp, name, new):
                raise unsupported(value, f".{name} = ...")
            return None
        setter = context.class_lookup(kind, "__set__")
        if isinstance(setter, types.FunctionType):
            return interp.call(context.const_object(setter),
                        [_class_item(interp, value.cls, name, found), value, new], {})
        raise unsupported(value, f".{name} = ...")
    if not value.takes_attributes:
        raise unsupported(value, f".{name} = ...")
    attrs = value.instance_dict(interp)
    if attrs is None:
        message = f"{value.cls.__name__!r} object has no attribute {name!r}"
        if sys.version_info >= (3, 13):
            more = " and no __dict__ for setting new attributes" if found is MISSING else ""
            raise _missing(interp, value, name, message + more)
        raise interp.throw(AttributeError, message)
    context.dict_set(attrs, name, new, const(name))
    return None


def delete_attr(interp: Interpreter, value: Value, name: str) -> Any:
    """`del value.name`."""

    context = interp.context
    done = value.del_attribute(interp, name)
    if done is not NotImplemented:
        return done
    hook = context.class_lookup(value.cls, "__delattr__")
    if isinstance(hook, types.FunctionType):
        return interp.call(context.const_object(hook), [value, const(name)], {})
    return object_delattr(interp, value, name)


def object_delattr(interp: Interpreter, value: Value, name: str) -> Any:
    """`object.__delattr__(value, name)`."""

    context = interp.context
    found = context.class_lookup(value.cls, name)
    if found is not MISSING and is_data_descriptor(interp, found):
        if is_property(interp, found, "__delete__"):
            if found.fdel is None:
                raise interp.throw(AttributeError, f"property {name!r} of {value.cls.__name__!r} object has no deleter")
            return interp.call(context.const_object(found.fdel), [value], {})
        deleter = context.class_lookup(type(found), "__delete__")
        if isinstance(deleter, types.FunctionType):
            return interp.call(context.const_object(deleter), [_class_item(interp, value.cls, name, found), value], {})
        if type(found) is types.MemberDescriptorType and value.member(interp, found, value.cls) is None:
            raise interp.throw(AttributeError, found.__name__)  # as C says it
        if type(found) is types.MemberDescriptorType and value.set_member(interp, found, DELETED):
            return None
        if type(found) is types.GetSetDescriptorType and value.del_c_attribute(interp, name):
            return None
        raise unsupported(value, f"del .{name}")
    attrs = value.instance_dict(interp)
    if attrs is None or context.dict_get(attrs, name) is None:
        raise interp.throw(AttributeError, no_attribute(value, name))
    context.dict_delete(attrs, name)
    return None


def has_attr(interp: Interpreter, value: Value, name: str) -> bool:
    """`hasattr(value, name)`, running properties where they are in Python."""
    try:
        result = load_attr(interp, value, name)
        if result is PUSHED:
            interp.finish_sync(result)
    except TracedException as error:
        if issubclass(error.value.cls, AttributeError):
            return False
        raise
    return True
