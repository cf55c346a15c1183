"""Weak references."""

from __future__ import annotations

import weakref
from typing import Any

from ..guards.source import Source
from .base import Interpreter, TraceContext, Value, unsupported
from .wrapping import wraps


class WeakReferenceValue(Value):
    """A `weakref.ref`: a live one (`real`), or one that the program makes to `target`, in step `born`."""

    __slots__ = ("born", "real", "target")
    cls = weakref.ref

    def __init__(self, target: Value | None, source: Source | None = None, real: Any = None, born: int = 0) -> None:
        self.source = source
        self.target, self.real, self.born = target, real, born

    def is_same(self, interp: Interpreter, other: Value) -> bool | None:
        if isinstance(other, WeakReferenceValue):
            raise unsupported(self, "is")  # an object may have one that serves all who ask for it
        return None


@wraps(weakref.ref)
def _wrap(context: TraceContext, obj: Any, cls: type, source: Source) -> Value | None:
    return WeakReferenceValue(None, source=source, real=obj) if cls is weakref.ref else None
