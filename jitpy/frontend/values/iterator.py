"""Iterators and generators."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from .base import Interpreter, Value, unsupported


class IteratorValue(Value):
    """Base of iterators over known values. `step(interp)` returns the next Value or raises `Exhausted`."""

    __slots__ = ()
    is_iterator = True
    cls: Any = type(iter([]))

    def step(self, interp: Any) -> Any:
        raise NotImplementedError

    iter_is_known = True

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        return None if backwards else self

    def progress(self) -> Any:
        return getattr(self, "index", None)

    def place(self) -> Any:
        return "iterator", self.cls


class Exhausted(Exception):
    """An iterator has no more items; `value` is what a generator returned."""

    def __init__(self, value: Value | None = None) -> None:
        super().__init__()
        self.value = value


class GeneratorValue(Value):
    """A generator made by calling `func` while tracing; `frame` is its suspended frame, None once it has finished.

    `handled` is the exception that it handles itself, `outer` the one that its caller handled when it last ran.
    `cls` is another type where it stands for an iterator in C.
    """

    __slots__ = ("born", "cls", "frame", "func", "handled", "outer", "running", "started")

    def __init__(self, frame: Any, born: int, func: Any) -> None:
        self.source = None
        self.cls: type = types.GeneratorType
        self.frame = frame
        self.born = born
        self.func = func
        self.started = False
        self.running = False
        self.handled: Value | None = None
        self.outer: Value | None = None

    iter_is_known = True
    is_generator = True

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        return None if backwards else self

    def children(self) -> Iterable[Any]:
        return self.func, self.handled, self.outer, *(self.frame.children() if self.frame is not None else ())

    def progress(self) -> Any:
        return self.frame.ip if self.frame is not None else None

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        self.func.settle()
        known = {"__name__": self.func.name, "__qualname__": self.func.qualname, "gi_running": self.running,
                 "gi_code": self.func.code}
        if name not in known:
            raise unsupported(self, f".{name}")
        return interp.context.const_object(known[name])
