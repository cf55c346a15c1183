"""Which classes are Python's through and through: what their instances are and do, tracing can see."""

from __future__ import annotations

import types
import typing
import weakref

_HEAP_TYPE = 1 << 9

#: `Generic` is defined in C from 3.12 on; what it says about its parameters is in its class, not in instances.
_WITHOUT_STATE = (object, types.SimpleNamespace, typing.Generic)


def is_plain_class(cls: type, on: type = object) -> bool:
    """Whether instances behave as `object` says, or another builtin type: a Python class, without C state that tracing
    cannot see."""
    for base in cls.__mro__:
        if base is on or base in _WITHOUT_STATE or base.__flags__ & _HEAP_TYPE and not _has_c_state(base):
            continue
        return False
    return True


_c_state: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _has_c_state(cls: type) -> bool:
    """Whether a heap type is defined in C: it then has methods or attributes in C of its own."""
    known = _c_state.get(cls)
    if known is None:
        known = _c_state[cls] = _look_for_c_state(cls)
    return known


def _look_for_c_state(cls: type) -> bool:
    if cls.__module__.startswith("torch._C"):
        return True
    for name, member in cls.__dict__.items():
        kind = type(member)
        if kind in _C_MEMBERS and member.__objclass__ is cls and name not in ("__dict__", "__weakref__"):
            return True
        if name == "__new__" and kind is types.BuiltinFunctionType:
            return True
    return False


_C_MEMBERS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
              types.GetSetDescriptorType)
