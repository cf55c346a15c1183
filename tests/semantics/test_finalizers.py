"""Objects with `__del__`. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import torch

from tests.semantics.harness import case, make_test


class Noted:
    """Writes its number down when it goes."""

    log: list[object] = []

    def __init__(self, number):
        self.number = number

    def __del__(self):
        Noted.log.append(self.number)


class Heir(Noted):
    """Has it from its base."""


def one():
    return (torch.randn(2),)


@case(one, factory=True, breaks=("finalizer",))
def deleted():
    log = Noted.log = []

    def fn(x):
        noted = Noted(1)
        y = x + 1
        del noted
        log.append("behind")
        return y * 2

    return fn, log


@case(one, factory=True)
def gone_at_the_return():
    log = Noted.log = []

    def fn(x):
        noted = Heir(1)
        y = x + noted.number
        return y * 2

    return fn, log


@case(one, factory=True)
def made_in_a_callee():
    log = Noted.log = []

    def add(x):
        noted = Noted(3)
        log.append("made")
        return x + noted.number

    def fn(x):
        y = add(x * 2)
        log.append("back")
        return y * 2

    return fn, log


@case(one, factory=True)
def returned_by_a_callee():
    log = Noted.log = []

    def make():
        noted = Noted(3)
        log.append("made")
        return noted

    def fn(x):
        x = x + 1
        noted = make()
        log.append("back")
        noted.number += 1
        del noted
        log.append("behind")
        return x * 2

    return fn, log


@case(one, factory=True)
def never_held():
    log = Noted.log = []

    def fn(x):
        Noted(1)
        log.append("behind")
        Noted(2).number = 5
        return x * 2

    return fn, log


@case(one, factory=True)
def replaced_in_a_loop():
    log = Noted.log = []

    def fn(x):
        noted = None
        for number in range(3):
            noted = Noted(number)
            log.append("made")
        return x + noted.number

    return fn, log


@case(one, factory=True)
def left_by_an_exception():
    log = Noted.log = []

    def fails(x):
        Noted(1)
        raise ValueError(x.shape)

    def fn(x):
        try:
            fails(x)
        except ValueError:
            log.append("caught")
        return x * 2

    return fn, log


@case(one, factory=True)
def handed_in():
    log = Noted.log = []

    class Holder:
        held = None

    holder = Holder()

    def fn(x, noted):
        holder.held = noted
        y = x * noted.number
        holder.held = None
        return y

    return (lambda x: fn(x, Noted(4))), (log, holder)


test_all = make_test(__name__)
