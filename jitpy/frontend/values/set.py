"""Sets and frozensets."""

from __future__ import annotations

from typing import Any

from ..guards.source import Source
from .base import Value
from .instance import ObjectValue


class SetValue(ObjectValue):
    """A set or frozenset: key -> Value of the element. `twin` is a real set of the keys, in the order that the real one
    has; `log` lists the changes of one from outside: (method of set, type of the operand, its items). `unread` stands
    for the items of one from outside until all are asked for.
    """

    __slots__ = ("_items", "_twin", "exact", "log", "same", "unread")

    def __init__(self, items: dict[Any, Value] | None, source: Source | None = None, cls: type = set,
                 real: Any = None) -> None:
        super().__init__(cls, source, real)
        self._items = items
        self.unread: Any = None
        self.log: list[tuple[str, type, list[Value]]] = []
        self.exact = True  # whether the twin's order is sure to be the real one's
        self.same: Any = None  # the guard predicate of a set from outside
        self._twin: Any = real if type(real) in (set, frozenset) else None

    @property
    def items(self) -> dict[Any, Value]:
        if self._items is None:
            self.unread.read_all(self)
        return self._items  # type: ignore[return-value]

    @items.setter
    def items(self, items: dict[Any, Value]) -> None:
        self._items = items
        self.unread = None

    @property
    def twin(self) -> Any:
        if self._items is None:
            self.unread.read_all(self)
        if self._twin is None:
            kind = frozenset if issubclass(self.cls, frozenset) else set
            self._twin = kind(self.items)
            if self.real is not None:
                self.exact = list(self._twin) == list(kind.__iter__(self.real))
        return self._twin

    @twin.setter
    def twin(self, twin: Any) -> None:
        self._twin = twin

    def own_twin(self) -> Any:
        """The twin, to be changed."""
        if self._items is None:
            self.unread.read_all(self)
        if self._twin is self.real and self.real is not None:
            self._twin = set(self.real)
            self.exact = set.__sizeof__(self._twin) == set.__sizeof__(self.real) and list(self._twin) == list(self.real)
        return self.twin
