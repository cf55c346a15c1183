"""Lists, tuples, strings' `join`, heaps and bisection."""

from __future__ import annotations

import _bisect
import _heapq
import builtins
import operator
import sys

from .registry import give_up, substitute

# Construction from any iterable.


@substitute(builtins.list)
def list_from_iterable(iterable=(), /):
    result = []
    for item in iterable:
        result.append(item)
    return result


@substitute(builtins.tuple)
def tuple_from_iterable(iterable=(), /):
    if type(iterable) is tuple:
        return iterable
    result = []
    for item in iterable:
        result.append(item)
    return (*result,)


@substitute(list.__init__)
def list_init(self, iterable=(), /):
    list.clear(self)
    for item in iterable:
        list.append(self, item)


@substitute(list.extend)
def list_extend(self, iterable, /):
    if iterable is self:
        iterable = self[:]
    for item in iterable:
        list.append(self, item)


@substitute(list.__iadd__)
def list_iadd(self, iterable, /):
    list.extend(self, iterable)
    return self


# Comparison and search. An item equals another if it is the same object, or says so.


def _sequence_eq(left, right):
    if len(left) != len(right):
        return False
    for i in range(len(left)):
        a, b = left[i], right[i]
        if a is not b and not a == b:
            return False
    return True


def _first_difference(left, right):
    """The first position at which two sequences differ, or the shorter one's length."""
    shorter = len(left) if len(left) < len(right) else len(right)
    for i in range(shorter):
        a, b = left[i], right[i]
        if a is not b and not a == b:
            return i
    return shorter


def _same(self, other, kind):
    return _sequence_eq(self, other) if isinstance(other, kind) else NotImplemented


def _differs(self, other, kind):
    return not _sequence_eq(self, other) if isinstance(other, kind) else NotImplemented


def _ordered(self, other, kind, compare):
    if not isinstance(other, kind):
        return NotImplemented
    i = _first_difference(self, other)
    if i >= len(self) or i >= len(other):
        return compare(len(self), len(other))
    return compare(self[i], other[i])


for _method, _body in {
    list.__eq__: lambda self, other, /: _same(self, other, list),
    list.__ne__: lambda self, other, /: _differs(self, other, list),
    list.__lt__: lambda self, other, /: _ordered(self, other, list, operator.lt),
    list.__le__: lambda self, other, /: _ordered(self, other, list, operator.le),
    list.__gt__: lambda self, other, /: _ordered(self, other, list, operator.gt),
    list.__ge__: lambda self, other, /: _ordered(self, other, list, operator.ge),
    tuple.__eq__: lambda self, other, /: _same(self, other, tuple),
    tuple.__ne__: lambda self, other, /: _differs(self, other, tuple),
    tuple.__lt__: lambda self, other, /: _ordered(self, other, tuple, operator.lt),
    tuple.__le__: lambda self, other, /: _ordered(self, other, tuple, operator.le),
    tuple.__gt__: lambda self, other, /: _ordered(self, other, tuple, operator.gt),
    tuple.__ge__: lambda self, other, /: _ordered(self, other, tuple, operator.ge),
}.items():
    substitute(_method)(_body)


def contains_by_iteration(iterable, value, /):
    """`value in iterable` where its type has no `__contains__` of its own."""
    for item in iterable:
        if item is value or item == value:
            return True
    return False


@substitute(list.__contains__, tuple.__contains__)
def sequence_contains(self, value, /):
    for item in self:
        if item is value or item == value:
            return True
    return False


@substitute(list.count, tuple.count)
def sequence_count(self, value, /):
    count = 0
    for item in self:
        if item is value or item == value:
            count += 1
    return count


def _position(self, value, start, stop):
    size = len(self)
    if start < 0:
        start += size
        if start < 0:
            start = 0
    if stop < 0:
        stop += size
    i = start
    while i < stop and i < len(self):
        if self[i] is value or self[i] == value:
            return i
        i += 1
    return -1


@substitute(list.index)
def list_index(self, value, start=0, stop=sys.maxsize, /):
    i = _position(self, value, start, stop)
    if i < 0:
        message = "list.index(x): x not in list" if sys.version_info >= (3, 14) else f"{value!r} is not in list"
        raise ValueError(message)
    return i


@substitute(tuple.index)
def tuple_index(self, value, start=0, stop=sys.maxsize, /):
    i = _position(self, value, start, stop)
    if i < 0:
        raise ValueError("tuple.index(x): x not in tuple")
    return i


@substitute(list.remove)
def list_remove(self, value, /):
    for i in range(len(self)):
        if self[i] is value or self[i] == value:
            list.pop(self, i)
            return
    raise ValueError("list.remove(x): x not in list")


@substitute(list.reverse)
def list_reverse(self, /):
    list.__setitem__(self, slice(None), self[::-1])


@substitute(list.copy)
def list_copy(self, /):
    return [*self]


@substitute(list.__add__)
def list_add(self, other, /):
    if not isinstance(other, list):
        raise TypeError(f'can only concatenate list (not "{type(other).__name__}") to list')
    return [*self, *other]


@substitute(tuple.__add__)
def tuple_add(self, other, /):
    if not isinstance(other, tuple):
        raise TypeError(f'can only concatenate tuple (not "{type(other).__name__}") to tuple')
    return (*self, *other)


# Strings.


@substitute(str.join)
def str_join(self, iterable, /):
    if type(iterable) is not list and type(iterable) is not tuple:
        if not hasattr(type(iterable), "__iter__") and not hasattr(type(iterable), "__getitem__"):
            raise TypeError("can only join an iterable")
        iterable = list(iterable)
    position = 0
    for item in iterable:
        if not isinstance(item, str):
            raise TypeError(f"sequence item {position}: expected str instance, {type(item).__name__} found")
        position += 1
    if len(iterable) == 1 and type(iterable[0]) is str:
        return iterable[0]
    result = ""
    for position in range(len(iterable)):
        if position:
            result = result + self
        result = result + iterable[position]
    return result


def _bracketed(self, opening, closing):
    text = opening
    position = 0
    for item in self:
        if item is self:
            give_up("repr of a container that holds itself")
        if position:
            text = text + ", "
        text = text + repr(item)
        position += 1
    return text + closing


@substitute(list.__repr__)
def list_repr(self, /):
    return _bracketed(self, "[", "]")


@substitute(tuple.__repr__)
def tuple_repr(self, /):
    return _bracketed(self, "(", ",)" if len(self) == 1 else ")")


# Heaps: the smallest item first, children of i at 2i+1 and 2i+2. The order of comparisons is CPython's.


def _check_list(heap, name):
    if not isinstance(heap, list):
        raise TypeError(f"{name}() argument{_position_name(name)} must be list, not {type(heap).__name__}")


def _position_name(name):
    return "" if name in ("heappop", "heapify") else " 1"


def _sift_towards_root(heap, start, i):
    item = heap[i]
    while i > start:
        parent = (i - 1) >> 1
        if not item < heap[parent]:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = item


def _sift_towards_leaf(heap, i):
    """Moves the hole at i down along the smaller children, then its item up to where it belongs."""
    end = len(heap)
    start = i
    item = heap[i]
    while 2 * i + 1 < end:
        child = 2 * i + 1
        if child + 1 < end and not heap[child] < heap[child + 1]:
            child += 1
        heap[i] = heap[child]
        i = child
    heap[i] = item
    _sift_towards_root(heap, start, i)


@substitute(_heapq.heappush)
def heappush(heap, item, /):
    _check_list(heap, "heappush")
    heap.append(item)
    _sift_towards_root(heap, 0, len(heap) - 1)


@substitute(_heapq.heappop)
def heappop(heap, /):
    _check_list(heap, "heappop")
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    if not heap:
        return last
    smallest = heap[0]
    heap[0] = last
    _sift_towards_leaf(heap, 0)
    return smallest


@substitute(_heapq.heapreplace)
def heapreplace(heap, item, /):
    _check_list(heap, "heapreplace")
    if not heap:
        raise IndexError("index out of range")
    smallest = heap[0]
    heap[0] = item
    _sift_towards_leaf(heap, 0)
    return smallest


@substitute(_heapq.heappushpop)
def heappushpop(heap, item, /):
    _check_list(heap, "heappushpop")
    if heap and heap[0] < item:
        smallest = heap[0]
        heap[0] = item
        _sift_towards_leaf(heap, 0)
        return smallest
    return item


@substitute(_heapq.heapify)
def heapify(heap, /):
    _check_list(heap, "heapify")
    for i in range(len(heap) // 2 - 1, -1, -1):
        _sift_towards_leaf(heap, i)


# Heaps with the largest item first, as `nsmallest` uses them.


def _sift_towards_root_max(heap, start, i):
    item = heap[i]
    while i > start:
        parent = (i - 1) >> 1
        if not heap[parent] < item:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = item


def _sift_towards_leaf_max(heap, i):
    end = len(heap)
    start = i
    item = heap[i]
    while 2 * i + 1 < end:
        child = 2 * i + 1
        if child + 1 < end and not heap[child + 1] < heap[child]:
            child += 1
        heap[i] = heap[child]
        i = child
    heap[i] = item
    _sift_towards_root_max(heap, start, i)


@substitute(_heapq._heapify_max)
def heapify_max(heap, /):
    for i in range(len(heap) // 2 - 1, -1, -1):
        _sift_towards_leaf_max(heap, i)


@substitute(_heapq._heapreplace_max)
def heapreplace_max(heap, item, /):
    if not heap:
        raise IndexError("index out of range")
    largest = heap[0]
    heap[0] = item
    _sift_towards_leaf_max(heap, 0)
    return largest


@substitute(_heapq._heappop_max)
def heappop_max(heap, /):
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    if not heap:
        return last
    largest = heap[0]
    heap[0] = last
    _sift_towards_leaf_max(heap, 0)
    return largest


# Bisection.


def _bisect_bounds(a, lo, hi):
    if lo < 0:
        raise ValueError("lo must be non-negative")
    return lo, len(a) if hi is None else hi


@substitute(_bisect.bisect_right)
def bisect_right(a, x, lo=0, hi=None, *, key=None):
    lo, hi = _bisect_bounds(a, lo, hi)
    while lo < hi:
        middle = (lo + hi) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            hi = middle
        else:
            lo = middle + 1
    return lo


@substitute(_bisect.bisect_left)
def bisect_left(a, x, lo=0, hi=None, *, key=None):
    lo, hi = _bisect_bounds(a, lo, hi)
    while lo < hi:
        middle = (lo + hi) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


@substitute(_bisect.insort_right)
def insort_right(a, x, lo=0, hi=None, *, key=None):
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


@substitute(_bisect.insort_left)
def insort_left(a, x, lo=0, hi=None, *, key=None):
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)
