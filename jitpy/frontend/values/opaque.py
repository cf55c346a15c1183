"""Objects that are known by their identity."""

from __future__ import annotations

import enum
import types
from typing import Any

from ..guards.source import Source
from .base import Interpreter, TraceContext, Value
from .wrapping import wraps


class PyValue(Value):
    """A real object whose identity is all that is known: a class, module, C function, or something opaque.

    `pinned` says that a guard (or a constant of the code) already fixes which object it is.
    """

    __slots__ = ("obj", "pinned")

    def __init__(self, obj: Any, source: Source | None = None, pinned: bool = True) -> None:
        self.source = source
        self.obj = obj
        self.pinned = pinned

    @property
    def cls(self) -> type:  # type: ignore[override]
        return type(self.obj)

    def describe(self) -> str:
        name = getattr(self.obj, "__qualname__", None) or getattr(self.obj, "__name__", None) or type(self.obj).__name__
        module = getattr(self.obj, "__module__", None)
        return f"{module}.{name}" if isinstance(module, str) else str(name)

    @property
    def called(self) -> Any:
        return self.obj

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return interp.call_object(interp.context.pin(self), args, kwargs, self)


class UnreadTuple(PyValue):
    """A tuple from outside that had another length at each call: whatever looks at it breaks the graph."""

    __slots__ = ()

    def __init__(self, obj: tuple[Any, ...], source: Source) -> None:
        super().__init__(obj, source, pinned=False)

    def describe(self) -> str:
        return f"tuple {self.source}"


@wraps(type, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
       types.GetSetDescriptorType, types.MemberDescriptorType, enum.Enum, by_type=False)
def wrap_by_identity(context: TraceContext, obj: Any, cls: type, source: Source) -> PyValue:
    """An object that is told apart by identity only."""
    context.guard(source, "id", obj)
    return PyValue(obj, source)


@wraps(types.ModuleType, staticmethod, classmethod, property, by_type=False)
def _wrap_made_anew(context: TraceContext, obj: Any, cls: type, source: Source) -> PyValue:
    """One of those that a call may make."""
    if not context.comes_anew(obj, source):
        return wrap_by_identity(context, obj, cls, source)
    context.guard(source, "type", cls)
    return PyValue(obj, source, pinned=False)
