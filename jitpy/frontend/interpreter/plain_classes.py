"""Which classes are Python's through and through: what their instances are and do, tracing can see."""

from __future__ import annotations

import dis
import sys
import types
import typing
import weakref
from typing import Any

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


# -- keys -------------------------------------------------------------------------------------------------------------

_quiet: weakref.WeakKeyDictionary[type, tuple[Any, Any, bool]] = weakref.WeakKeyDictionary()


def is_quiet_key(cls: type) -> bool:
    """Whether nobody sees how often instances are hashed and compared: C does it, or methods that only look."""
    hasher, equal = cls.__hash__, cls.__eq__
    known = _quiet.get(cls)
    if known is None or known[0] is not hasher or known[1] is not equal:
        known = _quiet[cls] = hasher, equal, _only_looks(hasher) and _only_looks(equal)
    return known[2]


def _only_looks(method: Any) -> bool:
    """Whether a method in Python stores nothing, and calls nothing but functions known to store nothing."""
    return not isinstance(method, types.FunctionType) or look_of(method.__code__) is not None or \
        str(method.__module__).partition(".")[0] in _LIBRARY


def look_of(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]] | None:
    """The attributes and globals that code looks at which does nothing else, and asks for no attribute's identity; None
    for other code."""
    callables, names, globals_ = 0, set(), set()
    before = None
    for ins in dis.get_instructions(code):
        if ins.opname.startswith(_ACTS):
            return None
        of_attribute = before is not None and before.opname == "LOAD_ATTR" and before.argval != "__class__"
        if ins.opname == "IS_OP" and of_attribute:
            return None  # constants of one value may be one object, or several
        before = ins
        is_method = ins.opname == "LOAD_METHOD" or ins.opname == "LOAD_ATTR" and "NULL" in ins.argrepr  # from 3.12 on
        if is_method and ins.argval not in _LOOKING:
            return None
        if ins.opname == "LOAD_ATTR" and not is_method:
            names.add(ins.argval)
        if ins.opname == "LOAD_GLOBAL":
            globals_.add(ins.argval)
        callables += is_method or ins.opname == "LOAD_GLOBAL" and ins.argval in _LOOKING
        callables -= ins.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
        if callables < 0:
            return None
    return frozenset(names), frozenset(globals_)


_LIBRARY = {"torch", *sys.stdlib_module_names} - {"__main__"}
_ACTS = ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_", "YIELD", "IMPORT", "RAISE",
         "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_SUPER_ATTR", "MAKE_FUNCTION")
_LOOKING = frozenset({"hash", "type", "isinstance", "issubclass", "len", "str", "int", "tuple", "frozenset", "sorted",
                      "round", "float", "bool", "abs", "lower", "upper", "items", "keys", "values"})
#: globals that are what they are called
KNOWN_GLOBALS = _LOOKING | {"NotImplemented"}
