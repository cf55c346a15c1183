"""Containers from outside that change without being read: `self.history.append(loss)`, `cache[key] = y`, `len(seen)`.

Reading a list's items fixes its length, so that code compiled for a list that grows would fit no later call. An
`UnreadList` stands for the items of a list or deque until something asks for all of them. It knows both ends as far
as tracing read, changed or made them; what lies between is whatever the real one holds then, however much that is.
A length that changed from call to call is a symbol of the capture.

Changes are noted as calls of the methods of `list` (`ListValue.log`), and replayed by those on the real list.
The world is referred to weakly: it, and the arguments that it holds, go with the capture.
"""

from __future__ import annotations

import collections
import enum
import functools
import operator
import weakref
from typing import Any

from ...ir.algebra import sympy
from ..guards.observations import MANY
from ..guards.source import ConstSource, LocalSource, Source, index, slot
from ..values import (
    CONST_TYPES,
    DictValue,
    Lazy,
    ListValue,
    Missing,
    PyValue,
    SetValue,
    TraceContext,
    TupleValue,
    UnreadTuple,
    Value,
    compares_by_program,
)
from ..values.wrapping import wraps

#: how far from an end an item is read without reading them all
_NEAR = 16
_LENGTHS = {kind: property(kind.__len__) for kind in (list, dict, set, frozenset, collections.deque)}


class Length:
    """The number of items of a real container. `value` is a plain int once a guard fixes it."""

    def __init__(self, context: TraceContext, source: Source, kind: type, size: int) -> None:
        self.context: TraceContext = weakref.proxy(context)
        self.source = source
        self.size = size
        self._path = slot(source, _LENGTHS[kind])
        self.changes = context.number_changes(self._path, size)
        self._symbol: sympy.Symbol | None = None

    def read(self) -> Any:
        """An int, or a symbol where it changed from call to call."""
        if not self.changes:
            return self.fix()
        if self._symbol is None:
            self._symbol = self.context.builder.int_input(self.size, self._path)
        return self.context.sizes.canonical(self._symbol)

    def fix(self) -> int:
        """The length in this call, guarded."""
        self.context.need(self._path.key(), self.size, f"all of {self.source}")
        self.context.guard(self.source, "len", self.size)
        if self._symbol is not None:
            self.context.sizes.specialize(self._symbol, f"len({self.source})")
        self.changes = False
        return self.size


class UnreadList:
    """The items of a real list or deque: `front`, then items `start` to `-stop` of the real one, then `back`."""

    def __init__(self, context: TraceContext, real: Any, source: Source, path: Source | None = None) -> None:
        self.context: TraceContext = weakref.proxy(context)
        self.real = real
        self.kind = list if isinstance(real, list) else collections.deque
        self.source = source
        #: a path to a sequence of all items, and of their number, where `source` does not do
        self.path = path or source
        self.length = Length(context, source, self.kind, len_of(real))
        self.front: list[Any] = []
        self.back: list[Any] = []
        self.start = self.stop = 0

    def read_all(self) -> list[Any]:
        """All items; how many there are is guarded."""
        count = self.length.fix()
        if self.path is not self.source:
            self.context.guard(self.path, "len", count)
        middle = range(self.start, count - self.stop)
        return [*self.front, *(Lazy(self.kind.__getitem__(self.real, i), index(self.path, i)) for i in middle),
                *self.back]

    def count(self) -> Any:
        """How many items there are now: an int or an expression."""
        return self.length.read() - self.start - self.stop + len(self.front) + len(self.back)

    def reach(self, i: int) -> bool:
        """Whether item `i` lies in `front` (`i >= 0`) or `back`, after reading from the real list as far as need be."""
        if not -_NEAR <= i < _NEAR:
            return False
        while not -len(self.back) <= i < len(self.front):
            taken = self.start + self.stop
            if taken >= self.length.size or not self.length.changes:
                return False
            self.context.sizes.decide(sympy.Gt(self.length.read(), taken), f"{self.source} has an item {i}")
            if i >= 0:
                self.front.append(self._item(self.start))
                self.start += 1
            else:
                self.stop += 1
                self.back.insert(0, self._item(-self.stop))
        return True

    def _item(self, i: int) -> Lazy:
        path = index(self.source, i) if self.kind is list else slot(self.source, _item_of_deque(i))
        return Lazy(self.kind.__getitem__(self.real, i), path)

    def side(self, i: int) -> list[Any]:
        """The end that has item `i`, which is within reach: index it by `i`."""
        return self.front if i >= 0 else self.back

    def change(self, method: str, args: tuple[Any, ...]) -> bool:
        """Do what a method of list does; False where that takes all items."""
        if method in ("append", "extend"):
            getattr(self.back, method)(*args)
        elif method == "insert" and args[0] == 0:
            self.front.insert(0, args[1])
        elif method in ("pop", "__setitem__", "__delitem__") and type(args[0]) is int and self.reach(args[0]):
            getattr(self.side(args[0]), method)(*args)
        else:
            return False
        return True


def tensors_grow(context: Any) -> bool:
    """Whether a call leaves tensors of other sizes where it read some, as caches grow: these sizes become symbols.
    Where it fills an empty place in an object that is no module, as it does in a new cache, it is traced once more with
    all sizes as symbols, since such calls come in sequences of any length. That tells which sizes of a cache change."""
    grow, history = False, context.history
    is_second, history.fills_state = history.fills_state, False
    lengths = {symbol for symbol, info in context.sizes.symbols.items() if info.dim is not None}
    for value in context.dirty:
        for source, before, found in value.written_parts() if value.source is not None else ():
            if found.tensor is not None:
                sizes = found.tensor.spec.shape
                grow |= history.will_change(source.key(), tuple(map(context.sizes.hint, sizes)))
                if before is None and not context.is_config(source):
                    history.fills_state = not is_second
                    history.dynamic_dims[source.key()] |= {k for k, size in enumerate(sizes) if type(size) is not int
                                                           and size.free_symbols & lengths}
    return (grow or history.fills_state or _others_change(context)) and not is_second


def _others_change(context: Any) -> bool:
    """Whether sizes that change had to be those of other tensors, whose sizes are taken to change from now on."""
    sizes, history, found = context.sizes, context.history, False
    pinned = {sizes.canonical(symbol) for symbol, info in sizes.symbols.items() if info.dim is not None}
    for key, shape in context.shapes.items():
        more = {k for k, size in enumerate(shape) if size > 1 and size in pinned} - history.dynamic_dims[key]
        history.dynamic_dims[key] |= more
        found |= bool(more)
    return found


def len_of(real: Any) -> int:
    """The number of items, by the container's own count."""
    return next(int(kind.__len__(real)) for kind in _LENGTHS if isinstance(real, kind))


@functools.cache
def _item_of_deque(i: int) -> property:
    return property(operator.itemgetter(i))


def dict_count(context: TraceContext, target: DictValue) -> Any:
    """How many items a dict has: an int or an expression."""
    if not target.complete and target.source is not None:
        context.settle_keys(target)
        if target.real_length is None:
            target.real_length = Length(context, target.source, dict, len_of(target.real_dict))
        count = target.real_length.read()
        for key in dict.fromkeys(key for key, _ in target.log):
            before = dict.__contains__(target.real_dict, key)
            context.guard(target.source, "haskey" if before else "nokey", key)
            count += (not isinstance(target.vals.get(key), Missing)) - before
        return count
    return len(context.dict_items(target))


def is_symbolic(key: Any) -> bool:
    """Whether a dict key or set element is a symbolic number or a tuple with one, the rest constants."""
    if key.base is tuple and key.cls is tuple:
        return not any(isinstance(k, Lazy) for k in key.items) and any(map(is_symbolic, key.items)) and \
            all(is_symbolic(k) or k.is_constant for k in key.items)
    return key.expr is not None


def fixed_key(context: TraceContext, key: Any) -> Any:
    """The real key of a symbolic one in this call, guarded."""
    if key.base is tuple:
        return tuple(fixed_key(context, k) for k in key.items)
    if key.expr is not None:
        return context.specialize(key.expr, "a key")
    return key.value


class SymbolicKey:
    """Stands for a symbolic key in a `DictValue` until it is settled."""

    def __init__(self, value: Value) -> None:
        self.value = value


class UnreadSet:
    """A set from outside of which tracing knows what it asked for: `known` says of some keys whether they are in it.

    Until all items are asked for, it is changed by `add` and `discard` only. The last `unsettled` changes are of
    elements that are not known exactly.
    """

    def __init__(self, context: TraceContext, real: Any, source: Source) -> None:
        self.context: TraceContext = weakref.proxy(context)
        self.real = plain_set(real)
        self.source = source
        self.length = Length(context, source, set if isinstance(real, set) else frozenset, len_of(real))
        self.known: dict[Any, bool] = {}
        self.unsettled = 0
        self._held: dict[Any, bool] = {}

    def read_all(self, value: SetValue) -> None:
        """Give a `SetValue` its items; a guard fixes them."""
        self.settle(value)
        self.length.fix()
        kinds = {e: type(e) for e in self.real}
        value.same = SameSet(frozenset(self.real), kinds, tuple(self.real))
        self.context.guards.add(self.source, "python", value.same, self.context.why)
        value.items = {e: self.context.const_object(e) for e in self.real}
        for method, _, (element,) in value.log:
            key = element.value  # type: ignore[attr-defined]
            if (key in value.items) is (method == "add"):
                continue
            getattr(value.own_mirror(), method)(key)
            if method == "add":
                value.items[key] = element
            else:
                del value.items[key]

    def settle(self, value: SetValue) -> None:
        """Fix the symbolic elements that were added."""
        first, self.unsettled = len(value.log) - self.unsettled, 0
        for i in range(first, len(value.log)):
            method, kind, (element,) = value.log[i]
            key = fixed_key(self.context, element)
            value.log[i] = method, kind, [self.context.const_object(key)]
            self.known[key] = True

    def holds(self, value: SetValue, key: Any) -> bool:
        """Whether the set has a constant, now."""
        self.settle(value)
        if key not in self.known:
            self.known[key] = self._held_before(key)
        return self.known[key]

    def count(self, value: SetValue) -> Any:
        """How many elements there are now: an int or an expression."""
        self.settle(value)
        count = self.length.read()
        for key, found in self.known.items():
            count += found - self._held_before(key)
        return count

    def change(self, value: SetValue, method: str, element: Value) -> bool:
        """Do `add` or `discard`; False where that takes all items."""
        if method == "add" and is_symbolic(element):
            self.unsettled += 1
        elif element.is_constant:
            self.settle(value)
            if self.known.get(element.value) is (method == "add"):
                return True
            self.known[element.value] = method == "add"
        else:
            return False
        self.context.writes += 1
        value.log.append((method, type(None), [element]))
        self.context.touch(value)
        return True

    def _held_before(self, key: Any) -> bool:
        """Whether the real set has a constant; guarded."""
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = key in self.real
            self.context.guards.add(self.source, "python", _Holds(key, found), self.context.why)
        return found


def plain_set(real: Any) -> Any:
    """A set of an exact type with the elements of another one, whose class may have methods of its own."""
    kind = set if isinstance(real, set) else frozenset
    return real if type(real) is kind else kind(real)  # which asks no method of a set


def is_set_key(element: Any) -> bool:
    """Whether tracing can tell elements of this kind apart."""
    kind = type(element)
    return kind in CONST_TYPES or isinstance(element, (type, enum.Enum)) and not compares_by_program(kind)


class SameSet:
    """Guard predicate: the set holds exactly these constants."""

    def __init__(self, snapshot: frozenset[Any], kinds: dict[Any, type], order: tuple[Any, ...]) -> None:
        self.snapshot = snapshot
        self.kinds = kinds
        self.order = order
        self.in_order = False  # whether its order was looked at

    def __call__(self, value: Any) -> bool:
        value = plain_set(value)
        return (len(value) == len(self.snapshot) and all(map(is_set_key, value))
                and value == self.snapshot and all(self.kinds[e] is type(e) for e in value)
                and (not self.in_order or tuple(value) == self.order))

    def __repr__(self) -> str:
        return f"equals {set(self.snapshot)!r}"


class _Holds:
    """Guard predicate: whether a set has a constant."""

    def __init__(self, key: Any, expected: bool) -> None:
        self.key = key
        self.expected = expected

    def __call__(self, value: Any) -> bool:
        return (self.key in plain_set(value)) is self.expected

    def __repr__(self) -> str:
        return f"{'has' if self.expected else 'has no'} {self.key!r}"


# -- texts and tuples, which grow into others -----------------------------------------------------------------


def is_changing_text(context: TraceContext, obj: str, source: Source) -> bool:
    """Whether a text was another one at each call."""
    # what lies on the stack of a resume function was computed by the instruction before it
    computed = isinstance(source, LocalSource) and source.name.startswith("___s")
    return context.history.is_needed_often(source.key(), hash(obj), 1 if computed else MANY)


def has_changing_length(context: TraceContext, obj: tuple[Any, ...], source: Source) -> bool:
    """Whether a tuple grows from call to call. (How many arguments a function has is another matter.)"""
    if isinstance(source, ConstSource) or isinstance(source, LocalSource) and source.is_star:
        return False
    return context.history.is_needed_often((source.key(), "length"), len(obj)) and context.may_break


# -- wrapping -------------------------------------------------------------------------------------------------


@wraps(tuple)
def _wrap_tuple(context: TraceContext, obj: tuple[Any, ...], cls: type, source: Source) -> Value:
    if cls is tuple and has_changing_length(context, obj, source):
        return UnreadTuple(obj, source)
    if cls is not tuple:
        context.container_kinds[source.key()] = tuple
    items = [Lazy(item, index(source, i)) for i, item in enumerate(tuple.__iter__(obj))]
    context.guard(source, "len", len(items))
    return context.with_attrs(TupleValue(items, source, cls, obj), obj)


@wraps(list)
def _wrap_list(context: TraceContext, obj: list[Any], cls: type, source: Source) -> Value:
    if cls is not list:
        context.container_kinds[source.key()] = list
    return context.with_attrs(ListValue(None, source, cls, obj, UnreadList(context, obj, source)), obj)


@wraps(set, frozenset)
def _wrap_set(context: TraceContext, obj: Any, cls: type, source: Source) -> Value:
    if not all(map(is_set_key, plain_set(obj))):
        return PyValue(obj, source, pinned=False)
    value = SetValue(None, source, cls, obj)
    value.unread = UnreadSet(context, obj, source)
    return context.with_attrs(value, obj)
