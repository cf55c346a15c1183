"""Comprehensions, which Python 3.12 puts into the function around them: names that both have, cells, breaks inside."""

# ruff: noqa: F841
from __future__ import annotations

import torch

from jitpy import graph_break
from tests.semantics.harness import case, make_test


def one():
    return (torch.arange(3.0),)


def broken(value):
    graph_break()
    return value


k = "global"


@case(one)
def variable_of_the_same_name(x):
    i, j = "i", "j"
    return x + 1, [i for i in range(3)], {j: i for i, j in enumerate("ab")}, i, j, [k for k in range(2)], k


@case(one)
def unbound_behind_it(x):
    found = [i for i in range(2)]
    try:
        return x, i  # noqa: F821
    except NameError as error:
        return x + 1, found, str(error)


@case(one, factory=True)
def name_from_outside():
    k = "free"

    def fn(x):
        return x + 1, [k for k in range(3)], k

    return fn


@case(one, factory=True)
def name_from_outside_and_a_break():
    k = "free"

    def fn(x):
        found = [broken(k) for k in range(3)]
        try:
            [[1 / broken(k) for k in (j, j - 1)] for j in (2, 1)]
        except ZeroDivisionError:
            pass
        return x + 1, found, k

    return fn


@case(one, factory=True)
def name_from_outside_in_a_closure():
    k = "free"

    def fn(x):
        made = [lambda: k for k in range(3)]
        later = [(lambda: k, broken(k)) for k in range(3)]
        return x + 1, [f() for f in made], [f() for f, _ in later], k

    return fn


@case(one, factory=True)
def name_from_outside_and_locals():
    k = "free"

    def fn(x):
        found = [locals()["k"] for k in range(1)]
        return x + 1, found, k

    return fn


@case(one)
def name_of_a_cell_and_a_break(x):
    q = 5

    def h():
        graph_break()
        return q

    found = [(q, h()) for q in range(2)]
    made = [(lambda: q, h()) for q in range(2)]
    return x + 1, found, [(f(), v) for f, v in made], q, h()


@case(one)
def in_a_class_body(x):
    k, h = 2, abs

    class Made:
        k = 5
        names = [k for _ in range(2)]
        inner = [q for q in range(k)]
        closures = [(lambda: k)() for _ in range(1)]
        called = [h(-k) for _ in range(1)]
        shadows = [[k for k in range(2)] for _ in range(2)]

    return x + 1, Made.names, Made.inner, Made.closures, Made.called, Made.shadows, Made.k


@case(one)
def in_a_class_body_with_a_break(x):
    class Made:
        k = 5
        called = [broken(v) for v in range(2)]
        closures = [(lambda: v)() for v in range(2)]

    return x + 1, Made.called, Made.closures


test_all = make_test(__name__)
