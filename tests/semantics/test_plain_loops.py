"""Loops of which nothing is compiled run as plain Python up to their exit; what lies behind them is compiled."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import jitpy
from jitpy.engine import all_engines
from tests.counting import variants

_ITEMS = [(k, 2.0 * k) for k in range(1000)]


@jitpy.disable
def numbers(count: int) -> Any:
    """An iterator that tracing cannot look into."""
    return iter(np.arange(count))


@jitpy.disable
def noted(log: list[Any], item: Any) -> Any:
    log.append(item)
    return item


#: (program of a tensor and a number, whether its loop is plain Python in the end)
CASES: dict[str, tuple[Callable[..., Any], bool]] = {}


def case(plain: bool) -> Any:
    def register(function: Any) -> Any:
        CASES[function.__name__] = function, plain
        return function

    return register


@case(True)
def appends(x, n):
    out = []
    for i in numbers(20 + n):
        out.append(_ITEMS[i])
    return x.sin() * len(out) + out[-1][1]


@case(True)
def comprehension(x, n):
    out = [_ITEMS[i] for i in numbers(20 + n)]
    return x.sin() * len(out) + out[-1][1]


@case(True)
def comprehension_with_closure(x, n):
    scale = n + 1
    out = [_ITEMS[i][0] * scale for i in numbers(20)]
    return x.sin() * sum(out)


@case(True)
def calls_in_the_body(x, n):
    log = []
    for i in range(30):
        noted(log, i + n)
    return x.sin() * len(log) + log[-1]


@case(True)
def variables_of_the_body(x, n):
    before = x.cos()
    for i in numbers(20):
        last = _ITEMS[i]
        double = last[1] * 2
    return before + double + last[0] + int(i)


@case(True)
def empty_at_times(x, n):
    last = None
    for i in numbers((n % 3) * 20):
        last = _ITEMS[i]
    return x.sin() + (0 if last is None else last[0])


@case(True)
def never_bound(x, n):
    for i in numbers((n % 2) * 20):
        last = _ITEMS[i]
    return x.sin() + (last[0] if n % 2 else 1)


@case(True)
def cells_that_the_body_sets(x, n):
    total = 0

    def look():
        return total

    for i in numbers(20):
        total = total + _ITEMS[i][0]
    return x.sin() + look()


@case(True)
def loop_in_a_loop(x, n):
    for k in range(3):
        found = []
        for i in numbers(10 + k):
            found.append(_ITEMS[i])
        x = x.sin() + len(found)
    return x


@case(True)
def two_loops(x, n):
    out = []
    for i in numbers(20):
        out.append(_ITEMS[i])
    x = x.sin()
    for i in numbers(30):
        out.append(_ITEMS[i])
    return x + len(out)


@case(True)
def caught_outside(x, n):
    out = []
    try:
        for i in numbers(20):
            out.append(1 / (15 - int(i)))
    except ZeroDivisionError:
        x = x.sin() + len(out)
    return x.cos()


@case(True)
def inside_a_with_block(x, n):
    with torch.no_grad():
        out = []
        for i in numbers(20):
            out.append(_ITEMS[i])
        y = x * len(out)
    return y.sin()


@case(True)
def with_an_else(x, n):
    out = []
    for i in numbers(20):
        out.append(_ITEMS[i])
    else:
        x = x.sin()
    return x + len(out)


@case(False)
def operations_in_the_body(x, n):
    for i in numbers(20):
        x = x.sin() + int(i)
    return x


@case(False)
def operations_in_one_piece(x, n):
    log = []
    for i in range(20):
        noted(log, i)
        x = x.sin()
        noted(log, i)
    return x + len(log)


@case(False)
def left_half_way(x, n):
    out = []
    for i in numbers(20):
        out.append(_ITEMS[i])
        if len(out) > 7:
            break
    return x.sin() + len(out)


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    jitpy.reset()
    function, plain = CASES[name]
    jitted = jitpy.jit(function, backend="eager")
    for n in range(12):
        x = torch.arange(3.0, requires_grad=n % 2 == 1)
        torch.testing.assert_close(jitted(x, n), function(x, n))
        if n == 8:
            late = variants()
    assert variants() == late
    untils = [point.until for engine in all_engines() for point, _ in engine._resumes]
    inner = [point.inner.until for engine in all_engines() for point, _ in engine._resumes if point.inner is not None]
    assert plain == any(until is not None for until in (*untils, *inner))


def test_few_calls_an_item() -> None:
    """Compiled code runs a number of times that does not grow with the items."""
    jitpy.reset()
    jitted = jitpy.jit(appends, backend="eager")
    x = torch.ones(2)
    for n in range(4):
        jitted(x, n)

    def hits() -> int:
        return sum(entry.hits for engine in all_engines() for dispatcher in engine._dispatchers
                   for entry in dispatcher.entries)

    counts = []
    for n in (20, 200):
        before = hits()
        jitted(x, n)
        counts.append(hits() - before)
    assert counts[0] == counts[1] < 8, counts


def test_what_the_body_raises() -> None:
    """An error of a late item has eager's traceback."""
    def fn(x, n):
        out = []
        for i in numbers(30):
            out.append(
                _ITEMS[int(i) * n])
        return x.sin() + len(out)

    def raised(function: Any) -> list[tuple[str, int | None]]:
        try:
            function(torch.ones(2), 100)
        except IndexError as error:
            frames = traceback.extract_tb(error.__traceback__)
            return [(frame.name, frame.lineno) for frame in frames if frame.name == "fn"]
        raise AssertionError("nothing was raised")

    jitpy.reset()
    jitted = jitpy.jit(fn, backend="eager")
    for n in range(1, 4):
        jitted(torch.ones(2), n)
    assert raised(jitted) == raised(fn)
