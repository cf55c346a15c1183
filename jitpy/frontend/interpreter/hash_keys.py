"""Keys for Values in dicts and members of sets: real objects, equal exactly where the values are."""

from __future__ import annotations

import dataclasses
import sys
import types
import weakref
from typing import Any

from ...runtime.lifetimes import is_weakly_held
from ..values import (
    UNKNOWN,
    HookNumberValue,
    Identity,
    Interpreter,
    ObjectValue,
    TensorValue,
    is_compared_by_c,
    unsupported,
)
from .library_code import keeps_hooks
from .plain_classes import KNOWN_GLOBALS, is_plain_class, look_of


def instance_key(interp: Interpreter, value: ObjectValue) -> Any:
    """The key of an instance, by the methods that its class has."""
    if isinstance(value, HookNumberValue) and keeps_hooks(interp.frame.code):
        return Identity(value)  # new to every dict of hooks
    context, cls = interp.context, value.cls
    hasher = context.class_lookup(cls, "__hash__")
    if hasher is object.__hash__:
        return identity_key(interp, value)
    if hasher is None:
        raise interp.throw(TypeError, f"unhashable type: {cls.__name__!r}")
    context.class_lookup(cls, "__eq__")
    fields, may_go = hashed_fields(cls), is_weakly_held(cls)
    if fields is not None and not may_go:
        return _likeness(interp, value, fields)
    if not may_go and _has_plain_look(interp, cls):
        return _likeness(interp, value, _looked_at(cls), by_program=True)
    raise unsupported(value, "hash()")


def identity_key(interp: Interpreter, value: TensorValue | ObjectValue) -> Any:
    """The key of something that is equal to itself only: the real object where there is one, which is another object
    than all other keys in later calls too."""
    if value.real is None or value.source is None:
        return Identity(value)
    interp.context.guard(value.source, "distinct")
    return value.real


# -- frozen dataclasses, and instances of classes with methods that only look at attributes ---------------------------


def _likeness(interp: Interpreter, value: ObjectValue, fields: tuple[str, ...], by_program: bool = False) -> Any:
    """A real instance of the class, with keys in place of what is in its fields. The program never sees it. Where the
    program wrote the methods, these are given nothing but constants."""

    made = object.__new__(value.cls)
    for name in fields:
        if by_program and not _has_own(interp, value, name):
            raise unsupported(value, f"hash() without .{name}")
        part = interp.finish_sync(interp.getattr(value, name))
        if by_program and not _is_plain_part(interp, part):
            raise unsupported(value, f"hash() with .{name}")
        if _ASKS_FIELDS and (part.is_array or part.tensor is not None):
            raise unsupported(value, "hash()")  # two of them are not equal because they are the same tensor
        object.__setattr__(made, name, part.key(interp))
    if by_program and not _is_reflexive(made, fields):
        raise unsupported(value, "hash()")
    interp.context.keep(value, fields, made)
    return made


def _is_reflexive(likeness: Any, fields: tuple[str, ...]) -> bool:
    """Whether what is equal in all fields is equal: so that identity, which dicts look for first, does not matter."""
    other = object.__new__(type(likeness))
    for name in fields:
        object.__setattr__(other, name, getattr(likeness, name))
    try:
        return bool(likeness == other) and hash(likeness) == hash(other)
    except Exception:  # of the program's: it comes when the program itself asks
        return False


#: whether dataclasses compare field by field with `==`, not tuples of fields, which look for identity first
_ASKS_FIELDS = sys.version_info >= (3, 13)
#: class -> its `__eq__` and `__hash__`, and the fields found
_fields: weakref.WeakKeyDictionary[type, tuple[Any, Any, tuple[str, ...] | None]] = weakref.WeakKeyDictionary()


def hashed_fields(cls: type) -> tuple[str, ...] | None:
    """The fields that tell whether two instances of a class are equal, where its `__eq__` and `__hash__` are those that
    the library writes for frozen dataclasses, and nothing else happens to instances."""
    equal, hasher, found = _fields.get(cls, (None, None, None))
    if equal is not cls.__eq__ or hasher is not cls.__hash__:
        found = _hashed_fields(cls)
        _fields[cls] = cls.__eq__, cls.__hash__, found
    return found


def _hashed_fields(cls: type) -> tuple[str, ...] | None:
    owner = next((base for base in cls.__mro__ if "__dataclass_params__" in vars(base)), None)
    if owner is None or not owner.__dataclass_params__.frozen or not owner.__dataclass_params__.eq:  # type: ignore[attr-defined]
        return None
    fields = [field for field in dataclasses.fields(owner) if field.compare]
    names = [field.name for field in fields]
    plain = dataclasses.make_dataclass("Plain", [(field.name, object, dataclasses.field(hash=field.hash))
                                                 for field in fields], frozen=True)
    for method in ("__eq__", "__hash__"):
        if _steps(getattr(cls, method)) != _steps(getattr(plain, method)) or method in vars(cls) and cls is not owner:
            return None
    if cls.__getattribute__ is not object.__getattribute__ or hasattr(cls, "__del__") or any(
            hasattr(type(found), "__set__") and type(found) is not types.MemberDescriptorType
            for name in names for found in [_on_class(cls, name)]):
        return None
    return tuple(names)


def _steps(method: Any) -> Any:
    """The steps of a function; None for one that is not Python's."""
    code = getattr(method, "__code__", None)
    return code and (code.co_code, code.co_names, code.co_varnames, code.co_consts, code.co_freevars,
                     "hash" in method.__globals__)


def _looked_at(cls: type) -> tuple[str, ...]:
    """The attributes that the methods of a class look at which the program wrote."""
    found = [look_of(method.__code__) for method in (cls.__hash__, cls.__eq__)]  # type: ignore[attr-defined]
    return tuple(sorted(frozenset().union(*(look[0] for look in found if look is not None)) - {"__class__"}))


def _has_plain_look(interp: Interpreter, cls: type) -> bool:
    """Whether the `__hash__` and `__eq__` that the program wrote do nothing but look at attributes of instances, which
    are nowhere but in these."""
    if cls.__getattribute__ is not object.__getattribute__ or hasattr(cls, "__del__") or not is_plain_class(cls):
        return False
    for method in (cls.__hash__, cls.__eq__):
        look = look_of(method.__code__) if isinstance(method, types.FunctionType) else None
        if look is None or "__dict__" in look[0]:
            return False
        space = interp.context.globals_of(method.__globals__)
        for name in look[1] - KNOWN_GLOBALS:
            found = interp.context.dict_get(space, name)
            if found is None or type(found.opaque) is not type:
                return False
        if any(interp.context.dict_get(space, name) is not None for name in look[1] & KNOWN_GLOBALS):
            return False  # of another meaning than usual
    found = [interp.context.class_lookup(cls, name) for name in _looked_at(cls)]
    return not any(hasattr(type(one), "__get__") and type(one) is not types.MemberDescriptorType for one in found)


def _has_own(interp: Interpreter, value: ObjectValue, name: str) -> bool:

    found = interp.context.class_lookup(value.cls, name)
    if type(found) is types.MemberDescriptorType:
        return interp.context.read_slot(value, found) is not None
    attrs = value.instance_dict(interp)
    return attrs is not None and interp.context.dict_get(attrs, name) is not None


def _is_plain_part(interp: Interpreter, part: Any) -> bool:
    """Whether C compares what an attribute holds, by what it is."""
    if part.base is tuple:
        return part.cls is tuple and all(_is_plain_part(interp, item) for item in part.forced(interp))
    return part.is_constant or part.opaque is not UNKNOWN and is_compared_by_c(part.obj)


def _on_class(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


