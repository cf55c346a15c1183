"""Texts of lists and tuples, heaps and bisection."""

from __future__ import annotations

import _bisect
import _heapq

from .registry import give_up, substitute

# Texts.


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


def _sift_towards_root(heap, start, i, is_max):
    item = heap[i]
    while i > start:
        parent = (i - 1) >> 1
        if not (heap[parent] < item if is_max else item < heap[parent]):
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = item


def _sift_towards_leaf(heap, i, is_max):
    """Moves the hole at i down along the first children, then its item up to where it belongs."""
    end = len(heap)
    start = i
    item = heap[i]
    while 2 * i + 1 < end:
        child = 2 * i + 1
        if child + 1 < end and not (heap[child + 1] < heap[child] if is_max else heap[child] < heap[child + 1]):
            child += 1
        heap[i] = heap[child]
        i = child
    heap[i] = item
    _sift_towards_root(heap, start, i, is_max)


def _replace(heap, item, is_max):
    if not heap:
        raise IndexError("index out of range")
    first = heap[0]
    heap[0] = item
    _sift_towards_leaf(heap, 0, is_max)
    return first


def _pop(heap, is_max):
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    return _replace(heap, last, is_max) if heap else last


def _heapify(heap, is_max):
    for i in range(len(heap) // 2 - 1, -1, -1):
        _sift_towards_leaf(heap, i, is_max)


@substitute(_heapq.heappush)
def heappush(heap, item, /):
    _check_list(heap, "heappush")
    heap.append(item)
    _sift_towards_root(heap, 0, len(heap) - 1, False)


@substitute(_heapq.heappop)
def heappop(heap, /):
    _check_list(heap, "heappop")
    return _pop(heap, False)


@substitute(_heapq.heapreplace)
def heapreplace(heap, item, /):
    _check_list(heap, "heapreplace")
    return _replace(heap, item, False)


@substitute(_heapq.heappushpop)
def heappushpop(heap, item, /):
    _check_list(heap, "heappushpop")
    return _replace(heap, item, False) if heap and heap[0] < item else item


@substitute(_heapq.heapify)
def heapify(heap, /):
    _check_list(heap, "heapify")
    _heapify(heap, False)


# heaps with the largest item first, as `nsmallest` uses them
substitute(_heapq._heapify_max)(lambda heap, /: _heapify(heap, True))
substitute(_heapq._heapreplace_max)(lambda heap, item, /: _replace(heap, item, True))
substitute(_heapq._heappop_max)(lambda heap, /: _pop(heap, True))


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
