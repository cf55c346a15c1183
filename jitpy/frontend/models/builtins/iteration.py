"""Iterators as Values: `iter`, `next`, and the builtin iterators."""

from __future__ import annotations

import enum
import inspect
import itertools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ...breaks import GraphBreak
from ...guards.guard_set import MISSING
from ...interpreter.callees import builtin
from ...interpreter.frame import PUSHED, TracedException
from ...polyfills import rest_of
from ...values import Exhausted, Interpreter, IteratorValue, SequenceIterator, TupleValue, Value, const


class ZipIterator(IteratorValue):
    """`zip(...)`."""

    __slots__ = ("iterators", "strict")
    cls = zip

    def __init__(self, iterators: list[Value], strict: bool = False) -> None:
        self.source = None
        self.iterators = iterators
        self.strict = strict

    def children(self) -> Iterable[Any]:
        return self.iterators

    def step(self, interp: Any) -> Value:
        if not self.iterators:
            raise Exhausted
        items: list[Value] = []
        try:
            for iterator in self.iterators:
                items.append(next_sync(interp, interp.context.force(iterator)))
        except Exhausted:
            if self.strict:
                self._check_lengths(interp, len(items))
            raise
        return TupleValue(items)

    def _check_lengths(self, interp: Any, shorter: int) -> None:
        """Raise the program's ValueError unless all iterators end with the first one."""
        for position in range(1, len(self.iterators)) if not shorter else ():
            try:
                next_sync(interp, interp.context.force(self.iterators[position]))
            except Exhausted:
                continue
            raise interp.throw(ValueError, f"zip() argument {position + 1} is longer than {_arguments(position)}")
        if shorter:
            raise interp.throw(ValueError, f"zip() argument {shorter + 1} is shorter than {_arguments(shorter)}")


def _arguments(count: int) -> str:
    return "argument 1" if count == 1 else f"arguments 1-{count}"


class EnumerateIterator(IteratorValue):
    """`enumerate(...)`."""

    __slots__ = ("count", "iterator")
    cls = enumerate

    def __init__(self, iterator: Value, count: Value) -> None:
        self.source = None
        self.iterator = iterator
        self.count = count

    parts = ("iterator", "count")

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

    parts = ("function", "iterator")

    def step(self, interp: Any) -> Value:
        while True:
            value = next_sync(interp, interp.context.force(self.iterator))
            plain = self.function.literal is None
            if interp.truth(value if plain else interp.call_sync(self.function, [value])):
                return value


class ChainIterator(IteratorValue):
    """`itertools.chain(...)`: over the items of `active`, then over those of what comes next in `sources`."""

    __slots__ = ("active", "sources")
    cls = itertools.chain

    def __init__(self, sources: Value | None, active: Value | None = None) -> None:
        self.source = None
        self.sources = sources
        self.active = active

    def children(self) -> Iterable[Any]:
        return self.sources, self.active

    def step(self, interp: Any) -> Value:
        while self.sources is not None:
            if self.active is None:
                interp.context.writes += 1
                sources, self.sources = self.sources, None  # that is so where one of the next calls raises
                self.active = self.begin(interp, next_sync(interp, interp.context.force(sources)))
                self.sources = sources
            try:
                return next_sync(interp, interp.context.force(self.active))
            except Exhausted:
                self.active = None
        raise Exhausted

    def begin(self, interp: Any, iterable: Value) -> Value:
        return get_iter_sync(interp, iterable)


@builtin(itertools.chain)
def make_chain(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs:
        raise interp.throw(TypeError, "chain() takes no keyword arguments")
    return ChainIterator(SequenceIterator(args, type(iter(()))))


@builtin(itertools.chain.from_iterable)
def make_chain_of(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    return NotImplemented if kwargs or len(args) != 1 else ChainIterator(get_iter_sync(interp, args[0]))


class RestIterator(IteratorValue):
    """The items that an iterator of the program's still has."""

    __slots__ = ("of",)

    def __init__(self, of: Value) -> None:
        self.source = None
        self.of = of

    parts = ("of",)

    def step(self, interp: Any) -> Value:
        return next_sync(interp, self.of)


@builtin(rest_of)
def _rest_of(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0] if args[0].is_iterator or args[0].is_generator else RestIterator(args[0])


def get_iter(interp: Interpreter, value: Value) -> Any:
    """`iter(value)`: a Value or PUSHED."""
    context = interp.context
    if value.iter_is_known:
        return value.iterate(interp)
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
    if isinstance(value.opaque, enum.EnumMeta):
        return SequenceIterator([context.const_object(m) for m in context.pin(value)], type(iter([])))
    if found is MISSING:
        raise interp.throw(TypeError, f"{value.cls.__name__!r} object is not iterable")
    raise GraphBreak("opaque_iterator", value.describe())


def builtin_iter(interp: Interpreter, value: Value) -> Any:
    """`iter` of builtin containers."""
    if not value.is_boxed or interp.context.class_lookup(value.cls, "__iter__") is MISSING:
        return value.iterate(interp)
    whole = value.whole_plain_part(interp).as_known(interp)
    made = whole.iterate(interp)
    if made is not None:
        made.of, made.cls = value, type(iter("\u0100" if whole.cls is str else b""))
    return made


def is_iterable(interp: Interpreter, value: Value) -> bool:
    """Whether `iter(value)` has something to call."""
    if value.iter_is_known:
        return True
    found = interp.context.class_lookup(value.cls, "__iter__")
    if found is MISSING:
        return interp.context.class_lookup(value.cls, "__getitem__") is not MISSING
    return found is not None


def get_iter_sync(interp: Interpreter, value: Value) -> Value:
    return interp.finish_sync(get_iter(interp, value))


def next_value(interp: Interpreter, iterator: Value) -> Any:
    """`next(iterator)`: a Value, or PUSHED; raises `Exhausted` at the end. A pushed generator frame that returns
    raises StopIteration in the traced program: opcode handlers that want to see the end use `resume_generator`."""
    if iterator.is_iterator:
        return iterator.step(interp)  # type: ignore[attr-defined]
    found = interp.context.class_lookup(iterator.cls, "__next__")
    if isinstance(found, types.FunctionType):
        return interp.call(interp.context.const_object(found), [iterator], {})
    if found is MISSING:
        raise interp.throw(TypeError, f"{iterator.cls.__name__!r} object is not an iterator")
    raise GraphBreak("opaque_iterator", iterator.describe())


def next_sync(interp: Interpreter, iterator: Value) -> Value:
    """`next(iterator)`, waiting for it; raises `Exhausted` at the end."""
    from .generators import resume_sync

    if iterator.is_generator:
        with interp.calling_ordinarily():
            return resume_sync(interp, iterator)
    try:
        result = next_value(interp, iterator)
        return interp.finish_sync(result) if result is PUSHED else result
    except TracedException as error:
        if issubclass(error.value.cls, StopIteration) and not iterator.is_iterator:
            raise Exhausted from None
        raise


def each(interp: Interpreter, value: Any, hinted: bool = False) -> Iterator[Value]:
    """The items of an iterable one by one, for C functions that use each before they ask for the next: what yields them
    sees it. `hinted` says that they ask for its length first, to make room."""
    if value.base in (list, tuple) and (value.cls is value.base or value.cls is torch.Size):
        value.items[:] = items = value.forced(interp)
        yield from items
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
            if hint.literal is not NotImplemented:
                if not issubclass(hint.cls, int) and name == "__length_hint__":
                    raise interp.throw(TypeError, f"{name} must be an integer, not {hint.cls.__name__}")
                if issubclass(hint.cls, int):
                    if interp.truth(interp.finish_sync(interp.compare("<", hint, const(0)))):
                        raise interp.throw(ValueError, f"{name}() should return >= 0")
                    return
