"""Lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..guards.source import Source
from .base import Interpreter, Show, Value
from .constant import ConstValue
from .instance import ModelledValue, ObjectValue
from .iterators import ListIterator, ReverseIterator
from .tuple import shown_by_parts


class ListValue(ObjectValue):
    """A list or an instance of a subclass. `owner` is the modelled instance whose hidden list this is.

    `unread` stands for the items of a list from outside until all are asked for (see `models/builtins/growing.py`).
    `log` has
    the calls of list's methods that changed one from outside; `dirty` says that it was changed in other ways as well.
    """

    __slots__ = ("_items", "dirty", "log", "owner", "unread")

    def __init__(self, items: list[Any] | None, source: Source | None = None, cls: type = list, real: Any = None,
                 unread: Any = None) -> None:
        super().__init__(cls, source, real)
        self._items = items
        self.unread = unread
        self.dirty = False
        self.log: list[tuple[str, tuple[Any, ...]]] = []
        self.owner: ModelledValue | None = None

    @property
    def items(self) -> list[Any]:
        if self._items is None:
            self.items = self.unread.read_all()
        return self._items  # type: ignore[return-value]

    @items.setter
    def items(self, items: list[Any]) -> None:
        self._items = items
        self.unread = None

    def children(self) -> Iterable[Any]:
        items = self.items if self.unread is None else self.unread.front + self.unread.back
        return *items, *super().children()

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        return ReverseIterator(self, type(reversed([]))) if backwards else ListIterator(self)

    def shown(self, interp: Interpreter, function: Any, found: Any, show: Show) -> Any:
        value = ListValue(self.items) if found is list.__repr__ else self
        text = shown_by_parts(interp, value, show) if value.cls is list else None
        return value.shown_as_constant(interp, function) if text is None else ConstValue(text)

    def deep_copied(self, interp: Interpreter, memo: dict[int, Value], copy: Callable[[Any], Value]) -> Value | None:
        if self.cls is not list:
            return None
        memo[id(self)] = made = ListValue([])
        made.items = list(map(copy, self.items))
        return made

    def branches(self, interp: Interpreter) -> list[Value] | None:
        return list(map(interp.context.force, self.items))

    def rebuild(self, interp: Interpreter, item: Callable[[Value], Value]) -> Value | None:
        return ListValue([item(interp.context.force(part)) for part in self.items]) if self.cls is list else None

    def unpacked(self, interp: Interpreter, item: Callable[[Value], Any]) -> Any:
        return [item(interp.context.force(part)) for part in self.items] if self.cls is list else None
