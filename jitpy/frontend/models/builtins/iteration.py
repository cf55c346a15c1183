"""Iterators as Values: `iter`, `next`, and the builtin iterators."""

from __future__ import annotations

import collections
import enum
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ...breaks import GraphBreak, RestartAnalysis
from ...guards.guard_set import MISSING
from ...interpreter.callees import builtin
from ...interpreter.calls import range_items
from ...interpreter.frame import PUSHED, TracedException
from ...interpreter.operators import known_text
from ...polyfills import rest_of
from ...values import (
    DELETED,
    ArrayValue,
    ConstValue,
    DictValue,
    DictViewValue,
    Exhausted,
    GeneratorValue,
    Interpreter,
    IteratorValue,
    ListValue,
    PyValue,
    RangeValue,
    SetValue,
    TensorValue,
    TupleValue,
    Value,
    const,
)
from .plain_parts import is_boxed, whole_plain_part

#: the index of a list's iterator that has said that it is at its end: it stays there
END_OF_LIST = 1 << 60


class ListIterator(IteratorValue):
    """Over a list, re-reading it as it goes, as CPython does."""

    __slots__ = ("index", "of")
    cls = type(iter([]))

    def __init__(self, of: ListValue) -> None:
        self.source = None
        self.of = of
        self.index = 0

    def children(self) -> Iterable[Any]:
        return (self.of,)

    def step(self, interp: Any) -> Value:
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

    def __init__(self, of: ListValue | TupleValue) -> None:
        self.source = None
        self.of = of
        self.index = len(of.items) - 1
        self.cls = type(reversed([])) if isinstance(of, ListValue) else reversed

    def children(self) -> Iterable[Any]:
        return (self.of,)

    def step(self, interp: Any) -> Value:
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

    def __init__(self, items: list[Any], cls: type, guarded: SetValue | None = None) -> None:
        self.source = None
        self.items = items
        self.index = 0
        self.cls = cls
        self.guarded = guarded  # the set iterated over: it must not change its size meanwhile
        self.of: Value | None = None  # what `iter` was called with, for tuples and strings
        self.size = len(items)

    def children(self) -> Iterable[Any]:
        return *self.items, self.of, self.guarded

    def step(self, interp: Any) -> Value:
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


class DictIterator(IteratorValue):
    """Over the keys, values or items that a dict has when they are asked for; its size must not change meanwhile."""

    __slots__ = ("_now", "_writes", "backwards", "born", "changed", "cls", "finished", "index", "keys", "kind", "of",
                 "of_real_keys")

    def __init__(self, interp: Interpreter, of: DictValue, kind: str, backwards: bool = False) -> None:
        self.source = None
        self.born = interp.step
        self.of = of
        self.kind = kind
        self.backwards = backwards
        self.changed = False  # its size did: every further step says so
        self._now = interp.context.dict_items(of)
        self._writes = interp.context.writes  # as of when `_now` was what the dict holds
        self.keys = [key for key, _ in self._now]
        # whether the real dict has the same keys in spite of what is to be written to it
        self.of_real_keys = of.real_dict is None or len(of.real_dict) == len(self.keys) and \
            not any(item is DELETED or key not in of.real_dict for key, item in of.log)
        self.index = 0
        self.finished = False
        self.cls = type((reversed if backwards else iter)(getattr(DictViewValue(of, kind).base(), kind)()))

    def children(self) -> Iterable[Any]:
        return (self.of,)

    def step(self, interp: Any) -> Value:
        if self.finished:
            raise Exhausted
        if interp.context.writes != self._writes or self.of.unsettled:
            self._now = interp.context.dict_items(self.of)
        now = self._now
        if len(now) != len(self.keys) or self.changed:
            ordered = issubclass(self.of.cls, collections.OrderedDict)
            self.finished, self.changed = ordered, not ordered
            raise interp.throw(RuntimeError, "OrderedDict mutated during iteration" if ordered else
                           "dictionary changed size during iteration")
        if self.index >= len(self.keys):
            self.finished = True
            raise Exhausted
        place = -1 - self.index if self.backwards else self.index
        key, value = now[place]
        if key is not self.keys[place] and key != self.keys[place]:
            # which of them a real iterator meets depends on where it is
            raise RestartAnalysis(self.born,
                                  GraphBreak("unsupported_value", "iteration over a dict that gets other keys"))
        self.index += 1
        interp.context.writes += 1
        self._writes = interp.context.writes
        if self.kind == "values":
            return value
        shown = interp.context.dict_key_value(self.of, key)
        return shown if self.kind == "keys" else TupleValue([shown, value])


class ZipIterator(IteratorValue):
    """`zip(...)`."""

    __slots__ = ("iterators",)
    cls = zip

    def __init__(self, iterators: list[Value]) -> None:
        self.source = None
        self.iterators = iterators

    def children(self) -> Iterable[Any]:
        return self.iterators

    def step(self, interp: Any) -> Value:
        if not self.iterators:
            raise Exhausted
        return TupleValue([next_sync(interp, interp.context.force(it)) for it in self.iterators])


class EnumerateIterator(IteratorValue):
    """`enumerate(...)`."""

    __slots__ = ("count", "iterator")
    cls = enumerate

    def __init__(self, iterator: Value, count: Value) -> None:
        self.source = None
        self.iterator = iterator
        self.count = count

    def children(self) -> Iterable[Any]:
        return self.iterator, self.count

    def step(self, interp: Any) -> Value:
        value = next_sync(interp, self.iterator)
        number = self.count
        self.count = interp.binary("ADD", number, const(1))
        return TupleValue([number, value])


class MapIterator(IteratorValue):
    """`map(f, ...)`; `step` may return PUSHED."""

    __slots__ = ("function", "iterators")
    cls = map

    def __init__(self, function: Value, iterators: list[Value]) -> None:
        self.source = None
        self.function = function
        self.iterators = iterators

    def children(self) -> Iterable[Any]:
        return self.function, *self.iterators

    def step(self, interp: Any) -> Any:
        return interp.call(self.function, [next_sync(interp, interp.context.force(it)) for it in self.iterators], {})


class FilterIterator(IteratorValue):
    """`filter(f, ...)`."""

    __slots__ = ("function", "iterator")
    cls = filter

    def __init__(self, function: Value, iterator: Value) -> None:
        self.source = None
        self.function = function
        self.iterator = iterator

    def children(self) -> Iterable[Any]:
        return self.function, self.iterator

    def step(self, interp: Any) -> Value:
        while True:
            value = next_sync(interp, interp.context.force(self.iterator))
            plain = isinstance(self.function, ConstValue) and self.function.value is None
            if interp.truth(value if plain else interp.call_sync(self.function, [value])):
                return value


class RestIterator(IteratorValue):
    """The items that an iterator of the program's still has."""

    __slots__ = ("of",)

    def __init__(self, of: Value) -> None:
        self.source = None
        self.of = of

    def children(self) -> Iterable[Any]:
        return (self.of,)

    def step(self, interp: Any) -> Value:
        return next_sync(interp, self.of)


@builtin(rest_of)
def _rest_of(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0] if isinstance(args[0], (IteratorValue, GeneratorValue)) else RestIterator(args[0])


def get_iter(interp: Interpreter, value: Value) -> Any:
    """`iter(value)`: a Value or PUSHED."""
    context = interp.context
    if isinstance(value, (IteratorValue, GeneratorValue)):
        return value
    if isinstance(value, ArrayValue):
        from ..arrays.array_operations import iterate

        return iterate(interp, value)
    if isinstance(value, TensorValue):
        if value.traced.ndim == 0:
            raise interp.throw(TypeError, "iteration over a 0-d tensor")
        parts = interp.record(torch.Tensor.unbind, [value], {})
        return SequenceIterator(list(parts.items), type(iter([])))  # type: ignore[attr-defined]
    found = context.class_lookup(value.cls, "__iter__")
    if isinstance(found, types.FunctionType):
        if found.__code__.co_flags & inspect.CO_GENERATOR:
            return interp.call(context.const_object(found), [value], {})
        from ...polyfills.construct import checked_iterator

        return interp.call(context.const_object(checked_iterator), [context.const_object(found), value], {})
    made = builtin_iter(interp, value)
    if made is not None:
        return made
    if found is MISSING and isinstance(context.class_lookup(value.cls, "__getitem__"), types.FunctionType):
        from ...polyfills.construct import iterate_getitem

        return interp.call(context.const_object(iterate_getitem), [value], {})
    if isinstance(value, PyValue) and isinstance(value.obj, enum.EnumMeta):
        return SequenceIterator([context.const_object(m) for m in context.pin(value)], type(iter([])))
    if found is MISSING:
        raise interp.throw(TypeError, f"{value.cls.__name__!r} object is not iterable")
    raise GraphBreak("opaque_iterator", value.describe())


def is_iterable(interp: Interpreter, value: Value) -> bool:
    """Whether `iter(value)` has something to call."""
    if isinstance(value, (IteratorValue, GeneratorValue, TensorValue)):
        return True
    found = interp.context.class_lookup(value.cls, "__iter__")
    if found is MISSING:
        return interp.context.class_lookup(value.cls, "__getitem__") is not MISSING
    return found is not None


def builtin_iter(interp: Interpreter, value: Value) -> IteratorValue | None:
    """`iter` of builtin containers."""
    context = interp.context
    if is_boxed(value) and context.class_lookup(value.cls, "__iter__") is not MISSING:
        plain = known_text(interp, whole_plain_part(interp, value))
        if isinstance(plain, ConstValue):
            made = SequenceIterator([const(c) for c in plain.value], type(iter("\u0100" if plain.cls is str else b"")))
            made.of = value
            return made
    if isinstance(value, ListValue):
        return ListIterator(value)
    if isinstance(value, TupleValue):
        made = SequenceIterator(value.items, type(iter(())))
        made.of = value
        return made
    if isinstance(value, RangeValue):
        return SequenceIterator(list(range_items(interp, value)), type(iter(range(0))))
    if isinstance(value, DictValue):
        return DictIterator(interp, value, "keys")
    if isinstance(value, DictViewValue):
        return DictIterator(interp, value.of, value.kind)
    if isinstance(value, SetValue):
        from .sets import ordered

        return SequenceIterator(list(ordered(value)), type(iter(set())), value)
    if isinstance(value, ConstValue) and isinstance(value.value, (str, bytes)):
        made = SequenceIterator([const(c) for c in value.value], type(iter(value.value)))
        made.of = value
        return made
    return None


def get_iter_sync(interp: Interpreter, value: Value) -> Value:
    return interp.finish_sync(get_iter(interp, value))


def next_value(interp: Interpreter, iterator: Value) -> Any:
    """`next(iterator)`: a Value, or PUSHED; raises `Exhausted` at the end. A pushed generator frame that returns
    raises StopIteration in the traced program: opcode handlers that want to see the end use `resume_generator`."""
    if isinstance(iterator, IteratorValue):
        return iterator.step(interp)
    found = interp.context.class_lookup(iterator.cls, "__next__")
    if isinstance(found, types.FunctionType):
        return interp.call(interp.context.const_object(found), [iterator], {})
    if found is MISSING:
        raise interp.throw(TypeError, f"{iterator.cls.__name__!r} object is not an iterator")
    raise GraphBreak("opaque_iterator", iterator.describe())


def next_sync(interp: Interpreter, iterator: Value) -> Value:
    """`next(iterator)`, waiting for it; raises `Exhausted` at the end."""
    from .generators import resume_sync

    if isinstance(iterator, GeneratorValue):
        return resume_sync(interp, iterator)
    try:
        result = next_value(interp, iterator)
        return interp.finish_sync(result) if result is PUSHED else result
    except TracedException as error:
        if issubclass(error.value.cls, StopIteration) and not isinstance(iterator, IteratorValue):
            raise Exhausted from None
        raise


def each(interp: Interpreter, value: Value, hinted: bool = False) -> Iterator[Value]:
    """The items of an iterable one by one, for C functions that use each before they ask for the next: what yields them
    sees it. `hinted` says that they ask for its length first, to make room."""
    if isinstance(value, (ListValue, TupleValue)) and value.cls in (list, tuple, torch.Size):
        value.items[:] = [interp.context.force(v) for v in value.items]
        yield from list(value.items)
        return
    iterator = get_iter_sync(interp, value)
    if hinted:
        _ask_length(interp, value)
    while True:
        try:
            item = next_sync(interp, iterator)
        except Exhausted:
            return
        yield item


def iterate(interp: Interpreter, value: Value, hinted: bool = False) -> list[Value]:
    """All the items of an iterable, as C functions such as `list()` take them."""
    return list(each(interp, value, hinted))


def _ask_length(interp: Interpreter, value: Value) -> None:
    """`operator.length_hint(value)`, where that is code of the program's."""
    for name in ("__len__", "__length_hint__"):
        found = interp.context.class_lookup(value.cls, name)
        if isinstance(found, types.FunctionType):
            try:
                hint = interp.call_sync(interp.context.const_object(found), [value])
            except TracedException as error:
                if issubclass(error.value.cls, TypeError):
                    continue
                raise
            if not (isinstance(hint, ConstValue) and hint.value is NotImplemented):
                if not issubclass(hint.cls, int) and name == "__length_hint__":
                    raise interp.throw(TypeError, f"{name} must be an integer, not {hint.cls.__name__}")
                if issubclass(hint.cls, int):
                    if interp.truth(interp.finish_sync(interp.compare("<", hint, const(0)))):
                        raise interp.throw(ValueError, f"{name}() should return >= 0")
                    return
