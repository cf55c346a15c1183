"""Functions that call themselves, with graph breaks at each level: what is compiled does not depend on the depth."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

import jitpy
from jitpy import graph_break
from tests.counting import variants
from tests.semantics.harness import case, make_test


def broken(x: torch.Tensor, n: int) -> torch.Tensor:
    """A break on the way down and one on the way up."""
    x = x * 2
    if n == 0:
        return x
    graph_break()
    y = broken(x * 0.25 + 1, n - 1)
    graph_break()
    return y + n


def even(x: torch.Tensor, n: int) -> torch.Tensor:
    graph_break()
    return x if n == 0 else odd(x * 0.5, n - 1) + 1


def odd(x: torch.Tensor, n: int) -> torch.Tensor:
    graph_break()
    return x.sin() if n == 0 else even(x + 1, n - 1) * 0.5


def helper(x: torch.Tensor, n: int) -> torch.Tensor:
    return broken(x + 1, n) * 3


class Tree(torch.nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.ones(3) * depth)
        self.below = Tree(depth - 1) if depth else None
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        graph_break()
        return x + self.bias if self.below is None else self.below(x * 0.5) + self.bias


def raising(x: torch.Tensor, n: int) -> torch.Tensor:
    graph_break()
    if n == 0:
        raise ValueError("the end")
    try:
        return raising(x + 1, n - 1)
    except ValueError as error:
        raise ValueError(f"{n}, {error}") from error


def walk(node: Any, path: list[int], x: torch.Tensor) -> torch.Tensor:
    """Depth first over nested lists, noting where it was."""
    for i, item in enumerate(node):
        path.append(i)
        graph_break()
        x = walk(item, path, x + 1) if isinstance(item, list) else x * item
        path.pop()
    return x


@pytest.mark.parametrize("function", [broken, even, helper])
def test_the_number_of_graphs_does_not_depend_on_the_depth(function: Any) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(4000)
    try:
        counts = []
        for depth in (10, 60, 200):
            jitpy.reset()
            fast = jitpy.jit(function, backend="eager")
            for shift in (0, 1, 0):
                x = torch.arange(3.0) + shift
                torch.testing.assert_close(fast(x, depth + shift), function(x, depth + shift))
            counts.append(variants())
        assert counts[0] == counts[1] == counts[2] <= 24, counts
    finally:
        sys.setrecursionlimit(limit)


def test_the_inner_calls_are_compiled() -> None:
    """Not only the first level: tensor operations run in graphs at each depth."""
    def graphs(depth: int) -> int:
        jitpy.reset()
        calls = []

        def backend(module: Any, examples: Any) -> Any:
            @jitpy.disable
            def counted(*args: Any) -> Any:
                calls.append(module)
                return module(*args)

            return counted

        jitpy.jit(broken, backend=backend)(torch.ones(3), depth)
        return len(calls)

    few, many = graphs(4), graphs(12)
    assert many - few >= 8, (few, many)


def counted(function: Any) -> Any:
    def wrapper(*args: Any) -> Any:
        wrapper.calls += 1
        return function(*args)

    wrapper.calls = 0
    return wrapper


@counted
def inside(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    graph_break()
    return y + 1


@counted
def outside(x: torch.Tensor) -> torch.Tensor:
    return inside(x.sin()) * 3


@counted
def descending(x: torch.Tensor, n: int) -> torch.Tensor:
    graph_break()
    return x if n == 0 else descending(x + n, n - 1)


def test_wrappers_of_other_functions_are_no_recursion() -> None:
    """Each is a function of its own, of one code: a break inside of both is one break."""
    jitpy.reset()
    report = jitpy.explain(outside)(torch.ones(3))
    assert [record.reason.id for record in report.break_reasons] == ["user"]
    counts = []
    for depth in (10, 40):
        jitpy.reset()
        jitpy.jit(descending, backend="eager")(torch.ones(3), depth)
        counts.append(variants())
    assert counts[0] == counts[1], counts


def one() -> tuple[Any, ...]:
    return (torch.tensor([0.5, -1.0, 2.0]),)


@case(one)
def local_recursion(x):
    def go(n, acc):
        graph_break()
        return acc if n == 0 else go(n - 1, acc * 0.5 + n)

    return go(6, x), go(3, x)


@case(lambda: (torch.ones(3), 5), lambda: (torch.ones(4), 7), factory=True)
def jitted_by_its_own_name():
    def fn(x, n):
        if n == 0:
            return x
        graph_break()
        return fn(x * 2, n - 1) + n

    return fn


@case(lambda: (torch.ones(3),), factory=True)
def modules_in_modules():
    model = Tree(6)
    return lambda x: model(x), model


@case(lambda: (torch.ones(3), 4), lambda: (torch.ones(3), 6))
def exceptions_at_each_level(x, n):
    return raising(x, n)


@case(lambda: ([1, [2, [3, 4], 5], [[6]]], [], torch.ones(3)))
def side_effects_at_each_level(node, path, x):
    return walk(node, path, x), path


@case(lambda: (torch.ones(3), 9))
def two_functions_in_turn(x, n):
    return even(x, n), odd(x, n)


@case(one)
def wrappers_of_other_functions(x):
    before = outside.calls, inside.calls, descending.calls
    results = outside(x), descending(x, 4), outside(x)
    return results, [f.calls - b for f, b in zip((outside, inside, descending), before, strict=True)]


@case(one)
def recursion_in_a_callback(x):
    def go(n):
        graph_break()
        return x * n if n < 2 else sum(map(go, [n - 1, n - 2]), x)

    return go(5)


@case(one)
def recursive_generator(x):
    def go(n):
        if n:
            yield from go(n - 1)
        graph_break()
        yield x * n

    return list(go(4))


test_all = make_test(__name__)


def test_names_that_are_bound_behind_the_recursive_call() -> None:
    """A cell of the recursive function is empty while a break inside of it decides where to go on."""
    held = types.SimpleNamespace()

    def fn(x: Any, y: Any) -> Any:
        def inner(value: Any, count: int) -> Any:
            if count <= 0:
                return value
            jitpy.graph_break()
            value = inner(value * 0.5, count - 1)
            late = y
            held.dims = lambda: late.dim()
            return value

        return inner(x, 3)

    jitpy.reset()
    fast = jitpy.jit(fn, backend="eager")
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(fast(x, x), fn(x, x))
        assert held.dims() == 1
