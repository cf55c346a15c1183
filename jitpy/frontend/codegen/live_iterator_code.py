"""Builtin iterators that tracing made, rebuilt as real ones that stand where they stood."""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Callable
from typing import Any

from ..breaks import GraphBreak, RestartAnalysis
from ..models.builtins.iteration import (
    ChainIterator,
    EnumerateIterator,
    FilterIterator,
    MapIterator,
    RestIterator,
    ZipIterator,
)
from ..values import (
    END_OF_LIST,
    DictIterator,
    ListIterator,
    ReverseIterator,
    SequenceIterator,
    Value,
)
from .frame_code import Emitter, builds


@builds(ListIterator)
def _list_iterator(emitter: Emitter, value: ListIterator) -> None:
    emitter.make(value, list.__iter__, value.of)
    if value.index:
        _advance_at_the_end(emitter, value)


@builds(ReverseIterator)
def _reverse_iterator(emitter: Emitter, value: ReverseIterator) -> None:
    emitter.make(value, list.__reversed__ if value.of.base is list else reversed, value.of)
    _advance_at_the_end(emitter, value)


def _advance_at_the_end(emitter: Emitter, value: ListIterator | ReverseIterator) -> None:
    """Put an iterator where it was: not beyond the end of its list, so once that has its items."""

    def advance() -> None:
        emitter.run(value.cls.__setstate__, value, lambda: emitter.const(min(value.index, sys.maxsize)))
        if isinstance(value, ListIterator) and value.index >= END_OF_LIST:
            emitter.run(_end, value)

    emitter.afterwards(advance)


@builds(SequenceIterator)
def _sequence_iterator(emitter: Emitter, value: SequenceIterator) -> None:
    of = value.of
    if of is not None and (of.is_constant or of.is_boxed or of.source is not None):
        # (a tuple from outside is not read as a whole; a derived one may have an `__iter__` of its own)
        emitter.make(value, tuple.__iter__ if of.base is tuple else iter, of)
        emitter.run(value.cls.__setstate__, value, lambda: emitter.const(value.index))
        return
    rest = [emitter.context.force(v) for v in value.items[value.index:]]
    numbers = [v.value for v in rest if type(v.literal) is int]
    if value.cls is type(iter(range(0))) and len(numbers) == len(rest):
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
        left = range(numbers[0], numbers[-1] + (1 if step > 0 else -1), step) if numbers else range(0)
        emitter.call(iter, lambda: emitter.const(left))
    else:
        emitter.call(iter, lambda: emitter.emit("BUILD_TUPLE", emitter.load_many(rest)))
    emitter.remember(value)


@builds(DictIterator)
def _dict_iterator(emitter: Emitter, value: DictIterator) -> None:
    if value.changed or not value.finished and value.of.source is None and \
            len(emitter.context.dict_items(value.of)) != len(value.keys):
        raise RestartAnalysis(value.born,
                              GraphBreak("unsupported_value", "iteration over a dict that has changed its size"))
    kind, index, backwards = (lambda: emitter.const(value.kind)), (lambda: emitter.const(value.index)), \
        (lambda: emitter.const(value.backwards))
    if value.finished:
        emitter.call(advanced, lambda: emitter.emit("BUILD_MAP", 0), kind, lambda: emitter.const(0), backwards)
    elif value.of.source is not None:  # advanced before the dict is changed, so that it notices the change
        if not value.of_real_keys:
            raise RestartAnalysis(value.born,
                                  GraphBreak("unsupported_value", "iteration over a dict that has new keys"))
        source = value.of.source
        emitter.load_early(value, lambda: emitter.call(advanced, lambda: emitter.load_source(source), kind, index,
                                                       backwards))
        return
    else:
        emitter.call(advanced, value.of, kind, index, backwards)
    emitter.remember(value)


def _iterator(emitter: Emitter, value: Value) -> Callable[[], None]:
    """Pushes an iterator for a C function that calls `iter` on it: code of the program's has answered that before."""
    if value.is_instance:
        return lambda: emitter.call(_Given, value)
    return lambda: emitter.load(value)


@builds(RestIterator)
def _rest(emitter: Emitter, value: RestIterator) -> None:
    emitter.load(value.of)


@builds(ZipIterator)
def _zip(emitter: Emitter, value: ZipIterator) -> None:
    emitter.make(value, _strict_zip if value.strict else zip, *(_iterator(emitter, it) for it in value.iterators))


def _strict_zip(*iterators: Any) -> Any:
    return zip(*iterators, strict=True)


@builds(ChainIterator)
def _chain(emitter: Emitter, value: ChainIterator) -> None:
    emitter.make(value, _chained, *[_iterator(emitter, emitter.context.force(part)) for part in value.children()
                                    if part is not None])


def _chained(sources: Any = (), *active: Any) -> Any:
    return itertools.chain.from_iterable(itertools.chain(active, sources) if active else sources)


@builds(EnumerateIterator)
def _enumerate(emitter: Emitter, value: EnumerateIterator) -> None:
    emitter.make(value, enumerate, _iterator(emitter, value.iterator), value.count)


@builds(MapIterator)
def _map(emitter: Emitter, value: MapIterator) -> None:
    emitter.make(value, map, value.function, *(_iterator(emitter, it) for it in value.iterators))


@builds(FilterIterator)
def _filter(emitter: Emitter, value: FilterIterator) -> None:
    emitter.make(value, filter, value.function, _iterator(emitter, value.iterator))


# -- run by compiled code -----------------------------------------------------------------------------------------


class _Given:
    """An iterable with this very iterator."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __iter__(self) -> Any:
        return self.iterator


def _end(iterator: Any) -> None:
    """Ask an iterator that is at its end once more, so that nothing makes it go on."""
    next(iterator, None)


def advanced(mapping: dict[Any, Any], kind: str, count: int, backwards: bool) -> Any:
    """An iterator over a dict's keys, values or items, `count` steps in."""
    ordered = isinstance(mapping, collections.OrderedDict)  # whose order is not that of the dict below it
    view = getattr(collections.OrderedDict if ordered else dict, kind)(mapping)
    iterator = reversed(view) if backwards else iter(view)
    for _ in range(count):
        next(iterator)
    return iterator
