"""Sets and frozensets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..breaks import GraphBreak
from ..guards.guard_set import Answers
from ..guards.source import Source
from .base import Interpreter, Show, Value
from .constant import CONST_TYPES, ConstValue, const
from .instance import ObjectValue
from .iterators import SequenceIterator
from .number import SymValue, count_value
from .operator_tables import COMPARE


class SetValue(ObjectValue):
    """A set or frozenset: key -> Value of the element. `mirror` is a real set of the keys, in the order that the real
    one has; `log` lists the changes of one from outside: (method of set, type of the operand, its items). `unread`
    stands for the items of one from outside until all are asked for.
    """

    answers_comparisons = True
    __slots__ = ("_items", "_mirror", "exact", "log", "same", "unread")

    def __init__(self, items: dict[Any, Value] | None, source: Source | None = None, cls: type = set,
                 real: Any = None) -> None:
        super().__init__(cls, source, real)
        self._items = items
        self.unread: Any = None
        self.log: list[tuple[str, type, list[Value]]] = []
        self.exact = True  # whether the mirror's order is sure to be the real one's
        self.same: Any = None  # the guard predicate of a set from outside
        self._mirror: Any = real if type(real) in (set, frozenset) else None

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
    def base(self) -> Any:  # type: ignore[override]
        return frozenset if issubclass(self.cls, frozenset) else set

    def children(self) -> Iterable[Any]:
        return *(self._items or {}).values(), *super().children()

    def ordered(self) -> list[Value]:
        """The elements in the order of iteration."""
        if self.real is not None:
            if self.same is not None:
                self.same.in_order = True
            if self.mirror is not self.real and not self.exact:
                raise GraphBreak("unsupported_value", "the order of a set that was changed here")
        return [self.items[key] for key in self.mirror]

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        return None if backwards else SequenceIterator(self.ordered(), type(iter(set())), guarded=self)

    def shown(self, interp: Interpreter, function: Any, found: Any, show: Show) -> Any:
        if self.real is not None and not self.log and all(type(item) in CONST_TYPES for item in self.real):
            text = function(self.real)  # in an order that only the real set has
            interp.context.guard(self.source, "python", Answers(function, text))
            return const(text)
        if self.source is not None or found not in (set.__repr__, frozenset.__repr__):
            return super().shown(interp, function, found, show)
        items = ", ".join(repr(self.items[key].constant(interp)) for key in self.mirror)
        listed = f"{{{items}}}" if items else ""
        return const(listed if items and self.cls is set else f"{self.cls.__name__}({listed})")

    def deep_copied(self, interp: Interpreter, memo: dict[int, Value], copy: Callable[[Any], Value]) -> Value | None:
        if self.cls not in (set, frozenset):
            return None
        copies = list(map(copy, self.ordered()))
        return SetValue({copied.key(interp): copied for copied in copies}, None, self.cls)

    @property
    def mirror(self) -> Any:
        if self._items is None:
            self.unread.read_all(self)
        if self._mirror is None:
            kind = self.base
            self._mirror = kind(self.items)
            if self.real is not None:
                self.exact = list(self._mirror) == list(kind.__iter__(self.real))
        return self._mirror

    @mirror.setter
    def mirror(self, mirror: Any) -> None:
        self._mirror = mirror

    def own_mirror(self) -> Any:
        """The mirror, to be changed."""
        if self._items is None:
            self.unread.read_all(self)
        if self._mirror is self.real and self.real is not None:
            mirror = self._mirror = set(self.real)
            self.exact = set.__sizeof__(mirror) == set.__sizeof__(self.real) and list(mirror) == list(self.real)
        return self.mirror

    def length(self, interp: Interpreter) -> Value:
        return count_value(len(self.items) if self.unread is None else self.unread.count(self))

    def key(self, interp: Interpreter) -> Any:
        return frozenset(self.items) if self.keeps(interp, frozenset, "__hash__", "__eq__") else super().key(interp)

    def combine(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        if name not in SET_OPERATORS or other.set_keys(interp) is None:
            return None
        return interp.set_binary(name, self, other, inplace)

    def answers_operator(self, interp: Interpreter, name: str, method: str, found: Any, other: Value) -> bool:
        if other.base in (set, frozenset):
            return True
        return issubclass(other.cls, (set, frozenset)) and super().answers_operator(interp, name, method, found, other)

    def folded(self, interp: Interpreter) -> Any:
        if self.cls not in (set, frozenset):
            return super().folded(interp)
        return self.cls(v.folded(interp) for v in self.items.values())

    def member_key(self, interp: Interpreter) -> Any:
        return frozenset(self.items) if self.cls.__hash__ is None else self.key(interp)

    def set_keys(self, interp: Interpreter) -> list[Any]:
        return list(self.items)

    def compare_same(self, interp: Interpreter, symbol: str, other: Value) -> Value | None:
        return compare_sets(interp, symbol, self, other)

    def contains(self, interp: Interpreter, item: Value) -> Value:
        key = item.member_key(interp)
        unread = self.unread if isinstance(item, (ConstValue, SymValue)) else None
        return const(unread.holds(self, key) if unread is not None else key in self.items)


SET_OPERATORS = ("AND", "OR", "SUBTRACT", "XOR")


def compare_sets(interp: Interpreter, symbol: str, a: Value, b: Value) -> Value | None:
    """A comparison of two sets, or views of dicts; None for others."""
    left, right = a.set_keys(interp), b.set_keys(interp)
    return None if left is None or right is None else const(COMPARE[symbol][0](set(left), set(right)))
