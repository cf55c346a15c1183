"""Sorting, heaps and bisection by the program's own comparisons: called for the pairs, and in the order, of CPython."""

from __future__ import annotations

import bisect
import functools
import heapq
import random

import torch

from tests.semantics.harness import case, make_test

X = lambda: (torch.randn(3),)  # noqa: E731


class Logged:
    """Compares by value and keeps account of who was asked."""

    def __init__(self, value, log, fails_at=None):
        self.value = value
        self.log = log
        self.fails_at = fails_at

    def __lt__(self, other):
        self.log.append(("<", self.value, other.value))
        if len(self.log) == self.fails_at:
            raise RuntimeError("no more questions")
        return self.value < other.value

    def __gt__(self, other):
        self.log.append((">", self.value, other.value))
        return self.value > other.value


def _numbers(count, seed=0):
    return [random.Random(seed).randrange(count) for _ in range(count)] if seed else list(range(count))


ORDERS = [_numbers(9), _numbers(9)[::-1], _numbers(9, 1), _numbers(70, 2), [3, 3, 3, 1, 1]]


@case(X, fullgraph=True)
def sort_asks_as_cpython(x):
    logs = []
    for values in ORDERS:
        for reverse in (False, True):
            log = []
            items = [Logged(v, log) for v in values]
            made = sorted(items, reverse=reverse)
            items.sort(key=lambda item: item, reverse=reverse)
            logs.append((log, [item.value for item in made], [item.value for item in items]))
    return x + 1, logs


@case(X, fullgraph=True)
def sort_by_tuples(x):
    log = []
    items = [(v % 3, Logged(v, log)) for v in ORDERS[2]]
    items.sort()
    return x + items[0][0], [item.value for _, item in items], log


@case(X, fullgraph=True)
def sort_by_cmp_to_key(x):
    log = []

    def compare(a, b):
        log.append((a, b))
        return (a > b) - (a < b)

    return x, sorted(ORDERS[3], key=functools.cmp_to_key(compare)), log


@case(X)
def failed_sort_leaves_half_an_order(x):
    found = []
    for fails_at in (1, 4, 9, 14):
        log = []
        items = [Logged(v, log, fails_at) for v in ORDERS[2]]
        try:
            items.sort()
        except RuntimeError as error:
            found.append((str(error), [item.value for item in items], log))
    return x + 1, found


@case(X)
def sort_of_different_types(x):
    found = []
    for values in ([object(), 1], [1, object()], [(1, object()), (1, 2)], [1, "a", object()]):
        try:
            sorted(values)
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


@case(X)
def sort_refuses_arguments(x):
    found = []
    for call in (lambda: sorted([2, 1], reverse=1.5), lambda: sorted([2, 1], up=True), lambda: [1].sort(None),
                 lambda: sorted([2, 1], abs)):
        try:
            call()
        except TypeError:
            found.append("refused")
    return x + 1, found


@case(X, lambda: (torch.tensor([3.0, 1.0, 2.0]),))
def sort_of_tensors(x):
    return [v * 2 for v in sorted([x[0], x[1], x[2]])]


@case(X, fullgraph=True)
def least_and_greatest(x):
    log = []
    items = [Logged(v, log) for v in ORDERS[2]]
    picked = [min(items), max(items), min(items, key=lambda item: item), *heapq.nsmallest(3, items),
              *heapq.nlargest(2, items)]
    return x + picked[0].value, [item.value for item in picked], log


@case(X, fullgraph=True)
def heaps(x):
    log, heap, popped = [], [], []
    for value in ORDERS[2]:
        heapq.heappush(heap, Logged(value, log))
    popped += [heapq.heappop(heap), heapq.heappushpop(heap, Logged(4, log)), heapq.heapreplace(heap, Logged(0, log))]
    other = [Logged(v, log) for v in ORDERS[3]]
    heapq.heapify(other)
    return x, [item.value for item in popped + heap + other], log


@case(X, fullgraph=True)
def bisection(x):
    log = []
    items = [Logged(v, log) for v in range(9)]
    places = [bisect.bisect_left(items, Logged(4, log)), bisect.bisect(items, Logged(4, log))]
    bisect.insort(items, Logged(3, log))
    return x, places, [item.value for item in items], log


test_all = make_test(__name__)
