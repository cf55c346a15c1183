"""Tuples."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..guards.source import Source
from .base import Interpreter, Show, Value, unsupported
from .constant import ConstValue
from .instance import ObjectValue
from .iterators import ReverseIterator, SequenceIterator
from .range import SliceValue
from .sequence import SequenceValue


def shown_by_parts(interp: Interpreter, value: Any, show: Show, depth: int = 0) -> str | None:
    """`repr` of a list or tuple with instances in it; None where there are none, or where it is not known."""
    items = [interp.context.force(item) for item in value.items]
    if depth > 8 or not any(isinstance(item, ObjectValue) for item in items):
        return None
    parts = []
    for item in items:
        is_nested = isinstance(item, ObjectValue) and item.cls in (tuple, list)
        text = shown_by_parts(interp, item, show, depth + 1) if is_nested else None
        if text is None:
            shown = interp.finish_sync(show(item, repr))
            if not isinstance(shown, ConstValue):
                return None
            text = shown.value
        parts.append(text)
    if value.cls is list:
        return f"[{', '.join(parts)}]"
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


class TupleValue(SequenceValue):
    """A tuple or an instance of a subclass (named tuples, torch.Size, torch.return_types)."""

    __slots__ = ("items",)
    base = tuple

    def __init__(self, items: list[Any], source: Source | None = None, cls: type = tuple, real: Any = None) -> None:
        super().__init__(cls, source, real)
        self.items = items

    def member(self, interp: Interpreter, descr: Any, owner: type) -> Value | None:
        if "n_sequence_fields" not in owner.__dict__:
            return super().member(interp, descr, owner)
        fields = [name for name, found in owner.__dict__.items() if type(found) is types.MemberDescriptorType]
        return interp.context.force(self.items[fields.index(descr.__name__)])  # such as torch.return_types.max

    def children(self) -> Iterable[Any]:
        return *self.items, *super().children()

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        if not backwards:
            return SequenceIterator(self.items, type(iter(())), self)
        own = [interp.context.class_lookup(self.cls, name) for name in ("__getitem__", "__len__")]
        return None if any(isinstance(one, types.FunctionType) for one in own) else ReverseIterator(self, reversed)

    def place(self) -> Any:
        return None

    def made_of(self, items: list[Any]) -> TupleValue:
        return TupleValue(items, None, torch.Size if self.cls is torch.Size else tuple)

    def getitem(self, interp: Interpreter, key: Value) -> Value:
        count = len(self.items)
        is_all = self.cls is tuple and isinstance(key, SliceValue) and key.real(interp).indices(count) == (0, count, 1)
        return self if is_all else super().getitem(interp, key)

    def is_same(self, interp: Interpreter, other: Value) -> bool | None:
        is_empty = self.cls is other.cls is tuple and not self.items and not other.items  # type: ignore[attr-defined]
        return True if is_empty else super().is_same(interp, other)

    def shown(self, interp: Interpreter, function: Any, found: Any, show: Show) -> Any:
        value = TupleValue(self.items) if found is tuple.__repr__ else self
        text = shown_by_parts(interp, value, show) if value.cls is tuple else None
        return value.shown_as_constant(interp, function) if text is None else ConstValue(text)

    def deep_copied(self, interp: Interpreter, memo: dict[int, Value], copy: Callable[[Any], Value]) -> Value | None:
        if self.cls is not tuple and not hasattr(self.cls, "_fields") or \
                interp.context.has_slot(self.cls, "__deepcopy__"):
            return None
        items = [interp.context.force(item) for item in self.items]
        copies = list(map(copy, items))
        if id(self) in memo:  # it holds itself
            return memo[id(self)]
        same = self.cls is tuple and all(a is b for a, b in zip(items, copies, strict=True))
        memo[id(self)] = made = self if same else TupleValue(copies, None, self.cls)
        return made

    def key(self, interp: Interpreter) -> Any:
        if self.cls is not tuple and not self.keeps(interp, tuple, "__hash__", "__eq__"):
            raise unsupported(self, "hash()")
        return tuple(v.key(interp) for v in self.forced(interp))

    def payload(self, interp: Interpreter) -> Any:
        items = super().payload(interp)
        return self.cls(*items) if hasattr(self.cls, "_fields") else tuple(items)

    def constant(self, interp: Interpreter) -> Any:
        is_size = self.cls is torch.Size
        return torch.Size([v.constant(interp) for v in self.forced(interp)]) if is_size else super().constant(interp)

    def numpy_fake(self, interp: Interpreter, fake: Callable[[Any], Any]) -> Any:
        return tuple(map(fake, self.items)) if self.cls is torch.Size else super().numpy_fake(interp, fake)

    def tensor_subscript(self, interp: Interpreter) -> Value:
        items = self.forced(interp)
        made = [v.tensor_subscript(interp) for v in items]
        return self if all(x is y for x, y in zip(made, items, strict=True)) else TupleValue(made)

    def setitem(self, interp: Interpreter, key: Value, new: Value) -> None:
        raise interp.throw(TypeError, f"{self.cls.__name__!r} object does not support item assignment")

    def combine(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        if name != "ADD" or not isinstance(other, TupleValue):
            return super().combine(interp, name, other, inplace)
        if self.cls is other.cls is tuple and not (self.items and other.items):
            return self if self.items else other
        sizes = self.cls in (tuple, torch.Size) and other.cls in (tuple, torch.Size)
        return TupleValue(self.items + other.items, None, type(self.cls() + other.cls()) if sizes else tuple)
