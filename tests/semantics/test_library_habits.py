"""What widely used libraries do that few programs do. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import functools
import re

import torch

from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


def shifted(by, fn, x):
    return fn(x) + by


class BoundPartial(functools.partial):
    """A slot of its own by the name of one of partial's (pyro's handlers)."""

    __slots__ = "func"

    def __init__(self, func):
        self.func = func

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self.func, instance)


OUTER = BoundPartial(functools.partial(shifted, 5, torch.sin))


@case(one, fullgraph=True)
def partial_with_a_slot_of_the_same_name(x):
    made = BoundPartial(functools.partial(shifted, 2, BoundPartial(functools.partial(shifted, 3, torch.cos))))
    again = functools.partial(made, x)
    return made(x), OUTER(x), again(), OUTER.func.args, made.func.args[0], again.args[0]


class Tracer:
    """Every attribute is there, and is a function (einx)."""

    def __getattr__(self, name):
        return lambda *args: (name, args)


TRACER = Tracer()


@case(one)
def object_with_every_attribute_below_a_break(x):
    def name(match):
        return TRACER.anything(match)[0]

    return x * 2, re.sub("b", name, "abc"), x + 1


test_library_habits = make_test(__name__)
