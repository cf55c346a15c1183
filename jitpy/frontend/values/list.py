"""Lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..guards.source import Source, index
from .base import DELETED, Interpreter, Show, Value
from .constant import ConstValue
from .instance import ModelledValue
from .iterators import ListIterator, ReverseIterator
from .number import count_value
from .range import SliceValue
from .sequence import SequenceValue
from .tuple import shown_by_parts


class ListValue(SequenceValue):
    """A list or an instance of a subclass. `owner` is the modelled instance whose hidden list this is.

    `unread` stands for the items of a list from outside until all are asked for (see `interpreter/growing.py`).
    `log` has
    the calls of list's methods that changed one from outside; `dirty` says that it was changed in other ways as well.
    """

    __slots__ = ("_items", "dirty", "log", "owner", "unread")
    base = list

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

    def written_parts(self) -> Iterable[tuple[Source, Any, Value]]:
        assert self.source is not None
        return [(index(self.source, args[0]), DELETED, args[1]) for method, args in self.log
                if method == "__setitem__" and type(args[0]) is int]

    def made_of(self, items: list[Any]) -> ListValue:
        return ListValue(items)

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        return ReverseIterator(self, type(reversed([]))) if backwards else ListIterator(self)

    def item(self, interp: Interpreter, i: int) -> Value | None:
        """Item `i`, or None where there is none."""
        if self.unread is None or not self.unread.reach(i):
            return super().item(interp, i)
        items = self.unread.side(i)
        value = items[i] = interp.context.force(items[i])
        return value

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

    def has_item(self, i: int) -> bool:
        return self.unread is not None and self.unread.reach(i) or -len(self.items) <= i < len(self.items)

    def length(self, interp: Interpreter) -> Value:
        return super().length(interp) if self.unread is None else count_value(self.unread.count())

    def setitem(self, interp: Interpreter, key: Value, new: Value) -> None:
        if not isinstance(key, SliceValue):
            self.change(interp.context, "__setitem__", self._place(interp, key), new)
            return
        cut, values = key.real(interp), list(interp.iterate(new))
        try:
            [*self.items].__setitem__(cut, values)
        except ValueError as error:
            raise interp.raise_real(error) from None
        interp.mutate(self)
        self.items[cut] = values

    def delitem(self, interp: Interpreter, key: Value) -> None:
        if not isinstance(key, SliceValue):
            self.change(interp.context, "__delitem__", self._place(interp, key))
            return
        cut = key.real(interp)
        interp.mutate(self)
        del self.items[cut]

    def change(self, context: Any, method: str, *args: Any) -> None:
        """Call a method of list that changes it. Positions are ints within range; other arguments Values (or Lazy)."""
        if self.unread is None or not self.unread.change(method, args):
            getattr(list, method)(self.items, *args)
        context.writes += 1
        if self.source is not None or self.owner is not None:
            self.log.append((method, args))
        if self.source is not None:
            context.touch(self)
        elif self.owner is not None:
            if not hasattr(self.owner.body, "changes"):
                self.owner.dirty = True
            if self.owner.source is not None:
                context.touch(self.owner)

    def _place(self, interp: Interpreter, key: Value) -> int:
        i = interp.index_of(key, "list")
        if not self.has_item(i):
            raise interp.throw(IndexError, "list assignment index out of range")
        return i

    def combine(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        if name == "ADD" and inplace:
            interp.call(interp.context.const_object(list.extend), [self, other], {})
            return self
        if name == "ADD" and isinstance(other, ListValue):
            return ListValue(self.items + other.items)
        times = self.repeats(interp, name, other)
        if times is None or not inplace:
            return None if times is None else self.made_of(self.items * times)
        interp.mutate(self)
        self.items = self.items * times
        return self
