"""Texts that are not known while tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..breaks import GraphBreak
from ..guards.source import Source
from .base import Interpreter, TraceContext, Value
from .constant import const
from .opaque import PyValue


class TextValue(PyValue):
    """A string of which tracing knows no more than that it is one: from outside, or `function(*args)` of constants,
    numbers and such texts. `obj` is the string of this call, or one like it: only `TraceContext.pin` may say what it
    is."""

    __slots__ = ("args", "function")
    is_atomic = True
    is_text = True

    def __init__(self, obj: str, source: Source | None = None, function: Callable[..., str] | None = None,
                 args: tuple[Value, ...] = ()) -> None:
        super().__init__(obj, source, pinned=False)
        self.function = function
        self.args = args

    def pinned_object(self, context: TraceContext) -> Any:
        if self.function is None:
            assert self.source is not None
            if not context.history.is_changing_key(self.source.key()) or context.history.varies(self.source.key()):
                raise GraphBreak("changing_value", str(self.source))
            context.guard(self.source, "eq", self.obj)
            return self.obj
        return self.function(*(arg.part_of_text(context) for arg in self.args))

    part_of_text = pinned_object

    def describe(self) -> str:
        return f"str {self.source}" if self.source is not None else "a text made of numbers that are not known"

    def as_known(self, interp: Interpreter) -> Value:
        return const(interp.context.pin(self))

    def combine(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        return interp.joined(self, other) if name == "ADD" and other.cls is str else None

    def constant(self, interp: Interpreter) -> str:
        return interp.context.pin(self)
