"""Graph breaks in loops and in callees: the answers are eager's, and the number of compiled variants stays constant."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    jitpy.reset()
    yield
    jitpy.reset()


def jit(fn: Callable[..., Any]) -> Callable[..., Any]:
    return jitpy.jit(fn, backend="eager")


def long_range(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = x + 1
        jitpy.graph_break()
        x = x * 0.5
    return x


def long_range_with_index(x: torch.Tensor, n: int) -> torch.Tensor:
    total = 0
    for i in range(n):
        total += i
        jitpy.graph_break()
    return x + total


def long_while(x: torch.Tensor, n: int) -> torch.Tensor:
    i = 0
    while i < n:
        x = x + i
        jitpy.graph_break()
        i += 1
    return x


def long_list(x: torch.Tensor, n: int) -> torch.Tensor:
    for item in [0.25] * n:
        x = x + item
        jitpy.graph_break()
    return x


def break_and_continue(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in itertools.count():
        jitpy.graph_break()
        if i % 2:
            continue
        if i >= n:
            break
        x = x + 1
    else:
        x = x * 100
    return x


def in_callee(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = middle(x)
    return x


def middle(x: torch.Tensor) -> torch.Tensor:
    y = inner(x + 1)
    return y * 0.5


def inner(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    jitpy.graph_break()
    return y - 1


LOOPS = [long_range, long_range_with_index, long_while, long_list, break_and_continue, in_callee]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_long_loops_compile_a_constant_number_of_variants(loop: Callable[..., Any]) -> None:
    x = torch.randn(3)
    counts = []
    for n in (100, 1000):
        jitpy.reset()
        torch.testing.assert_close(jit(loop)(x, n), loop(x, n))
        counts.append(variants())
    assert counts[0] == counts[1], "the number of variants grows with the loop"
    assert counts[1] <= 16


def test_a_second_call_compiles_nothing() -> None:
    compiled = jit(in_callee)
    x = torch.randn(3)
    compiled(x, 50)
    before = variants()
    torch.testing.assert_close(compiled(x, 50), in_callee(x, 50))
    assert variants() == before


def outermost(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    log.append("in")
    y = middle(x) + 1
    log.append("out")
    return y * 3


def test_a_break_two_levels_down() -> None:
    """The callees' graphs before and behind the break, and what the callers do with the result."""
    log: list[str] = []
    expected: list[str] = []
    x = torch.randn(4)
    compiled = jit(outermost)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, log), outermost(x, expected))
    assert log == expected
    report = jitpy.explain(outermost, backend="eager")(x, [])
    assert [found.reason.id for found in report.break_reasons] == ["user"]
    assert report.break_reasons[0].function == "inner"


def guarded(x: torch.Tensor) -> torch.Tensor:
    try:
        return failing(x)
    except ValueError as error:
        return x + len(str(error))


def failing(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    jitpy.graph_break()
    if y.dim() == 1:
        raise ValueError("four")
    return y


def test_an_exception_behind_a_break_reaches_the_callers_handler() -> None:
    x = torch.randn(4)
    compiled = jit(guarded)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), guarded(x))
    matrix = torch.randn(2, 2)
    torch.testing.assert_close(compiled(matrix), guarded(matrix))


def halving(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    steps = 0
    while x.abs().max() > 1:
        x = x / 2
        steps += 1
    return x, steps


def newton(x: torch.Tensor) -> torch.Tensor:
    guess = x
    for _ in range(50):
        following = (guess + x / guess) / 2
        if torch.allclose(following, guess):
            break
        guess = following
    return guess


def collatz(n: torch.Tensor) -> list[int]:
    seen = []
    while n.item() != 1:
        seen.append(n.item())
        n = n // 2 if n % 2 == 0 else 3 * n + 1
    return seen


def test_while_on_the_value_of_a_tensor() -> None:
    compiled = jit(halving)
    for scale in (1e3, 0.5, 1e6, 3.0):
        x = torch.tensor([1.0, -1.0, 0.5]) * scale
        y, steps = compiled(x)
        wanted, count = halving(x)
        assert steps == count
        torch.testing.assert_close(y, wanted)


def test_leaving_a_loop_on_the_value_of_a_tensor() -> None:
    compiled = jit(newton)
    for value in (2.0, 9.0, 1e4):
        x = torch.tensor([value])
        torch.testing.assert_close(compiled(x), newton(x))


@pytest.mark.filterwarnings("ignore:jitpy. collatz was compiled:UserWarning")
def test_branches_and_conditions_on_items() -> None:
    """The list that grows keeps changing what was captured: past the limit the function runs eagerly, and right."""
    compiled = jit(collatz)
    for start in (6, 7, 1, 27):
        assert compiled(torch.tensor(start)) == collatz(torch.tensor(start))
