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


# Up to Python 3.12 `locals()` of a function is one dict, brought up to date by each call; since 3.13 one dict a call.


@case(x3)
def locals_asked_for_twice(x, n):
    a = 1
    first = locals()
    a = 2
    before = first["a"]
    second = locals()
    return x * a, before, first["a"], second["a"], second is first, sorted(first)


@case(x3)
def locals_in_a_loop(x, n):
    found = []
    for i in range(3):
        found.append(locals())
    return x + 1, [one["i"] for one in found], found[0] is found[1]


@case(x3)
def locals_that_are_written_to(x, n):
    mine = locals()
    mine["n"] = 5
    exec("new = n", globals(), mine)
    return x + n, mine["new"], "new" in locals(), dir()


@case(x3)
def locals_of_a_called_function_twice(x, n):
    def inner(n):
        first = locals()
        n += 1
        return first, dir(), first["n"]

    return x + n, inner(n), locals()["n"]


test_all = make_test(__name__)
