"""What every random program begins with: helpers, classes, and the head of `world()`."""

PRELUDE = '''\
import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import torch
import jitpy

counter = 3
shared = [1, 2]
scale = 0.5


class Halt(Exception):
    def __init__(self, code, *rest):
        super().__init__(code, *rest)
        self.code = code


Named = collections.namedtuple("Named", "t k")


@dataclasses.dataclass
class Pair:
    left: object
    right: object = 1


class Slim:
    __slots__ = ("a", "t")

    def __init__(self, a, t):
        self.a = a
        self.t = t


def plus(a, b=2, *rest, k=1, **named):
    return a + b * k + sum(rest) + len(named)


def first(items, default=None):
    for item in items:
        return item
    return default


def evens(items):
    total = 0
    for item in items:
        if item % 2 == 0:
            got = yield item
            total += got or 0
    shared.append(total)
    return total


def careful(items):
    # Run to its end or closed by all who use it: when CPython drops an object is not compared.
    try:
        for item in items:
            got = yield item
            if got:
                shared.append(got)
    except ValueError as error:
        shared.append(len(error.args))
        yield -1
    finally:
        shared.append(len(shared))


def walk(tensors):
    for t in tensors:
        shared.append(t.dim())
        got = yield t * 2
        if got is not None:
            yield t + got


def below(o):
    return o if o.child is None else o.child


def chained(items):
    total = yield from evens(items)
    yield total


@contextlib.contextmanager
def noted(log, swallow=False):
    log.append(len(log))
    try:
        yield log
    except ValueError:
        if not swallow:
            raise
    finally:
        log.append(-1)


def world():
    class Box:
        __watched__ = ("made", "log", "limit")
        made = 0
        limit = 3
        log = []

        def __init__(self, total, weight):
            self.total = total
            self.weight = weight
            self.items = []
            self.child = None
            self.named = {}
            self.grid = [[1, 2], [3]]
            type(self).made += 1

        def add(self, value):
            self.total += value
            self.items.append(value)
            return self

        @property
        def double(self):
            return self.total * 2

        @double.setter
        def double(self, value):
            self.total = value // 2

        def scaled(self, t, by=None):
            if by is None:
                by = self.weight
            return t * by

        def __len__(self):
            return len(self.items)

        def __getitem__(self, i):
            return self.items[i]

        def __eq__(self, other):
            return isinstance(other, Box) and self.total == other.total

        def __add__(self, other):
            return Box((self.total + (other.total if isinstance(other, Box) else other)) % 97, self.weight)

        def __enter__(self):
            self.total += 1
            return self

        def __exit__(self, kind, value, trace):
            self.total -= 1
            Box.log.append(kind.__name__ if kind else "none")
            return kind is not None and issubclass(kind, KeyError)

    class Deep(Box):
        __watched__ = ("made", "limit")

        def add(self, value):
            super().add(value + 1)
            return self

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return len(name)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor(0.5))
            self.register_buffer("seen", torch.zeros(()))
            self.calls = 0
            self.gain = 0.5

        def forward(self, t):
            self.calls += 1
            if self.training:
                self.seen.add_(0.25)
            return t * self.w + self.seen * self.gain

    def remember(item, seen=[]):
        seen.append(item)
        return len(seen)

'''
