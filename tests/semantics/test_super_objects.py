"""`super()` as an object that is kept, and what it tells descriptors. PYTEST_DONT_REWRITE: run as written."""

from __future__ import annotations

import os
from typing import Any

import torch

from tests.semantics.harness import case, make_test


def graph_break(message: str = "") -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    from jitpy import graph_break  # type: ignore[no-redef]


def one() -> tuple[Any, ...]:
    return (torch.randn(4),)


class Told:
    def __get__(self, instance, owner):
        return instance is None, owner.__name__


class Base:
    told = Told()

    def __init__(self, t):
        self.t = t

    def go(self, k):
        return self.t + k

    def __len__(self):
        return 5

    @property
    def double(self):
        return self.t * 2

    @classmethod
    def named(cls):
        return cls.__name__

    @classmethod
    def made(cls, t):
        return cls(t)


class Middle(Base):
    pass


class Derived(Middle):
    told = None

    def __new__(cls, *args):
        above = super()
        graph_break()
        return above.__new__(cls)

    def __init__(self, t):
        above = super()
        graph_break()
        above.__init__(t * 2)

    def __setattr__(self, name, value):
        above = super()
        graph_break()
        above.__setattr__(name, value)

    def __len__(self):
        return 6

    def go(self, k):
        above = super()
        graph_break()
        first = above.go(k)
        method = above.go
        graph_break()
        return first + method(k), above.__self__ is self, above.__class__ is super

    @classmethod
    def made(cls, t):
        above = super()
        graph_break()
        return above.made(t + 1)

    def seen(self):
        return super().named(), super().told, super().double

    @classmethod
    def seen_on_class(cls):
        return super().named(), super().told, type(super().double)


class Last(Derived):
    pass


@case(one)
def kept_across_breaks(x):
    thing = Derived.made(x)
    return thing.go(2), thing.t, len(thing)


@case(one)
def what_descriptors_are_told(x):
    thing = Last(x)
    return thing.seen(), Last.seen_on_class(), thing.seen_on_class()


@case(one, factory=True)
def made_outside():
    thing = Last(torch.ones(4))
    above, on_class = super(Derived, thing), super(Derived, Last)

    def fn(x):
        found = [above.go(x), above.double, above.told, above.named(), above.__self__ is thing, above.__thisclass__]
        found += [on_class.named(), on_class.told, on_class.go(thing, x), isinstance(above, super)]
        try:
            len(above)
        except TypeError as error:
            found.append(str(error))
        try:
            above.t  # noqa: B018
        except AttributeError as error:
            found.append(str(error))
        thing.t = x
        return found, above.go(1)

    return fn


test_all = make_test(__name__)
