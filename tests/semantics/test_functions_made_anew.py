"""Functions that the caller makes anew for each call: compiled once for their code, with what they close over read
anew; their identity matters only where the program looks at it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants

#: name -> (the function compiled, maker(i) of its arguments behind the tensor, variants allowed)
CALLS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]], int]] = {}


def calls(make: Callable[[int], tuple[Any, ...]], allowed: int = 2) -> Any:
    def register(fn: Any) -> Any:
        CALLS[fn.__name__] = fn, make, allowed
        return fn

    return register


class Scaler:
    def __init__(self, k: Any) -> None:
        self.k = k

    def scale(self, x):
        return x * self.k


def scaled(x, k, *, bias=0):
    return x * k + bias


def closing_over(k):
    def inner(x):
        return x * k

    return inner


def counting():
    n = 0

    def inner(x):
        nonlocal n
        n += 1
        return x * n

    return inner


@calls(lambda i: (lambda x: x + 1,))
def plain_lambda(x, f):
    return f(x) * 2


@calls(lambda i: (closing_over(i),), 3)
def closure_over_int(x, f):
    return f(x)


@calls(lambda i: (closing_over(float(i)),), 3)
def closure_over_float(x, f):
    return f(x) + 1


@calls(lambda i: (closing_over(torch.full((4,), float(i))),))
def closure_over_tensor(x, f):
    return f(x) + 1


@calls(lambda i: (closing_over([1, 2, 3][i % 3]),), 3)
def closure_that_repeats(x, f):
    return f(x)


@calls(lambda i: (counting(),))
def closure_written(x, f):
    return f(x) + f(x) + f(x)


@calls(lambda i: ((lambda x, k=i: x * k),), 3)
def default_that_changes(x, f):
    return f(x)


@calls(lambda i: ((lambda x, *, k=2.0: x * k),))
def keyword_default(x, f):
    return f(x)


@calls(lambda i: (functools.partial(lambda x, k: x * k, k=i),), 3)
def partial_of_lambda(x, f):
    return f(x)


@calls(lambda i: (functools.partial(scaled, k=2, bias=i),), 3)
def partial_of_function(x, f):
    return f(x)


@calls(lambda i: (Scaler(i).scale,), 3)
def method_of_new_object(x, f):
    return f(x)


@calls(lambda i: ({"f": [lambda x: x + i, lambda x: x - i]},), 3)
def in_containers(x, fs):
    for f in fs["f"]:
        x = f(x) * 2
    return x


@calls(lambda i: (closing_over(closing_over(2)),))
def closure_over_closure(x, f):
    return x * f.__closure__[0].cell_contents(x)


@calls(lambda i: (lambda x: (y for y in (x, x + 1)),))
def generator_function(x, f):
    return sum(f(x))


@calls(lambda i: (lambda a: -a.sum(),))
def key_of_sort(x, f):
    return sorted([3, 1, 2], key=lambda n: n) and f(x)


@calls(lambda i: (lambda x: x.relu(), lambda x: x.abs()))
def two_functions(x, f, g):
    return f(x) + g(x)


@calls(lambda i: (lambda x: x + 1,))
def name_of_function(x, f):
    return x + len(f.__name__)


@calls(lambda i: (lambda x: jitpy.graph_break() or x + i,), 6)
def break_inside(x, f):
    return f(x * 2) * 3


@calls(lambda i: (closing_over(i + 2.0),), 3)
def signature_of_function(x, f):
    return f(x) + len(inspect.signature(f).parameters)


@pytest.mark.parametrize("name", CALLS)
def test_compiled_for_the_code(name):
    jitpy.reset()
    fn, make, allowed = CALLS[name]
    fast = jitpy.jit(fn, backend="eager")
    for i in range(30):
        x = torch.arange(4.0) - 1 + i
        torch.testing.assert_close(fast(x, *make(i)), fn(x, *make(i)), rtol=0, atol=0)
    assert variants() <= allowed, variants()


def test_other_code_is_seen():
    fast = jitpy.jit(lambda x, f: f(x), backend="eager")
    x = torch.ones(3)
    for _ in range(3):
        assert fast(x, lambda x: x + 1).tolist() == [2] * 3
        assert fast(x, lambda x: x + 5).tolist() == [6] * 3


def test_other_globals_are_seen():
    source = "def f(x):\n    return x * K"
    code = compile(source, "<made>", "exec")
    fast = jitpy.jit(lambda x, f: f(x), backend="eager")
    for k in (2, 3, 4, 5):
        space: dict[str, Any] = {"K": k}
        exec(code, space)
        assert fast(torch.ones(2), space["f"]).tolist() == [k] * 2


def test_changed_names_are_seen():
    def named(name):
        def f(x):
            return x

        f.__name__ = name
        f.scale = len(name)
        return f

    fast = jitpy.jit(lambda x, f: (f(x) * f.scale, f.__name__), backend="eager")
    for name in ("a", "bb", "ccc", "dddd", "a"):
        y, found = fast(torch.ones(2), named(name))
        assert (found, y.tolist()) == (name, [len(name)] * 2)


def test_changed_defaults_are_seen():
    def make(*defaults):
        def f(x, a=1, b=2):
            return x * a + b

        f.__defaults__ = defaults
        return f

    fast = jitpy.jit(lambda x, f: f(x, 10) if len(f.__defaults__) == 1 else f(x), backend="eager")
    x = torch.ones(2)
    for defaults in ((1, 2), (3, 4), (5,), (6, 7), (8,), (1, 2)):
        f = make(*defaults)
        expected = f(x, 10) if len(defaults) == 1 else f(x)
        assert torch.equal(fast(x, f), expected)


def test_identity_is_seen():
    def same(x, f, g):
        return x + 1 if f is g else x - 1

    fast = jitpy.jit(same, backend="eager")
    x = torch.zeros(2)

    def make():
        return lambda x: x

    kept = make()
    for _ in range(3):
        f = make()
        assert fast(x, f, f).tolist() == [1, 1]
        assert fast(x, make(), make()).tolist() == [-1, -1]
        assert fast(x, kept, f).tolist() == [-1, -1]
        assert fast(x, kept, kept).tolist() == [1, 1]


def test_as_key_and_result():
    table: dict[Any, int] = {}

    def use(x, f):
        known = f in table
        return f(x) + known, f

    fast = jitpy.jit(use, backend="eager")
    x = torch.zeros(2)
    for i in range(4):
        def f(x):
            return x

        if i % 2:
            table[f] = 1
        y, g = fast(x, f)
        assert g is f
        assert y.tolist() == [i % 2] * 2


def test_shared_cells():
    def pair(shared):
        n = 0

        def up(x):
            nonlocal n
            n += 1
            return x + n

        other = 10

        def down(x):
            return x - n

        def apart(x):
            return x - other

        return up, down if shared else apart

    fast = jitpy.jit(lambda x, up, down: down(up(x)), backend="eager")
    x = torch.zeros(2)
    for shared in (True, False, True, True, False):
        up, down = pair(shared)
        assert torch.equal(fast(x, up, down), torch.full((2,), 0.0 if shared else -9.0))
        assert torch.equal(fast(x, up, down), torch.full((2,), 0.0 if shared else -8.0))


def test_changed_signatures_are_seen():
    """Of functions of one code: other defaults, annotations, names, and signatures that they were given."""

    def make(change):
        def inner(x, y=1, *, z=2):
            return x + y + z

        change(inner)
        return inner

    changes = [
        lambda f: None, lambda f: None, lambda f: setattr(f, "__defaults__", None),
        lambda f: f.__annotations__.update(y=int), lambda f: setattr(f, "__kwdefaults__", {}),
        lambda f: setattr(f, "__signature__", inspect.signature(scaled)), lambda f: setattr(f, "__wrapped__", scaled),
        lambda f: setattr(f, "__defaults__", (1.5,)), lambda f: None,
    ]

    def described(x, f):
        found = inspect.signature(f).parameters.values()
        return x + 1, [(p.name, p.default, p.annotation, p.kind) for p in found]

    fast = jitpy.jit(described, backend="eager")
    x = torch.zeros(2)
    for change in (*changes, *reversed(changes)):
        assert fast(x, make(change))[1] == described(x, make(change))[1]
