"""Iterators over builtin sequences and sets; those over dicts are in `dict.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .base import Interpreter, Value
from .iterator import Exhausted, IteratorValue

#: the index of a list's iterator that has said that it is at its end: it stays there
END_OF_LIST = 1 << 60


class ListIterator(IteratorValue):
    """Over a list, re-reading it as it goes, as CPython does."""

    __slots__ = ("index", "of")
    cls: Any = type(iter([]))

    def __init__(self, of: Any) -> None:
        self.source = None
        self.of = of
        self.index = 0

    parts = ("of",)

    def step(self, interp: Interpreter) -> Value:
        if self.index >= len(self.of.items):
            self.index = END_OF_LIST
            raise Exhausted
        value = interp.context.force(self.of.items[self.index])
        self.of.items[self.index] = value
        self.index += 1
        interp.context.writes += 1
        return value


class ReverseIterator(IteratorValue):
    """`reversed` of a list or tuple, re-reading it as it goes."""

    __slots__ = ("cls", "index", "of")

    def __init__(self, of: Any, cls: type) -> None:
        self.source = None
        self.of = of
        self.index = len(of.items) - 1
        self.cls = cls

    parts = ("of",)

    def step(self, interp: Interpreter) -> Value:
        if not 0 <= self.index < len(self.of.items):
            self.index = -1
            raise Exhausted
        value = interp.context.force(self.of.items[self.index])
        self.of.items[self.index] = value
        self.index -= 1
        interp.context.writes += 1
        return value


class SequenceIterator(IteratorValue):
    """Over values fixed when it was made (tuples, ranges, strings, sets)."""

    __slots__ = ("cls", "guarded", "index", "items", "of", "size")

    def __init__(self, items: list[Any], cls: type, of: Value | None = None, guarded: Any = None) -> None:
        self.source = None
        self.items = items
        self.index = 0
        self.cls = cls
        self.guarded = guarded  # the set iterated over: it must not change its size meanwhile
        self.of = of  # what `iter` was called with, for tuples and strings
        self.size = len(items)

    def children(self) -> Iterable[Any]:
        return *self.items, self.of, self.guarded

    def step(self, interp: Interpreter) -> Value:
        if self.guarded is not None and len(self.guarded.items) != self.size:
            self.size = -1  # it stays so
            raise interp.throw(RuntimeError, "Set changed size during iteration")
        if self.index >= len(self.items):
            self.guarded = None
            raise Exhausted
        value = interp.context.force(self.items[self.index])
        self.index += 1
        interp.context.writes += 1
        return value
