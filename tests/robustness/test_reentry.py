"""Jitted code inside jitted code, recursion, odd user methods, and tools that look at frames."""

from __future__ import annotations

import bdb
import cProfile
import sys
import trace
from typing import Any

import pytest
import torch

import jitpy


def test_jit_inside_jit() -> None:
    inner = jitpy.jit(lambda x: x.sin() + 1)

    @jitpy.jit
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x * 2) - inner(x)

    x = torch.randn(5)
    for _ in range(2):
        torch.testing.assert_close(outer(x), (x * 2).sin() - x.sin())


def test_recursion_into_itself() -> None:
    @jitpy.jit
    def fn(x: torch.Tensor, depth: int) -> torch.Tensor:
        if depth == 0:
            return x
        return fn(x + depth, depth - 1) * 2

    def plain(x: torch.Tensor, depth: int) -> torch.Tensor:
        return x if depth == 0 else plain(x + depth, depth - 1) * 2

    x = torch.randn(3)
    for depth in (3, 0, 5, 4):
        torch.testing.assert_close(fn(x, depth), plain(x, depth))


def test_recursion_with_a_break_at_each_level() -> None:
    def plain(x: torch.Tensor, depth: int) -> torch.Tensor:
        if depth == 0 or x.sum() > 1e6:
            return x
        return plain(x + depth, depth - 1) * 2

    fn = jitpy.jit(plain, backend="eager")
    x = torch.randn(3)
    for depth in (3, 6):
        torch.testing.assert_close(fn(x, depth), plain(x, depth))


def test_deep_recursion_is_no_lower_than_eagers_by_much() -> None:
    def descend(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + 1 if n == 0 else descend(x, n - 1) * 1.0

    limit = sys.getrecursionlimit()
    x = torch.zeros(1)
    depth = limit // 4
    torch.testing.assert_close(jitpy.jit(descend, backend="eager")(x, depth), x + 1)

    def endless(x: torch.Tensor, n: int) -> torch.Tensor:
        return endless(x, n + 1) + 1

    with pytest.raises(RecursionError):
        jitpy.jit(endless, backend="eager")(x, 0)
    torch.testing.assert_close(jitpy.jit(descend, backend="eager")(x, 5), x + 1)


class Odd:
    """Methods that raise, or call torch, at unusual times."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __eq__(self, other: object) -> bool:
        if self.what == "eq":
            raise ValueError("eq")
        return self is other

    def __hash__(self) -> int:
        if self.what == "hash":
            raise ValueError("hash")
        return 1

    def __bool__(self) -> bool:
        if self.what == "bool":
            raise ValueError("bool")
        return True


@pytest.mark.parametrize("what", ["eq", "hash", "bool", "none"])
def test_user_methods_that_raise(what: str) -> None:
    def body(x: torch.Tensor, odd: Odd) -> Any:
        found: list[Any] = []
        for action in (lambda: odd == 3, lambda: {odd: 1}[odd], lambda: bool(odd)):
            try:
                found.append(action())
            except ValueError as error:
                found.append(str(error))
        return x + len(found), found

    odd = Odd(what)
    fn = jitpy.jit(body, backend="eager")
    x = torch.ones(2)
    for _ in range(3):
        got, want = fn(x, odd), body(x, odd)
        assert torch.equal(got[0], want[0]) and got[1] == want[1]


def test_del_that_calls_jitted_code() -> None:
    calls: list[float] = []
    small = jitpy.jit(lambda x: x * 2)

    class Closing:
        def __del__(self) -> None:
            calls.append(float(small(torch.ones(1))))

    @jitpy.jit
    def fn(x: torch.Tensor, items: list[Any]) -> torch.Tensor:
        items.pop()
        return x + 1

    for _ in range(3):
        assert fn(torch.ones(1), [Closing()]).item() == 2
    assert calls == [2.0] * 3


def test_under_a_profiler() -> None:
    fn = jitpy.jit(lambda x: (x + 1).sin(), backend="eager")
    x = torch.randn(4)
    profiler = cProfile.Profile()
    profiler.enable()
    got = [fn(x) for _ in range(3)]
    profiler.disable()
    assert all(torch.equal(g, (x + 1).sin()) for g in got)


def test_under_a_tracing_tool() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y.sin()

    fn = jitpy.jit(body, backend="eager")
    x = torch.randn(4)
    counter = trace.Trace(count=1, trace=0)
    for _ in range(3):
        assert torch.equal(counter.runfunc(fn, x), (x + 1).sin())
    assert torch.equal(fn(x), (x + 1).sin())


def test_under_a_debugger() -> None:
    lines: list[int] = []

    class Debugger(bdb.Bdb):
        def user_line(self, frame: Any) -> None:
            if frame.f_code.co_filename == __file__:
                lines.append(frame.f_lineno)
            self.set_step()

    def body(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y.sin()

    x = torch.randn(4)
    fn = jitpy.jit(body, backend="eager")
    fn(x)
    debugger = Debugger()
    got = debugger.runcall(fn, x)
    assert torch.equal(got, (x + 1).sin())
    sys.settrace(None)
    assert torch.equal(fn(x), (x + 1).sin())
