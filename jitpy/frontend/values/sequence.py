"""The part that lists and tuples share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ..guards.source import CallSource, index_by, root_of
from .base import Interpreter, Value
from .constant import ConstValue, const
from .instance import ObjectValue
from .number import SymValue
from .operator_tables import COMPARE
from .range import SliceValue

#: what is read of a sequence at a place that changes from call to call
_CHOSEN = frozenset({int, float, str, list, tuple, dict})


class SequenceValue(ObjectValue):
    """A list or a tuple, or an instance of a subclass; `base` is the builtin type."""

    __slots__ = ()
    answers_comparisons = True
    items: Any

    def made_of(self, items: list[Any]) -> SequenceValue:
        """A part or a multiple of this."""
        raise NotImplementedError

    def item(self, interp: Interpreter, i: int) -> Value | None:
        """Item `i`, or None where there is none."""
        if not -len(self.items) <= i < len(self.items):
            return None
        value = self.items[i] = interp.context.force(self.items[i])
        return value

    def forced(self, interp: Interpreter) -> list[Value]:
        """All items."""
        return [interp.context.force(v) for v in self.items]

    listed = branches = forced

    def is_fixed(self, interp: Interpreter) -> bool:
        return self.cls is self.base and all(item.is_fixed(interp) for item in self.forced(interp))

    def rebuild(self, interp: Interpreter, item: Callable[[Value], Value]) -> Value | None:
        is_exact = self.cls is self.base or self.cls is torch.Size
        return self.made_of([item(interp.context.force(v)) for v in self.items]) if is_exact else None

    def unpacked(self, interp: Interpreter, item: Callable[[Value], Any]) -> Any:
        return self.base(item(interp.context.force(v)) for v in self.items) if self.cls is self.base else None

    def length(self, interp: Interpreter) -> Value:
        return const(len(self.items))

    def payload(self, interp: Interpreter) -> Any:
        return [v.payload(interp) for v in self.forced(interp)]

    def compare_same(self, interp: Interpreter, symbol: str, other: Value) -> Any:
        if not isinstance(other, SequenceValue) or other.base is not self.base:
            return None
        xs, ys = self.forced(interp), other.forced(interp)
        if symbol in ("==", "!="):
            same = len(xs) == len(ys) and all(interp.equal(x, y) for x, y in zip(xs, ys, strict=True))
            return const(same == (symbol == "=="))
        for x, y in zip(xs, ys, strict=False):
            if not interp.equal(x, y):
                return interp.finish_sync(interp.compare(symbol, x, y))
        return const(COMPARE[symbol][0](len(xs), len(ys)))

    def getitem(self, interp: Interpreter, key: Value) -> Value:
        if isinstance(key, SliceValue):
            return self.made_of(self.items[key.real(interp)])
        value = self._at_changing_place(interp, key) or self.item(interp, interp.index_of(key, self.base.__name__))
        if value is None:
            raise interp.throw(IndexError, f"{self.base.__name__} index out of range")
        return value

    def _at_changing_place(self, interp: Interpreter, key: Value) -> Value | None:
        """The item at a place that numbers from outside say: each call has its own, guarded as far as it is looked at.
        Items that are code (modules, functions) are compiled for one by one."""
        context = interp.context
        if not isinstance(key, SymValue) or self.source is None or isinstance(root_of(self.source), CallSource) or \
                type(self.real) is not self.base or context.has_changed(self):
            return None
        place = context.sizes.canonical(key.expr)
        if isinstance(place, int) or place.is_Integer or context.sizes.is_unbacked(place):
            return None
        i = context.sizes.hint(place)
        if not -len(self.real) <= i < len(self.real) or type(self.real[i]) not in _CHOSEN:
            return None
        return context.wrap(self.real[i], index_by(self.source, place))

    def combine(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        return self.combine_reflected(interp, name, other)

    def combine_reflected(self, interp: Interpreter, name: str, other: Value) -> Any:
        times = self.repeats(interp, name, other)
        if times == 1 and self.cls is tuple:
            return self
        return None if times is None else self.made_of(self.items * times)

    def repeats(self, interp: Interpreter, name: str, other: Value) -> int | None:
        """How often it is repeated by `self * other`; None for other operators."""
        if name != "MULTIPLY" or not isinstance(other, (ConstValue, SymValue)) or not issubclass(other.cls, int):
            return None
        times = interp.as_int(other, "repetition")
        if not -sys.maxsize - 1 <= times <= sys.maxsize:
            raise interp.throw(OverflowError, "cannot fit 'int' into an index-sized integer")
        return times

    def answers_operator(self, interp: Interpreter, name: str, method: str, found: Any, other: Value) -> bool:
        return False
