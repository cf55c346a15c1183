"""What every random program begins with: imports and globals, helpers, classes, and the head of `world()`."""

IMPORTS = '''\
import abc
import bisect
import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import heapq
import inspect
import io
import itertools
import logging
import math
import operator
import random
import sys
import threading
import types
import typing
import warnings
import weakref
import torch
import jitpy

counter = 3
shared = [1, 2]
scale = 0.5
helper = None
ticks = []
elsewhere = None
EVENTS = []


'''

PRELUDE = '''\


class Halt(Exception):
    def __init__(self, code, *rest):
        super().__init__(code, *rest)
        self.code = code


Named = collections.namedtuple("Named", "t k")


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def other(self):
        return Color.BLUE if self is Color.RED else Color.RED


@dataclasses.dataclass
class Pair:
    left: object
    right: object = 1


@dataclasses.dataclass(order=True)
class Record:
    k: int = 0
    tags: list = dataclasses.field(default_factory=list, compare=False)
    t: object = dataclasses.field(default=None, compare=False)

    def __post_init__(self):
        self.tags = [*self.tags, self.k]


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


def mean_of(*tensors, by=torch.mul, **named):
    total = functools.reduce(torch.add, tensors)
    for t in named.values():
        total = by(total, t)
    return total / max(len(tensors), 1)


def countdown(n):
    return [n] + countdown(n - 1) if n > 0 else []


@functools.singledispatch
def kind_of(value):
    return 0


@kind_of.register(int)
def _(value):
    return 1


@kind_of.register(torch.Tensor)
def _(value):
    return value.dim() + 2


def halving(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) * 0.5
    return wrapper


@halving
def shifted(t, by=1):
    return t + by


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 + ctx.saved_tensors[0] * 0


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
    elsewhere = types.ModuleType("elsewhere")
    elsewhere.__watched__ = ("rate", "items", "fn")
    exec("rate, items, fn = 0.5, [1], abs\\ndef tuned(t):\\n    return t * rate + len(items)\\n", vars(elsewhere))
    globals()["elsewhere"] = elsewhere
    globals().pop("abs", None)
    level = 2

    def adder(t, by=0.5, *, more=1):
        return t * by + more

    class Mixin:
        def scaled(self, t, by=2):
            return super().scaled(t, by) - 1

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

    class Limited:
        """A descriptor that keeps values below 50."""

        def __set_name__(self, owner, name):
            self.place = "_" + name

        def __get__(self, obj, owner=None):
            return self if obj is None else getattr(obj, self.place, 0)

        def __set__(self, obj, value):
            setattr(obj, self.place, value % 50)

    class Vec:
        """Operators on both sides, around a tensor and a count."""

        __watched__ = ("made",)
        made = []
        n = Limited()

        def __init__(self, t, n=0):
            self.t, self.n = t, n
            Vec.made.append(n)

        @classmethod
        def of(cls, t, *rest):
            return cls(t, len(rest))

        @staticmethod
        def join(a, b):
            return Vec(a.t + b.t, a.n * b.n)

        @functools.cached_property
        def half(self):
            return self.t * 0.5

        def __add__(self, other):
            return Vec(self.t + (other.t if isinstance(other, Vec) else other), self.n + 1)

        def __rmul__(self, other):
            return Vec(other * self.t, self.n)

        def __rsub__(self, other):
            return NotImplemented if isinstance(other, str) else Vec(other - self.t, self.n)

        def __iadd__(self, other):
            self.n += 1
            return self

        def __neg__(self):
            return type(self)(-self.t, -self.n)

        def __call__(self, t, *, shift=0):
            return t * self.n / 7 + shift

        def __iter__(self):
            yield self.t
            yield self.n

        def __contains__(self, i):
            return i < self.n

        def __bool__(self):
            return self.n % 2 == 0

        def __lt__(self, other):
            return self.n < other.n

        def __hash__(self):
            return 7

        def __index__(self):
            return self.n % 3

        def __format__(self, spec):
            return f"Vec{self.n:{spec}}"

        def __setattr__(self, name, value):
            if name == "log":
                Vec.made.append(value)
            super().__setattr__(name, value)

        def __delattr__(self, name):
            Vec.made.append(name)
            super().__delattr__(name)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False)])
            self.norm = torch.nn.BatchNorm1d(2, eps=0.5)
            self.drop = torch.nn.Dropout(0.25)
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            self.gain = 0.5
            self.last = None
            self.sizes = collections.deque(maxlen=3)

        def forward(self, t):
            for layer in self.layers:
                t = torch.tanh(layer(t))
            t = self.drop(self.norm(t)) * self.gain
            if self.training:
                self.steps += 1
            self.sizes.append(t.shape[0])
            return t

    def remember(item, seen=[]):
        seen.append(item)
        return len(seen)

'''
