"""Ranges and slices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..guards.source import Source, attr
from .base import Interpreter, TraceContext, Value
from .constant import const
from .iterators import SequenceIterator
from .wrapping import wraps


class SliceValue(Value):
    """A slice object."""

    __slots__ = ("start", "step", "stop")
    cls = slice

    def __init__(self, start: Value, stop: Value, step: Value, source: Source | None = None) -> None:
        self.source = source
        self.start, self.stop, self.step = start, stop, step

    def children(self) -> Iterable[Any]:
        return self.start, self.stop, self.step

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        part: Value = getattr(self, name)
        return part


class RangeValue(Value):
    """A range whose bounds may be symbolic."""

    __slots__ = ("start", "step", "stop")
    cls = range

    def __init__(self, start: Value, stop: Value, step: Value, source: Source | None = None) -> None:
        self.source = source
        self.start, self.stop, self.step = start, stop, step

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        bounds = [interp.as_int(bound, "range()") for bound in (self.start, self.stop, self.step)]
        items = range(*bounds)
        return SequenceIterator([const(i) for i in (items[::-1] if backwards else items)], type(iter(range(0))))

    def children(self) -> Iterable[Any]:
        return self.start, self.stop, self.step

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        part: Value = getattr(self, name)
        return part


_PARTS = ("start", "stop", "step")


@wraps(slice)
def _wrap_slice(context: TraceContext, obj: slice, cls: type, source: Source) -> Value:
    return SliceValue(*(context.wrap(getattr(obj, name), attr(source, name)) for name in _PARTS), source)


@wraps(range)
def _wrap_range(context: TraceContext, obj: range, cls: type, source: Source) -> Value:
    return RangeValue(*(context.wrap(getattr(obj, name), attr(source, name)) for name in _PARTS), source)
