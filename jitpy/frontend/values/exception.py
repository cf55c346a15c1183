"""Exceptions, tracebacks, and what handlers leave on the stack."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from ..guards.source import Source, attr, index
from .base import TraceContext, Value
from .constant import ConstValue
from .instance import ObjectValue
from .wrapping import wraps


class ExceptionValue(ObjectValue):
    """An exception instance; `args` as BaseException keeps them. `step` is where it was raised first, or -1."""

    __slots__ = ("args", "cause", "context", "members", "step", "suppress_context")

    def __init__(self, cls: type, args: list[Value], source: Source | None = None, real: Any = None) -> None:
        super().__init__(cls, source, real)
        self.args = args
        self.cause: Value | None = None
        self.context: Value | None = None
        self.suppress_context = False
        self.members: dict[str, Value] = {}  # attributes that the C class keeps outside `args`
        self.step = -1

    def children(self) -> Iterable[Any]:
        return *self.args, self.cause, self.context, *self.members.values(), *super().children()

    def tell_lookup(self, value: Value, name: str) -> bool:
        """Tell an AttributeError what was looked up when it was raised; whether it did not know yet."""
        plain = issubclass(self.cls, AttributeError) and self.cls.name is AttributeError.name and \
            self.cls.obj is AttributeError.obj
        told = plain and not self.members.keys() & {"name", "obj"}
        if told:
            self.members = {**self.members, "name": ConstValue(name), "obj": value}
        return told


class TracebackValue(Value):
    """The traceback of an exception raised while tracing, in step `step`: it exists, and any look into it breaks the
    graph."""

    __slots__ = ("step",)
    cls = types.TracebackType

    def __init__(self, step: int) -> None:
        self.source = None
        self.step = step


class ExcInfoValue(Value):
    """The entry that PUSH_EXC_INFO leaves on the stack: `previous` was handled before `current` (None: nothing was)."""

    __slots__ = ("current", "previous")

    def __init__(self, previous: Value | None, current: Value) -> None:
        self.source = None
        self.previous = previous
        self.current = current

    def children(self) -> Iterable[Any]:
        return self.previous, self.current


@wraps(BaseException)
def _wrap(context: TraceContext, obj: BaseException, cls: type, source: Source) -> Value:
    value = ExceptionValue(cls, [], source, obj)
    value.args = [context.wrap(a, index(attr(source, "args"), i)) for i, a in enumerate(obj.args)]
    return context.with_attrs(value, obj)
