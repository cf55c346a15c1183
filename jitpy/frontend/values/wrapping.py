"""How live objects enter tracing: the kind of Value that stands for an object, by its Python type."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from ..guards.source import Source
from .base import TraceContext, Value

#: `wrap(context, obj, cls, source)`: the Value of an object of class `cls`, or None where the next base is to answer
Wrap = Callable[[TraceContext, Any, Any, Source], Value | None]

#: type -> what wraps its instances, and whether it leaves it to `wrap_new` to guard their type
_WRAPS: dict[type, tuple[Wrap, bool]] = {}


def wraps(*types: type, by_type: bool = True) -> Callable[[Wrap], Wrap]:
    """Register what wraps instances of these types and of classes derived from them. `by_type`: the object's type is
    guarded first."""

    def register(wrap: Wrap) -> Wrap:
        for one in types:
            assert one not in _WRAPS, one
            _WRAPS[one] = wrap, by_type
        return wrap

    return register


def wrap_new(context: TraceContext, obj: Any, source: Source) -> Value:
    """The Value of an object that was not met before."""
    cls = type(obj)
    # members of enums are told apart by identity, whatever else their class is derived from
    bases = (enum.Enum,) if issubclass(cls, enum.Enum) else cls.__mro__
    guarded = False
    for base in bases:
        row = _WRAPS.get(base)
        if row is None:
            continue
        wrap, by_type = row
        if by_type and not guarded:
            context.guard(source, "type", cls)
            guarded = True
        value = wrap(context, obj, cls, source)
        if value is not None:
            return value
    raise AssertionError(f"nothing wraps {cls.__name__}")  # object is wrapped
