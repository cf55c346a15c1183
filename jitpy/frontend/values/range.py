"""Ranges and slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..guards.source import Source, attr
from .base import Interpreter, TraceContext, Value, unsupported
from .constant import const
from .iterators import SequenceIterator
from .wrapping import wraps


class BoundsValue(Value):
    """A kind with a start, a stop and a step."""

    __slots__ = ("start", "step", "stop")

    def __init__(self, start: Value, stop: Value, step: Value, source: Source | None = None) -> None:
        self.source = source
        self.start, self.stop, self.step = start, stop, step

    parts = ("start", "stop", "step")

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        part: Value = getattr(self, name)
        return part


class SliceValue(BoundsValue):
    """A slice object."""

    __slots__ = ()
    cls = slice

    def real(self, interp: Interpreter) -> slice:
        """The slice with int bounds."""
        step = self._bound(interp, self.step)
        if step == 0:
            raise interp.throw(ValueError, "slice step cannot be zero")
        return slice(self._bound(interp, self.start), self._bound(interp, self.stop), step)

    def _bound(self, interp: Interpreter, bound: Value) -> int | None:
        if bound.literal is None:
            return None
        if not interp.context.has_slot(bound.cls, "__index__"):
            raise interp.throw(TypeError, "slice indices must be integers or None or have an __index__ method")
        return interp.as_int(bound, "slice")

    def subscript(self, interp: Interpreter) -> slice:
        return self.real(interp)

    def compare_same(self, interp: Interpreter, symbol: str, other: Value) -> Value | None:
        if not isinstance(other, SliceValue):
            return None
        if symbol not in ("==", "!="):
            raise unsupported(self, symbol)
        pairs = ((self.start, other.start), (self.stop, other.stop), (self.step, other.step))
        return const(all(interp.equal(x, y) for x, y in pairs) == (symbol == "=="))

    def numpy_fake(self, interp: Interpreter, fake: Callable[[Any], Any]) -> slice:
        return slice(fake(self.start), fake(self.stop), fake(self.step))

    def payload(self, interp: Interpreter) -> slice:
        return slice(*(part.payload(interp) for part in self.children()))


class RangeValue(BoundsValue):
    """A range whose bounds may be symbolic."""

    __slots__ = ()
    cls = range

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        items = self.real(interp)
        return SequenceIterator([const(i) for i in (items[::-1] if backwards else items)], type(iter(range(0))))

    def is_fixed(self, interp: Interpreter) -> bool:
        return all(bound.is_constant for bound in self.children())

    def real(self, interp: Interpreter) -> range:
        """The range in this call: symbolic bounds are specialised to their values."""
        return range(*(interp.as_int(bound, "range()") for bound in self.children()))

    def truth(self, interp: Interpreter) -> Any:
        return interp.truth_or_number(self.length(interp))

    def length(self, interp: Interpreter) -> Value:
        if self.stop.expr is not None and self.start.literal == 0 and self.step.literal == 1:
            is_negative = interp.truth(interp.finish_sync(interp.compare("<", self.stop, const(0))))
            return const(0) if is_negative else self.stop
        return const(len(self.real(interp)))

    def numpy_fake(self, interp: Interpreter, fake: Callable[[Any], Any]) -> range:
        return self.real(interp)

    def payload(self, interp: Interpreter) -> list[int]:
        return list(self.real(interp))

    def compare_same(self, interp: Interpreter, symbol: str, other: Value) -> Value | None:
        if not isinstance(other, RangeValue) or symbol not in ("==", "!="):
            return None
        return const((self.real(interp) == other.real(interp)) == (symbol == "=="))

    def getitem(self, interp: Interpreter, key: Value) -> Value:
        real = self.real(interp)
        if isinstance(key, SliceValue):
            picked = real[key.real(interp)]
            return RangeValue(const(picked.start), const(picked.stop), const(picked.step))
        i = interp.index_of(key, "range")
        if not -len(real) <= i < len(real):
            raise interp.throw(IndexError, "range object index out of range")
        return const(real[i])


@wraps(slice, range)
def _wrap(context: TraceContext, obj: slice | range, cls: type, source: Source) -> Value:
    start, stop, step = (context.wrap(getattr(obj, name), attr(source, name)) for name in ("start", "stop", "step"))
    return (SliceValue if isinstance(obj, slice) else RangeValue)(start, stop, step, source)
