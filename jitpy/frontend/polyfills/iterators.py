"""`itertools`. Each constructor checks its arguments at once, as the C one does, and returns a generator."""

from __future__ import annotations

import itertools
import sys

from .registry import rest_of, substitute

_MISSING = object()


def _as_index(value, message):
    """A count given to an iterator: an int, or something with `__index__`."""
    if isinstance(value, int):
        return value
    method = getattr(type(value), "__index__", None)
    if method is None:
        raise TypeError(message)
    return method(value)


@substitute(itertools.islice, iterator=True)
def islice(iterable, /, *bounds):
    if len(bounds) == 0 or len(bounds) > 3:
        side = "least 2" if not bounds else "most 4"
        raise TypeError(f"islice expected at {side} arguments, got {len(bounds) + 1}")
    if len(bounds) == 1:
        start, stop, step = None, bounds[0], None
        stop_message = "Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize."
    else:
        start, stop, step = bounds[0], bounds[1], bounds[2] if len(bounds) == 3 else None
        stop_message = "Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize."
    start = _islice_bound(start, 0, stop_message)
    stop = _islice_bound(stop, None, stop_message)
    step_message = "Step for islice() must be a positive integer or None."
    step = _islice_bound(step, 1, step_message)
    if step < 1:
        raise ValueError(step_message)
    return _islice(iter(iterable), start, stop, step)


def _islice_bound(value, default, message):
    if value is None:
        return default
    if not isinstance(value, int) and not hasattr(type(value), "__index__"):
        raise ValueError(message)
    value = _as_index(value, message)
    if not 0 <= value <= sys.maxsize:
        raise ValueError(message)
    return value


def _islice(iterator, start, stop, step):
    position = 0
    wanted = start
    while True:
        while position < wanted:
            if next(iterator, _MISSING) is _MISSING:
                return
            position += 1
        if stop is not None and position >= stop:
            return
        item = next(iterator, _MISSING)
        if item is _MISSING:
            return
        position += 1
        wanted += step
        if stop is not None and wanted > stop:
            wanted = stop
        yield item


@substitute(itertools.count, iterator=True)
def count(start=0, step=1):
    for value in (start, step):
        if not isinstance(value, (int, float, complex)) and not _is_number(value):
            raise TypeError("a number is required")
    return _count(start, step)


def _is_number(value):
    cls = type(value)
    for name in ("__index__", "__int__", "__float__", "__complex__"):
        if hasattr(cls, name):
            return True
    return False


def _count(value, step):
    while True:
        yield value
        value = value + step


@substitute(itertools.cycle, iterator=True)
def cycle(iterable, /):
    return _cycle(iter(iterable))


def _cycle(iterator):
    saved = []
    for item in rest_of(iterator):
        saved.append(item)
        yield item
    while saved:
        yield from saved


@substitute(itertools.repeat, iterator=True)
def repeat(object, times=_MISSING):
    if times is _MISSING:
        return _repeat_forever(object)
    return _repeat(object, _as_index(times, f"'{type(times).__name__}' object cannot be interpreted as an integer"))


def _repeat_forever(item):
    while True:
        yield item


def _repeat(item, times):
    while times > 0:
        times -= 1
        yield item


@substitute(itertools.accumulate, iterator=True)
def accumulate(iterable, func=None, *, initial=None):
    return _accumulate(iter(iterable), func, initial)


def _accumulate(iterator, func, total):
    if total is None:
        total = next(iterator, _MISSING)
        if total is _MISSING:
            return
    yield total
    for item in rest_of(iterator):
        total = total + item if func is None else func(total, item)
        yield total


@substitute(itertools.starmap, iterator=True)
def starmap(function, iterable, /):
    return _starmap(function, iter(iterable))


def _starmap(function, iterator):
    for arguments in rest_of(iterator):
        yield function(*(arguments if type(arguments) is tuple else tuple(arguments)))


@substitute(itertools.takewhile, iterator=True)
def takewhile(predicate, iterable, /):
    return _takewhile(predicate, iter(iterable))


def _takewhile(predicate, iterator):
    for item in rest_of(iterator):
        if not predicate(item):
            return
        yield item


@substitute(itertools.dropwhile, iterator=True)
def dropwhile(predicate, iterable, /):
    return _dropwhile(predicate, iter(iterable))


def _dropwhile(predicate, iterator):
    for item in rest_of(iterator):
        if not predicate(item):
            yield item
            break
    yield from rest_of(iterator)


@substitute(itertools.filterfalse, iterator=True)
def filterfalse(function, iterable, /):
    return _filterfalse(function, iter(iterable))


def _filterfalse(function, iterator):
    for item in rest_of(iterator):
        if not (item if function is None or function is bool else function(item)):
            yield item


@substitute(itertools.compress, iterator=True)
def compress(data, selectors):
    return _compress(iter(data), iter(selectors))


def _compress(data, selectors):
    while True:
        item = next(data, _MISSING)
        if item is _MISSING:
            return
        selector = next(selectors, _MISSING)
        if selector is _MISSING:
            return
        if selector:
            yield item


@substitute(itertools.pairwise, iterator=True)
def pairwise(iterable, /):
    return _pairwise(iter(iterable))


def _pairwise(iterator):
    before = next(iterator, _MISSING)
    if before is _MISSING:
        return
    for item in rest_of(iterator):
        yield before, item
        before = item


@substitute(itertools.zip_longest, iterator=True)
def zip_longest(*iterables, fillvalue=None):
    return _zip_longest([iter(iterable) for iterable in iterables], fillvalue)


def _zip_longest(iterators, fillvalue):
    active = len(iterators)
    if not active:
        return
    while True:
        row = []
        for position, iterator in enumerate(iterators):
            value = fillvalue
            if iterator is not None:
                value = next(iterator, _MISSING)
                if value is _MISSING:
                    active -= 1
                    if active == 0:
                        return
                    iterators[position] = None
                    value = fillvalue
            row.append(value)
        yield (*row,)


@substitute(itertools.product, iterator=True)
def product(*iterables, repeat=1):
    repeat = _as_index(repeat, f"'{type(repeat).__name__}' object cannot be interpreted as an integer")
    if repeat < 0:
        raise ValueError("repeat argument cannot be negative")
    pools = [tuple(iterable) for iterable in iterables] if repeat else []
    return _product(pools * repeat)


def _product(pools):
    if not pools:
        yield ()
        return
    for before in _product(pools[:-1]):
        for item in pools[-1]:
            yield (*before, item)


@substitute(itertools.permutations, iterator=True)
def permutations(iterable, r=None):
    pool = tuple(iterable)
    if r is None:
        r = len(pool)
    elif not isinstance(r, int):
        raise TypeError("Expected int as r")
    if r < 0:
        raise ValueError("r must be non-negative")
    return _permutations(pool, r)


def _permutations(pool, r):
    if not r:
        yield ()
        return
    for i in range(len(pool) if r <= len(pool) else 0):
        for rest in _permutations(pool[:i] + pool[i + 1:], r - 1):
            yield (pool[i], *rest)


def _check_r(r):
    r = _as_index(r, f"'{type(r).__name__}' object cannot be interpreted as an integer")
    if r < 0:
        raise ValueError("r must be non-negative")
    return r


@substitute(itertools.combinations, iterator=True)
def combinations(iterable, r):
    pool = tuple(iterable)
    return _combinations(pool, _check_r(r))


def _combinations(pool, r):
    if not r:
        yield ()
        return
    for i in range(len(pool) - r + 1):
        for rest in _combinations(pool[i + 1:], r - 1):
            yield (pool[i], *rest)


@substitute(itertools.combinations_with_replacement, iterator=True)
def combinations_with_replacement(iterable, r):
    pool = tuple(iterable)
    return _combinations_with_replacement(pool, _check_r(r))


def _combinations_with_replacement(pool, r):
    if not r:
        yield ()
        return
    for i in range(len(pool)):
        for rest in _combinations_with_replacement(pool[i:], r - 1):
            yield (pool[i], *rest)


@substitute(itertools.groupby, iterator=True)
def groupby(iterable, key=None):
    return _groupby(_GroupState(iter(iterable), key))


class _GroupState:
    """The state that `groupby` and its groups share: the item read last, its key, and the number of the group that
    may go on."""

    def __init__(self, iterator, key):
        self.iterator = iterator
        self.key = key
        self.item = _MISSING
        self.item_key = _MISSING
        self.group = 0

    def advance(self):
        """Read one item; False at the end."""
        item = next(self.iterator, _MISSING)
        if item is _MISSING:
            return False
        self.item_key = item if self.key is None else self.key(item)
        self.item = item
        return True


def _groupby(state):
    target = _MISSING
    while True:
        state.group += 1
        while state.item_key is _MISSING or (
            target is not _MISSING and (target is state.item_key or target == state.item_key)
        ):
            if not state.advance():
                return
        target = state.item_key
        yield target, _group(state, target, state.group)


def _group(state, target, number):
    while state.group == number:
        if state.item is _MISSING:
            if not state.advance():
                return
        if target is not state.item_key and not target == state.item_key:
            return
        item = state.item
        state.item = _MISSING
        state.item_key = _MISSING
        yield item


@substitute(itertools.tee)
def tee(iterable, n=2, /):
    if n < 0:
        raise ValueError("n must be >= 0")
    iterator = iter(iter(iterable)) if n else None  # asked twice
    queue = []
    return tuple([_tee(iterator, queue) for _ in range(n)])


def _tee(iterator, queue):
    position = 0
    while True:
        if position == len(queue):
            item = next(iterator, _MISSING)
            if item is _MISSING:
                return
            queue.append(item)
        item = queue[position]
        position += 1
        yield item


if sys.version_info >= (3, 13):

    @substitute(itertools.batched, iterator=True)
    def batched(iterable, n, *, strict=False):
        if n < 1:
            raise ValueError("n must be at least one")
        return _batched(iter(iterable), n, strict)

elif sys.version_info >= (3, 12):

    @substitute(itertools.batched, iterator=True)
    def batched(iterable, n):
        if n < 1:
            raise ValueError("n must be at least one")
        return _batched(iter(iterable), n, False)


def _batched(iterator, n, strict):
    while True:
        batch = []
        while len(batch) < n:
            item = next(iterator, _MISSING)
            if item is _MISSING:
                break
            batch.append(item)
        if not batch:
            return
        if strict and len(batch) < n:
            raise ValueError("batched(): incomplete batch")
        yield tuple(batch)
