"""`eval`, `exec`, `dir` and `locals` look at the names of the frame that calls them, wherever the graph broke."""

from __future__ import annotations

import torch

import jitpy
from tests.semantics.harness import case, make_test

x3 = lambda: (torch.arange(3.0), 2)  # noqa: E731
k = 7  # a global of the same name


@case(x3)
def eval_sees_variables_of_its_function(x, n):
    y = x + 1
    k = y * 2  # noqa: F841
    return eval("y + n + k"), eval("k")


def _inner(x, n):
    k = x + n  # noqa: F841
    found = eval("k")
    return found, sorted(dir()), eval("n + 1")


@case(x3)
def eval_in_a_called_function(x, n):
    first = x * 2
    got = (n, _inner(first, n))
    return got, sorted(dir()), first


@case(x3, factory=True)
def exec_writes_where_it_is_told():
    seen = []

    def fn(x, n):
        y = x.sin()
        exec("seen.append(n)", {"seen": seen}, locals())
        names = {"n": n}
        exec("m = n * 2", names)
        return y, names["m"], sorted(name for name in vars())

    return fn, seen


@case(x3)
def names_behind_breaks(x, n):
    a, b = x + 1, x + 2

    def inner(q):
        jitpy.graph_break()
        k = n + (q, jitpy.graph_break())[0]
        return sorted(locals()), sorted(dir()), eval("k")

    return [a, inner(3), b]


@jitpy.disable
def _raises():
    raise ValueError("inside")


@case(x3)
def names_where_a_call_raised(x, n):
    def inner(y):
        try:
            return (1, y, _raises())
        finally:
            jitpy.graph_break()
            print(sorted(dir()))

    try:
        return inner(x)
    except ValueError as error:
        return sorted(dir()), eval("str(error)"), error.args, x + 1


test_all = make_test(__name__)
