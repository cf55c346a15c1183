"""Classes that the program writes to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..guards.source import constant
from .base import Value


class ClassWrites(Value):
    """The traced program's writes to a class from outside: name -> Value, or DELETED."""

    __slots__ = ("items", "obj")
    cls = type

    def __init__(self, obj: type) -> None:
        self.source = constant(obj, obj.__qualname__)
        self.obj = obj
        self.items: dict[str, Any] = {}

    def children(self) -> Iterable[Any]:
        return self.items.values()
