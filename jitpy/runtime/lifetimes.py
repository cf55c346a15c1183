"""Which objects compiled code must not keep alive.

Functions and classes that a name in a module leads to live as long as the module. Others (closures, classes made in
functions) come and go, and may hold models: guards and generated code refer to them weakly, and an entry goes when one
of its own goes, since its guards can never hold again.
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any

_HEAP_TYPE = 1 << 9
_namespace_of = type.__dict__["__dict__"].__get__
_flags_of = type.__dict__["__flags__"].__get__
_qualname_of = type.__dict__["__qualname__"].__get__


def is_weakly_held(obj: Any) -> bool:
    """Whether the object is a Python function or class that no module holds under its name. No user code runs."""
    if type(obj) is types.FunctionType:
        return not _is_reachable(obj, obj.__module__, obj.__qualname__)
    if issubclass(type(obj), type) and _flags_of(obj) & _HEAP_TYPE:
        return not _is_reachable(obj, _namespace_of(obj).get("__module__"), _qualname_of(obj))
    return False


def _is_reachable(obj: Any, module_name: Any, qualname: str) -> bool:
    place: Any = sys.modules.get(module_name) if isinstance(module_name, str) else None
    for name in qualname.split("."):
        if isinstance(place, types.ModuleType):
            place = vars(place).get(name)
        elif issubclass(type(place), type):
            place = _namespace_of(place).get(name)
        else:
            return False
    return place is obj


def name_of(obj: Any) -> str:
    """`class Layer` or `function step`, of an object that may be weakly held. No user code runs."""
    return f"class {_qualname_of(obj)}" if issubclass(type(obj), type) else f"function {obj.__qualname__}"


def held(obj: Any) -> Any:
    """A callable that gives the object; it keeps the object alive unless that is weakly held (None once it is gone)."""
    return weakref.ref(obj) if is_weakly_held(obj) else _Strong(obj)


class _Strong:
    """Holds an object as a weak reference would, but strongly."""

    __slots__ = ("_obj",)

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def __call__(self) -> Any:
        return self._obj
