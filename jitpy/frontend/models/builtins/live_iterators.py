"""Iterators from outside: those that live across a graph break, that the program keeps, or that it is passed.

The next item of an iterator of a known C type is read without taking it: `Ahead(k)` is the item that comes after `k`
others, a place like any other, with guards of its own. So code compiled for one step of a loop serves all its steps,
however far the iterator has come. The steps themselves are taken on the real iterators by the code that stands for the
frame (`TraceContext.steps`), in the program's order, before it makes any other change: the code of other functions,
which may hold the same iterator, finds it where the program left it.

`zip`, `map` and `filter` have no place of their own, only those of the iterators that they go over; an `enumerate`
counts, so that it is the one to be advanced.
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...breaks import GraphBreak
from ...guards.observations import STEPS_AHEAD
from ...guards.source import Source, index, slot
from ...values import Exhausted, IteratorValue, Lazy, TraceContext, Value
from ...values.dict import VIEWS
from ...values.wrapping import wraps
from .iteration import ChainIterator, EnumerateIterator, FilterIterator, MapIterator, ZipIterator

if TYPE_CHECKING:
    from ...values import Interpreter


# -- what a real iterator says about itself -----------------------------------------------------------------------


def _in_sequence(get: Callable[[Any, int], Any], size: Callable[[Any], int]) -> Callable[[Any, int], Any]:
    """The reader of an iterator that counts up."""

    def ahead(iterator: Any, count: int) -> Any:
        state = iterator.__reduce__()
        sequence, at = state[1][0], (state[2] or 0 if len(state) > 2 else 0) + count
        if at >= size(sequence):
            raise StopIteration
        return get(sequence, at)

    return ahead


def _natively(fallback: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """The native iterator that reads ahead, where there is one; it takes its place when it is first asked."""

    def ahead(iterator: Any, count: int) -> Any:
        found = _READERS[type(iterator)] = _native_peek() or fallback
        return found(iterator, count)

    return ahead


def _backwards(iterator: Any, count: int) -> Any:
    state = iterator.__reduce__()
    at = state[2] - count if len(state) > 2 else -1
    sequence = state[1][0]
    kind = list if isinstance(sequence, list) else tuple
    if not 0 <= at < kind.__len__(sequence):
        raise StopIteration
    return kind.__getitem__(sequence, at)


def _backwards_in_tuple(iterator: Any, count: int) -> Any:
    if not _goes_over_tuple(iterator):
        raise TypeError("reversed() of another sequence asks that for its items")
    return _backwards(iterator, count)


def _goes_over_tuple(iterator: Any) -> bool:
    return type(iterator.__reduce__()[1][0]) is tuple


def _in_table(iterator: Any, count: int) -> Any:
    """For dicts and sets: RuntimeError where the size is not what it was."""
    if type(iterator) in _PEEKED and (peek := _native_peek()) is not None:
        return peek(iterator, count)
    rest = iterator.__reduce__()[1][0]
    if count >= len(rest):
        raise StopIteration
    return rest[count]


@functools.cache
def _native_peek() -> Callable[[Any, int], Any] | None:
    """Reads ahead without looking at all that is left."""
    from ....runtime.native_build import load_or_none

    return getattr(load_or_none("iterators"), "peek", None)


def _sequence_of(iterator: Any) -> Any:
    """The list that an iterator goes over; None where it has come to its end and let go of it."""
    state = iterator.__reduce__()
    return state[1][0] if len(state) > 2 else None


def _table_of(iterator: Any) -> Any:
    referents = gc.get_referents(iterator)
    return referents[0] if referents and isinstance(referents[0], (dict, set, frozenset)) else None


_VIEWS: tuple[Any, ...] = ({}.keys(), {}.values(), {}.items())
_TABLES = (*map(type, map(iter, _VIEWS)), *map(type, map(reversed, _VIEWS)), type(iter(collections.OrderedDict())),
           type(iter(set())))
#: those that native code reads ahead in
_PEEKED = frozenset((*map(type, map(iter, _VIEWS)), type(iter(set()))))
#: what reads ahead in iterators of each type
_READERS: dict[type, Callable[[Any, int], Any]] = {
    type(iter([])): _natively(_in_sequence(list.__getitem__, list.__len__)),
    type(iter(())): _natively(_in_sequence(tuple.__getitem__, tuple.__len__)),
    type(iter(b"")): _in_sequence(bytes.__getitem__, bytes.__len__),
    **dict.fromkeys((type(iter("a")), type(iter("\u0100"))), _in_sequence(str.__getitem__, str.__len__)),
    **dict.fromkeys((type(iter(range(0))), type(iter(range(1 << 100)))), _in_sequence(range.__getitem__, len)),
    type(reversed([])): _backwards,
    reversed: _backwards_in_tuple,
    **dict.fromkeys(_TABLES, _in_table),
}
#: what finds the container that may change while an iterator goes over it
_CONTAINERS: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((type(iter([])), type(reversed([]))), _sequence_of),
    **dict.fromkeys(_TABLES, _table_of),
}


class Ahead:
    """Reads the item that comes after `count` others; it raises where there is none."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.__name__ = f"<item {count} from here>"
        STEPS_AHEAD.add(("slot", ("id", id(self))))

    def __get__(self, iterator: Any, owner: type | None = None) -> Any:
        return _READERS[type(iterator)](iterator, self.count)


class Ends:
    """Whether an iterator has `count` items left, at most."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.__name__ = f"<end after {count} items>"

    def __get__(self, iterator: Any, owner: type | None = None) -> bool:
        try:
            _READERS[type(iterator)](iterator, self.count)
        except StopIteration:
            return True
        return False


class _Over:
    """Reads what an iterator goes over: it raises once that is finished."""

    __name__ = "<container>"

    def __get__(self, iterator: Any, owner: type | None = None) -> Any:
        found = _CONTAINERS[type(iterator)](iterator)
        if found is None:
            raise LookupError
        return found


class _Finished:
    """Whether an iterator has said that it is at its end."""

    __name__ = "<finished>"

    def __get__(self, iterator: Any, owner: type | None = None) -> bool:
        return _CONTAINERS[type(iterator)](iterator) is None


class _Parts:
    """The parts of `zip`, strict or not, `enumerate`, `map` and `filter`, as it is now."""

    __name__ = "<parts>"

    def __init__(self, strict: bool) -> None:
        self.strict = strict

    def __get__(self, iterator: Any, owner: type | None = None) -> tuple[Any, ...]:
        state = iterator.__reduce__()
        if (len(state) > 2) is not self.strict:
            raise TypeError("a zip of the other kind")
        return state[1]


class _Links:
    """The parts of a chain: its sources, and the iterator over the present one."""

    __name__ = "<links>"

    def __get__(self, chain: Any, owner: type | None = None) -> tuple[Any, ...]:
        return tuple([part for part in gc.get_referents(chain) if not isinstance(part, type)])


_ahead = functools.cache(Ahead)
_ends = functools.cache(Ends)
_OVER, _FINISHED, _PARTS, _LINKS = _Over(), _Finished(), (_Parts(False), _Parts(True)), _Links()


# -- as Values ----------------------------------------------------------------------------------------------------


class LiveIterator(IteratorValue):
    """An iterator over a container; `taken` steps are to be taken on the real one."""

    __slots__ = ("cls", "ended", "real", "taken")

    def __init__(self, real: Any, source: Source) -> None:
        self.source = source
        self.real = real
        self.cls = type(real)
        self.taken = 0
        self.ended = False

    def step(self, interp: Interpreter) -> Value:
        context = interp.context
        if self.ended:
            raise Exhausted
        if self._is_finished(context):
            self.ended = True
            raise Exhausted
        assert self.source is not None
        if not self.taken and context.may_break and context.history.varies((self.source.key(), "end")):
            raise GraphBreak("opaque_iterator", f"{self.describe()}, which has another number of items at each call")
        place = slot(self.source, _ahead(self.taken))
        try:
            item = place.step[1].__get__(self.real)
        except StopIteration:
            self._end(context)
            raise Exhausted from None
        except RuntimeError as error:
            raise GraphBreak("opaque_iterator", f"{self.describe()}: {error}") from None
        guards = len(context.guards)
        value = context.wrap(item, place)
        if len(context.guards) == guards:
            context.guard(place, "python", id)  # which is true of anything: there is an item
        self.taken += 1
        take(context, self)
        return value

    def _is_finished(self, context: TraceContext) -> bool:
        """Whether it was finished before; looks after what it goes over."""
        find = _CONTAINERS.get(self.cls)
        if find is None:
            return False
        container = find(self.real)
        assert self.source is not None
        if container is None:
            context.guard(slot(self.source, _FINISHED), "id", True)
            return True
        value = context.value_of(container)
        if value is not None and context.has_changed(value):
            raise GraphBreak("opaque_iterator", f"{self.describe()}: what it goes over was changed")
        return False

    def container(self) -> tuple[Any, Source] | None:
        """Its container, where that may change."""
        find = _CONTAINERS.get(self.cls)
        real = None if find is None else find(self.real)
        assert self.source is not None
        return None if real is None else (real, slot(self.source, _OVER))

    def _end(self, context: TraceContext) -> None:
        assert self.source is not None
        context.need((self.source.key(), "end"), self.taken, f"all of {self.source}")
        context.guard(slot(self.source, _ends(self.taken)), "id", True)
        self.ended = True
        take(context, self)


class LiveEnumerate(EnumerateIterator):
    """An `enumerate` over live iterators without code of the program's."""

    __slots__ = ()

    def step(self, interp: Interpreter) -> Value:
        context = interp.context
        self.count = context.force(self.count)
        inner = context.force(self.iterator)
        outer, context.steps = context.steps, []  # the real one advances those below it
        try:
            self.iterator = inner
            return EnumerateIterator.step(self, interp)
        finally:
            context.steps = outer
            take(context, self)


class LiveChain(ChainIterator):
    """A chain over live iterators without code of the program's, as long as what it goes over does not change."""

    __slots__ = ("over",)
    over: Value

    def step(self, interp: Interpreter) -> Value:
        context = interp.context
        if self.active is not None and context.has_changed(getattr(self, "over", self.active)):
            raise GraphBreak("opaque_iterator", f"{self.describe()}: what it goes over was changed")
        outer, context.steps = context.steps, []  # the real one advances those below it
        try:
            return ChainIterator.step(self, interp)
        finally:
            context.steps = outer
            take(context, self)

    def begin(self, interp: Any, iterable: Value) -> Value:
        self.over = iterable.of if iterable.cls in VIEWS else iterable  # type: ignore[attr-defined]
        if iterable.cls not in (list, tuple, dict, *VIEWS) or interp.context.has_changed(self.over):
            raise GraphBreak("opaque_iterator", f"{self.describe()}, which goes on to {iterable.describe()}")
        return ChainIterator.begin(self, interp, iterable)


def take(context: TraceContext, iterator: Value) -> None:
    """Note a step to be taken on a real iterator."""
    context.touch(iterator)
    context.steps.append(iterator)


@wraps(*_READERS)
def _wrap_reader(context: TraceContext, obj: Any, cls: type, source: Source) -> Value | None:
    """The Value of a live iterator over a builtin container, or None where tracing cannot look into it."""
    return LiveIterator(obj, source) if cls in _READERS and (cls is not reversed or _goes_over_tuple(obj)) else None


@wraps(zip, enumerate, map, filter)
def _wrap_iterator(context: TraceContext, obj: Any, cls: type, source: Source) -> Value | None:
    """The Value of a live iterator over others, or None where tracing cannot look into it."""
    if cls not in (zip, enumerate, map, filter):
        return None
    state = obj.__reduce__()
    strict = len(state) > 2
    if strict and cls is not zip or cls is enumerate and not _is_plain(state[1][0]):
        return None
    path = slot(source, _PARTS[strict])
    context.guard(path, "len", len(state[1]))
    parts: list[Any] = [Lazy(part, index(path, i)) for i, part in enumerate(state[1])]
    made: IteratorValue
    if cls is zip:
        made = ZipIterator(parts, strict)
    elif cls is enumerate:
        made = LiveEnumerate(*parts)
    else:
        function = context.force(parts[0])
        made = MapIterator(function, parts[1:]) if cls is map else FilterIterator(function, parts[1])
    made.source = source
    return made


@wraps(itertools.chain)
def _wrap_chain(context: TraceContext, obj: Any, cls: type, source: Source) -> Value | None:
    """The Value of a live chain, or None where tracing cannot look into it."""
    parts = _LINKS.__get__(obj)
    if cls is not itertools.chain or not all(map(_is_plain, parts)):
        return None
    path = slot(source, _LINKS)
    context.guard(path, "len", len(parts))
    made = LiveChain(*[Lazy(part, index(path, i)) for i, part in enumerate(parts)] or [None])  # type: ignore[arg-type]
    made.source = source
    return made


def _is_plain(real: Any) -> bool:
    """Whether to advance an iterator, and those below it, runs no code of the program's."""
    if type(real) in (zip, enumerate):
        state = real.__reduce__()
        return len(state) == 2 and all(map(_is_plain, state[1] if type(real) is zip else state[1][:1]))
    return type(real) in _READERS and (type(real) is not reversed or _goes_over_tuple(real))


# -- run by compiled code -----------------------------------------------------------------------------------------


def advance(iterator: Any, count: int) -> None:
    """Take steps on a real iterator."""
    for _ in range(count):
        next(iterator, None)
