"""`collections.deque`, as a class around a list."""

from __future__ import annotations

import collections
import operator
import sys

from .registry import Items, substitute

_MISSING = object()


def _times(n):
    if not hasattr(type(n), "__index__"):
        raise TypeError(f"can't multiply sequence by non-int of type {type(n).__name__!r}")
    return operator.index(n)


@substitute(collections.deque)
class Deque:
    """Stands for a `collections.deque` made in traced code. `items` is a list; `maxlen` an int or None."""

    __slots__ = ("items", "maxlen")
    __hash__ = None  # type: ignore[assignment]
    state = ("items", "maxlen")
    read = {"items": Items(tuple), "maxlen": "maxlen"}
    make = staticmethod(lambda cls: collections.deque.__new__(cls))
    fill = staticmethod(collections.deque.__init__)
    changes = {name: getattr(collections.deque, name) for name in (
        "append", "extend", "insert", "clear", "reverse", "__setitem__", "__delitem__")}

    def __init__(self, iterable=(), maxlen=None):
        if maxlen is not None:
            if not isinstance(maxlen, int):
                raise TypeError("an integer is required")
            if maxlen < 0:
                raise ValueError("maxlen must be non-negative")
        self.items = []
        self.maxlen = maxlen
        Deque.extend(self, iterable)

    # A full one loses its item first: the real one, to which the same is done, then has room.
    def append(self, x, /):
        if self.maxlen is not None and len(self.items) >= self.maxlen:
            if not self.maxlen:
                return
            del self.items[0]
        self.items.append(x)

    def appendleft(self, x, /):
        if self.maxlen is not None and len(self.items) >= self.maxlen:
            if not self.maxlen:
                return
            del self.items[-1]
        self.items.insert(0, x)

    def extend(self, iterable, /):
        for item in [*iterable] if iterable is self else iterable:
            Deque.append(self, item)

    def extendleft(self, iterable, /):
        for item in [*iterable] if iterable is self else iterable:
            Deque.appendleft(self, item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty deque")
        item = self.items[-1]
        del self.items[-1]
        return item

    def popleft(self):
        if not self.items:
            raise IndexError("pop from an empty deque")
        item = self.items[0]
        del self.items[0]
        return item

    def clear(self):
        self.items.clear()

    def copy(self):
        return type(self)(self.items, self.maxlen)

    __copy__ = copy

    def count(self, x, /):
        return self.items.count(x)

    def index(self, x, start=0, stop=sys.maxsize, /):
        if start < 0:
            start = max(start + len(self.items), 0)
        if stop < 0:
            stop += len(self.items)
        for i in range(start, min(stop, len(self.items))):
            if self.items[i] is x or self.items[i] == x:
                return i
        raise ValueError(f"{x!r} is not in deque")

    def insert(self, i, x, /):
        if self.maxlen is not None and len(self.items) >= self.maxlen:
            raise IndexError("deque already at its maximum size")
        self.items.insert(i, x)

    def remove(self, value, /):
        for i in range(len(self.items)):
            if self.items[i] is value or self.items[i] == value:
                del self.items[i]
                return
        raise ValueError(f"{value!r} is not in deque")

    def reverse(self):
        self.items = self.items[::-1]

    def rotate(self, n=1, /):
        n = operator.index(n)
        if not -sys.maxsize - 1 <= n <= sys.maxsize:
            raise OverflowError("Python int too large to convert to C ssize_t")
        size = len(self.items)
        if size:
            n = n % size
            self.items = self.items[size - n :] + self.items[: size - n]

    def __len__(self):
        return len(self.items)

    def __bool__(self):
        return len(self.items) > 0

    def __iter__(self):
        i = 0
        size = len(self.items)
        while i < size:
            if len(self.items) != size:
                raise RuntimeError("deque mutated during iteration")
            yield self.items[i]
            i += 1

    def __reversed__(self):
        return iter(self.items[::-1])

    def __contains__(self, x, /):
        return x in self.items

    def __getitem__(self, i, /):
        return self.items[_place(self.items, i)]

    def __setitem__(self, i, x, /):
        self.items[_place(self.items, i)] = x

    def __delitem__(self, i, /):
        del self.items[_place(self.items, i)]

    def __add__(self, other, /):
        if not _is_deque(other):
            raise TypeError(f'can only concatenate deque (not "{type(other).__name__}") to deque')
        return type(self)([*self.items, *other], self.maxlen)

    def __iadd__(self, other, /):
        Deque.extend(self, other)
        return self

    def __mul__(self, n, /):
        return type(self)(self.items * _times(n), self.maxlen)

    __rmul__ = __mul__

    def __imul__(self, n, /):
        items = self.items * _times(n)
        self.items = []
        Deque.extend(self, items)
        return self

    def __eq__(self, other, /):
        if not _is_deque(other):
            return NotImplemented
        return self.items == [*other]

    def __ne__(self, other, /):
        if not _is_deque(other):
            return NotImplemented
        return self.items != [*other]

    def __lt__(self, other, /):
        if not _is_deque(other):
            return NotImplemented
        return self.items < [*other]

    def __le__(self, other, /):
        if not _is_deque(other):
            return NotImplemented
        return self.items <= [*other]

    def __gt__(self, other, /):
        if not _is_deque(other):
            return NotImplemented
        return self.items > [*other]

    def __ge__(self, other, /):
        if not _is_deque(other):
            return NotImplemented
        return self.items >= [*other]

    def __repr__(self):
        name = "deque" if type(self) is Deque else type(self).__name__
        return f"{name}({self.items!r})" if self.maxlen is None else f"{name}({self.items!r}, maxlen={self.maxlen})"


def _place(items, i):
    if not hasattr(type(i), "__index__"):
        raise TypeError(f"sequence index must be integer, not '{type(i).__name__}'")
    place = operator.index(i)
    if not -len(items) <= place < len(items):
        raise IndexError("deque index out of range")
    return place


def _is_deque(value):
    return isinstance(value, Deque) or isinstance(value, collections.deque)
