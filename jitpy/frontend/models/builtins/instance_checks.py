"""`isinstance` and `issubclass`: by the class, or as metaclasses, abstract classes and protocols will have it.

An abstract class keeps its answers, so that a guard on its answer is one on the registrations of classes. A
protocol looks at the object itself each time: its members are looked up as `hasattr` does, with the guards of that.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
import sys
import types
import typing
from typing import Any

import torch

from ...breaks import GraphBreak
from ...guards.guard_set import MISSING, Answers
from ...guards.source import constant
from ...interpreter.attributes import is_data_descriptor
from ...interpreter.callees import Args, Kwargs, builtin
from ...interpreter.operators import truth
from ...polyfills import ORIGINALS
from ...values import NONE, UNKNOWN, Interpreter, TensorValue, Value, const
from .builtin_functions import shown_class

_PROTOCOL: Any = type(typing.Protocol)
#: what abstract classes and protocols say: see `TraceContext.is_subclass`
_SUBCLASS_CHECKS = {abc.ABCMeta.__subclasscheck__, _PROTOCOL.__subclasscheck__}


@builtin(isinstance)
def builtin_isinstance(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value, classes = args
    asked = classes_of(interp, classes)
    if not _says_the_same(value, asked):
        shown_class(value)
    return const(any(is_instance(interp, value, cls) for cls in asked))


def _says_the_same(value: Value, classes: list[type]) -> bool:
    """Whether a class of `polyfills/` answers as the class of C that it stands for."""
    mine = value.cls
    other = ORIGINALS.get(mine)
    return isinstance(other, type) and all(
        type(cls).__instancecheck__ in _PLAIN_CHECKS and not issubclass(cls, other)
        and issubclass(other, cls) == issubclass(mine, cls) for cls in classes)


_PLAIN_CHECKS = {type.__instancecheck__, abc.ABCMeta.__instancecheck__}


@builtin(issubclass)
def builtin_issubclass(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not isinstance(args[0].opaque, type):
        raise interp.throw(TypeError, "issubclass() arg 1 must be a class")
    cls = interp.context.pin(args[0])
    return const(any(_is_subclass(interp, args[0], cls, of) for of in classes_of(interp, args[1])))


def classes_of(interp: Interpreter, value: Any) -> list[type]:
    """The classes that an `isinstance` argument stands for."""
    if value.base is tuple:
        return [cls for item in value.forced(interp) for cls in classes_of(interp, item)]
    if value.opaque is not UNKNOWN:
        obj = interp.context.pin(value)
        if isinstance(obj, type) and not isinstance(obj, types.GenericAlias):
            return [obj]
        origin = typing.get_origin(obj)
        parts = typing.get_args(obj) if origin in (typing.Union, types.UnionType) else ()
        if parts and all(isinstance(c, type) and not isinstance(c, types.GenericAlias) for c in parts):
            return list(parts)
        if isinstance(origin, type) and not typing.get_args(obj):
            return [origin]  # `typing.List`
    if value.is_instance and value.cls is type(typing.Union[int, str]):  # noqa: UP007
        return classes_of(interp, interp.finish_sync(interp.getattr(value, "__args__")))
    if not value.is_constant:
        raise GraphBreak("unsupported_value", f"isinstance() with {value.describe()}")
    raise interp.throw(TypeError, "isinstance() arg 2 must be a type, a tuple of types, or a union")


def is_instance(interp: Interpreter, value: Value, cls: type) -> bool:
    """`isinstance(value, cls)`; guarded."""
    if value.outline is not None:
        if cls in _FLAGS:
            return issubclass(value.cls, cls) or _has_flag(interp, value, _FLAGS[cls])
        if cls in (torch.nn.UninitializedParameter,) or cls.__module__ == "torch" and cls.__name__.endswith("Tensor") \
                and cls is not torch.Tensor:
            return _legacy_tensor_type(value, cls)
    if value.cls is cls:
        return True  # no metaclass is asked
    check = interp.context.class_lookup(type(cls), "__instancecheck__")
    if check is _PROTOCOL.__instancecheck__ and getattr(cls, "_is_protocol", False):
        return _fits_protocol(interp, value, cls)
    if check is abc.ABCMeta.__instancecheck__ or check is _PROTOCOL.__instancecheck__:
        return _by_abstract_class(interp, value, cls)
    if isinstance(check, types.FunctionType) and type(cls).__module__ != "torch.nn.parameter":
        return truth(interp,
                     interp.call_sync(interp.context.const_object(check), [interp.context.const_object(cls), value]))
    return _by_class(interp, value, cls)


@builtin(type.__instancecheck__)
def _type_instancecheck(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return const(_by_class(interp, args[1], _class(interp, args[0])))


@builtin(abc.ABCMeta.__instancecheck__, _abc._abc_instancecheck)
def _abc_instancecheck(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return const(_by_abstract_class(interp, args[1], _class(interp, args[0])))


@builtin(type.__subclasscheck__)
def _type_subclasscheck(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return const(_class(interp, args[0]) in interp.context.mro(_class(interp, args[1])))


@builtin(abc.ABCMeta.__subclasscheck__, _abc._abc_subclasscheck)
def _abc_subclasscheck(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return const(_belongs(interp, _class(interp, args[1]), _class(interp, args[0])))


@builtin(abc.ABCMeta.register)
def _register(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    raise GraphBreak("skipped", "ABCMeta.register, which protocols answer for callers in its module only")


def _class(interp: Interpreter, value: Value) -> type:
    if not isinstance(value.opaque, type):
        raise GraphBreak("unsupported_value", f"{value.describe()} as a class")
    cls = interp.context.pin(value)
    assert isinstance(cls, type)
    return cls


def _by_class(interp: Interpreter, value: Value, cls: type) -> bool:
    """`isinstance` where `cls` has no say."""
    if cls in interp.context.mro(value.cls):
        return True
    other = _other_class(interp, value)
    return other is not None and cls in interp.context.mro(other)


def _by_abstract_class(interp: Interpreter, value: Value, cls: type) -> bool:
    """`isinstance` as `ABCMeta` has it: classes are asked for."""
    if _is_subclass(interp, None, value.cls, cls):
        return True
    other = _other_class(interp, value)
    return other is not None and _is_subclass(interp, None, other, cls)


def _other_class(interp: Interpreter, value: Value) -> type | None:
    """The class that an object claims, where that is not its type: mocks and proxies do."""
    context = interp.context
    if value.opaque is not UNKNOWN:
        real = context.pin(value)
        shown = type(real) if isinstance(real, type) else real.__class__
        return shown if shown is not type(real) else None
    if context.class_lookup(value.cls, "__class__") is object.__dict__["__class__"] and \
            not isinstance(context.class_lookup(value.cls, "__getattribute__"), types.FunctionType):
        return None
    found = interp.finish_sync(interp.getattr(value, "__class__"))
    return _class(interp, found) if isinstance(found.opaque, type) else None


def _is_subclass(interp: Interpreter, value: Value | None, cls: type, of: type) -> bool:
    """`issubclass(cls, of)`; guarded."""
    check = interp.context.class_lookup(type(of), "__subclasscheck__")
    if isinstance(check, types.FunctionType) and check not in _SUBCLASS_CHECKS:
        arguments = [interp.context.const_object(of), interp.context.const_object(cls) if value is None else value]
        return interp.truth(interp.call_sync(interp.context.const_object(check), arguments))
    if value is not None and getattr(of, "_is_protocol", False):
        try:
            issubclass(cls, of)
        except TypeError as error:  # not every protocol takes part in this
            raise interp.raise_real(error) from None
    return _belongs(interp, cls, of)


def _belongs(interp: Interpreter, cls: type, of: type) -> bool:
    try:
        return interp.context.is_subclass(cls, of)
    except Exception as error:  # of the program's `__subclasshook__`
        raise interp.raise_real(error) from None


# -- protocols ----------------------------------------------------------------------------------------------


def _fits_protocol(interp: Interpreter, value: Value, cls: type) -> bool:
    """`isinstance` of a protocol: what it is by its class, or else whether the object has all members."""
    context = interp.context
    if cls is typing.Protocol or not getattr(cls, "_is_runtime_protocol", False):
        raise GraphBreak("unsupported_value", f"isinstance() with {cls.__qualname__}, no runtime protocol")
    if _belongs(interp, value.cls, cls):
        return True
    other = _other_class(interp, value)
    if other is not None and _belongs(interp, other, cls):
        return True
    members = _members(cls)
    context.guard(constant(cls, cls.__qualname__), "python", Answers(_members, members))
    return all(_has_member(interp, value, name, is_method) for name, is_method in members.items())


def _members(cls: Any) -> dict[str, bool]:
    """The members that a protocol asks for, with whether None stands for their absence."""
    names = typing._get_protocol_attrs(cls) if sys.version_info < (3, 12) else cls.__protocol_attrs__  # type: ignore
    if sys.version_info >= (3, 13):
        return {name: name not in cls.__non_callable_proto_members__ for name in names}
    return {name: callable(getattr(cls, name, None)) for name in names}


def _has_member(interp: Interpreter, value: Value, name: str, is_method: bool) -> bool:
    context = interp.context
    if sys.version_info < (3, 12):
        return interp.hasattr(value, name) and not (
            is_method and interp.same_object(interp.finish_sync(interp.getattr(value, name)), NONE)
        )
    # from 3.12 on nothing of the object's is run: `inspect.getattr_static`
    found = context.class_lookup(value.cls, name)
    if found is MISSING or not is_data_descriptor(interp, found):
        own = _own_member(interp, value, name)
        if own is not None:
            return not (is_method and interp.same_object(own, NONE))
    return found is not MISSING and not (is_method and found is None)


def _own_member(interp: Interpreter, value: Value, name: str) -> Value | None:
    """The entry of the instance's `__dict__`."""
    if value.cls.__dictoffset__ == 0:
        return None
    attrs = value.instance_dict(interp)
    if attrs is None and isinstance(value.opaque, types.ModuleType):
        attrs = interp.context.module_dict(interp.context.pin(value))
    if attrs is None:
        raise GraphBreak("unsupported_value", f"isinstance() of {value.describe()} with a protocol")
    return interp.context.dict_get(attrs, name)


# -- tensors ------------------------------------------------------------------------------------------------

#: Classes that tensors of other classes belong to by a flag.
_FLAGS: dict[type, str] = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}


def _has_flag(interp: Interpreter, value: TensorValue, name: str) -> bool:
    attrs = value.instance_dict(interp)
    found = interp.context.dict_get(attrs, name) if attrs is not None else None
    return found is not None and interp.truth(found)


def _legacy_tensor_type(value: TensorValue, cls: type) -> bool:
    if isinstance(cls, type) and issubclass(cls, torch.Tensor):
        return issubclass(value.cls, cls)
    name = {torch.float32: "Float", torch.float64: "Double", torch.int64: "Long", torch.int32: "Int",
            torch.float16: "Half", torch.bfloat16: "BFloat16", torch.bool: "Bool", torch.uint8: "Byte",
            torch.int8: "Char", torch.int16: "Short"}.get(value.traced.dtype)
    return value.traced.spec.device.type == "cpu" and cls.__name__ == f"{name}Tensor"
