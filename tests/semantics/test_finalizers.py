"""Objects with `__del__`. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

import jitpy
from jitpy.engine import all_engines
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


@jitpy.disable
def opaque(number):
    return Noted(number)


@case(one, factory=True)
def returned_by_an_operation_that_breaks():
    log = Noted.log = []

    def fn(x):
        noted = opaque(3)
        y = x + noted.number
        noted = None
        log.append("behind")
        return y * 2

    return fn, log


@case(one, factory=True)
def deleted_and_replaced_behind_breaks():
    log = Noted.log = []

    def fn(x):
        first, second = opaque(1), opaque(2)
        y = x + first.number
        del first
        log.append("first is gone")
        jitpy.graph_break()
        for number in range(3, 5):
            y = y * second.number
            second = opaque(number)
            log.append("replaced")
        return y * 2

    return fn, log


@case(one, factory=True)
def variable_of_a_callee_that_breaks():
    log = Noted.log = []

    def add(x):
        noted = opaque(3)
        jitpy.graph_break()
        return x + noted.number

    def fn(x):
        y = add(x)
        log.append("behind")
        jitpy.graph_break()
        return y * 2

    return fn, log


@case(one, factory=True)
def held_by_the_caller():
    log = Noted.log = []
    kept = Noted(5)

    def fn(x):
        noted = kept
        jitpy.graph_break()
        y = x + noted.number
        noted = None
        log.append("behind")
        return y * 2

    return fn, log


@case(one, factory=True)
def argument_of_an_operation_that_breaks():
    log = Noted.log = []

    @jitpy.disable
    def number_of(noted):
        return noted.number

    def fn(x):
        y = x + number_of(opaque(6))
        log.append("behind")
        return y * 2

    return fn, log


@jitpy.disable
def opaque_list(count):
    return [Noted(number) for number in range(count)]


@case(one, factory=True)
def items_and_attributes_of_others():
    log = Noted.log = []

    @jitpy.disable
    def holder():
        found = Plain()
        found.held = Noted("held")
        return found

    def fn(x):
        listed, around = opaque_list(3), holder()
        y = x + listed[0].number
        listed.pop()
        log.append("popped")
        jitpy.graph_break()
        y = y * 2
        listed = None
        log.append("no list")
        del around
        log.append("behind")
        return y * 2

    return fn, log


class Plain:
    """Holds others."""


test_all = make_test(__name__)


def test_code_behind_a_break_in_a_block_is_compiled() -> None:
    """The exit of an open block takes its generator to the end, so that nothing else notices when that goes."""
    events = []

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        try:
            yield
        finally:
            events.append("left")

    def fn(x):
        with block():
            y = x.sin()
            jitpy.graph_break()
            y = y.cos() + 1
            events.append("inside")
        events.append("behind")
        return y

    compiled, x = jitpy.jit(fn), torch.randn(4)
    for _ in range(3):
        events.clear()
        torch.testing.assert_close(compiled(x), x.sin().cos() + 1)
        assert events == ["inside", "left", "behind"]
    graphs = [variant.graph for engine in all_engines() for variant in engine.variants
              if variant.name == fn.__qualname__]
    assert len([graph for graph in graphs if graph is not None and graph.nodes]) == 2
