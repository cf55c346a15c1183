"""Generators that are left inside `try` or `with`, behind a graph break. PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import Any

import torch

from jitpy import graph_break
from tests.semantics.harness import case, make_test


def one() -> tuple[Any, ...]:
    return (torch.randn(4),)


def closing(log, name="closed"):
    try:
        for i in range(5):
            yield i
    finally:
        log.append(name)


@case(one)
def loop_left_behind_a_break(x):
    log = []
    for i in closing(log):
        x = x + i
        graph_break()
        if i == 1:
            break
    log.append("behind")
    return x * 2, log


@case(one)
def loop_left_by_an_exception_behind_a_break(x):
    log = []
    try:
        for i in closing(log):
            x = x + i
            graph_break()
            if i == 2:
                raise ValueError
    except ValueError:
        log.append("caught")
    graph_break()
    return x * 2, log


@case(one)
def loop_left_in_a_callee_behind_a_break(x):
    log = []

    def add(x):
        for i in closing(log):
            x = x + i
            graph_break()
            if i == 1:
                break
        log.append("end of the callee")
        return x

    x = add(x) * 2
    graph_break()
    log.append("end")
    return x, log


@case(one)
def loops_left_again_and_again(x):
    log = []
    for number in range(3):
        for a, (b, c) in zip(closing(log, "first"), enumerate(closing(log, "second"))):
            x = x + a * b - c
            graph_break()
            if a == number:
                break
        log.append(number)
    return x, log


@case(one)
def loop_left_within_with_and_yield_from(x):
    log = []

    class Manager:
        def __enter__(self):
            log.append("enter")
            return 2

        def __exit__(self, kind, error, traceback):
            log.append(kind)

    def outer():
        with Manager() as scale:
            for i in closing(log):
                yield x * i * scale
            yield from closing(log, "never")

    total = x
    for y in outer():
        total = total + y
        graph_break()
        if float(total.sum()) != 0 and len(log) < 3 and y is not None:
            log.append("leaves")
            break
    log.append("behind")
    return total, log


@case(one)
def deleted_behind_a_break(x):
    log = []
    lines = closing(log)
    x = x + next(lines)
    graph_break()
    x = x + next(lines)
    del lines
    log.append("behind")
    return x * 2, log


@case(one)
def variable_of_a_callee_behind_a_break(x):
    log = []

    def add(x):
        lines = closing(log)
        x = x + next(lines)
        graph_break()
        lines = None
        log.append("end of the callee")
        return x + 1

    x = add(x) * 2
    graph_break()
    log.append("end")
    return x, log


@case(one)
def one_generator_holds_the_other(x):
    log = []

    def doubled(lines):
        for i in lines:
            yield i * 2

    first = closing(log)
    second = doubled(first)
    x = x + next(first) + next(second)
    graph_break()
    x = x + next(first) * next(second) + next(second)
    graph_break()
    return x + next(second) * next(first), log


@case(one)
def generator_in_a_variable_is_seen(x):
    import itertools

    log = []
    lines, more, chained = closing(log), closing(log), itertools.chain([1, 2], [3])
    x = x + next(lines) + next(chained) + next(more)
    graph_break()
    kinds = [type(lines).__name__, lines.gi_running, type(chained).__name__, lines.__name__]
    graph_break()
    return x + next(lines), lines, kinds, chained, [more]


class Noted:
    """Writes its name down when it goes."""

    def __init__(self, log, name):
        self.log, self.name = log, name

    def __del__(self):
        self.log.append(self.name)


@case(one)
def variables_of_a_generator_left_behind_a_break(x):
    log = []

    def numbers():
        kept = Noted(log, "kept")
        for i in range(4):
            last = Noted(log, i)
            yield last.name + len(kept.name)

    for i in numbers():
        x = x + i
        graph_break()
        if i == 5:
            break
    log.append("behind")
    return x * 2, log


@case(one)
def consumed_in_part_by_a_builtin_that_breaks(x):
    log = []

    def found(i):
        graph_break()
        return i == 2

    x = x + any(found(i) for i in closing(log, "any"))
    log.append("between")
    x = x * all(found(i) for i in closing(log, "all"))
    log.append("behind")
    return x * 2, log


@case(one)
def chained_and_left_behind_a_break(x):
    import itertools

    log = []
    for number, i in enumerate(itertools.chain.from_iterable([[7], closing(log), closing(log, "never")])):
        x = x + i
        graph_break()
        if number == 3:
            break
    log.append("behind")
    return x * 2, log


@case(one)
def left_in_a_callee_by_a_break(x):
    log = []

    def add(x):
        for i in zip(closing(log, "first"), closing(log, "second")):
            x = x + i[0]
            graph_break()
            if i[0] == 2:
                break
        log.append("end of the callee")
        return x

    x = add(x) * 2
    log.append("behind")
    return x, log


@case(one)
def made_by_a_call_that_breaks(x):
    log = []

    def opened():
        graph_break()
        lines = closing(log)
        next(lines)
        return lines

    lines = opened()
    x = x + next(lines)
    lines = None
    log.append("behind")
    return x * 2, log


@case(one)
def left_by_an_exception_that_depends_on_data(x):
    for i in closing([]):
        graph_break()
        if (x * 0 + i).sum() > 5:
            raise KeyError(i)


test_all = make_test(__name__)
