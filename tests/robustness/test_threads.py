"""Many threads call one jitted function, and compile it at once: right results, no error, nothing left over."""

from __future__ import annotations

import math
import random
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import living, resident

THREADS = 8


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run `work(number)` in threads that start together; the first error is raised here."""
    errors: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def program(x: torch.Tensor, scale: int) -> torch.Tensor:
    y = (x * scale).sin()
    if x.shape[0] > 40:
        y = y + x.sum()
    return y * 2 - x.mean()


def breaking_program(x: torch.Tensor, scale: int) -> torch.Tensor:
    """With a graph break, so that there are resume functions."""
    y = (x * scale).sin()
    if y.sum() > 0:
        return y - x.mean()
    return y * 2 + len(x.shape)


def copy_of(function: Callable[..., Any]) -> Any:
    """The same function with a code object of its own, which nothing else keeps."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def call_from_threads(body: Any, backend: str, calls: int) -> dict[str, dict[str, int]]:
    """Calls with changing shapes, each compared with eager; what was alive when all was compiled, and after."""
    fn = jitpy.jit(body, backend=backend)
    shapes = [(n,) for n in (2, 3, 5, 17, 41, 64, 100)] + [(n, 3) for n in (2, 7, 50)]
    inputs = [torch.linspace(-1, 2, math.prod(shape)).reshape(shape) for shape in shapes]
    wanted = {(i, s): body(inputs[i], s) for i in range(len(inputs)) for s in (2, 3, 4)}
    for i, s in wanted:
        torch.testing.assert_close(fn(inputs[i], s), wanted[i, s], rtol=1e-5, atol=1e-5)

    def work(number: int) -> None:
        chooser = random.Random(number)
        for _ in range(calls // THREADS):
            i, s = chooser.randrange(len(inputs)), chooser.choice((2, 3, 4))
            torch.testing.assert_close(fn(inputs[i], s), wanted[i, s], rtol=1e-5, atol=1e-5)

    before, memory = living(), resident()
    in_threads(work)
    after = living()
    assert resident() - memory < 24, (memory, resident())
    return {"compiled": before, "called": after}


@pytest.mark.parametrize(("function", "backend"), [(program, "codegen"), (breaking_program, "eager")])
def test_ten_thousand_calls_with_changing_shapes(function: Callable[..., Any], backend: str) -> None:
    """Nothing is left over by calls; nothing at all once the function went, and what was compiled for it."""
    call_from_threads(copy_of(function), backend, 80)  # what is made once in a process is there now
    figures = {"nothing": living()} | call_from_threads(copy_of(function), backend, 10_000)
    figures["dropped"] = living()
    print(f"\n{'':14}" + "".join(f"{when:>10}" for when in figures))
    for kind in figures["nothing"]:
        print(f"{kind:14}" + "".join(f"{counts[kind]:10}" for counts in figures.values()))
    for before, after in (("compiled", "called"), ("nothing", "dropped")):
        grown = {kind: (n, figures[after][kind]) for kind, n in figures[before].items() if figures[after][kind] > n}
        assert not grown, (before, after, grown)
    assert figures["compiled"]["variants"] > figures["nothing"]["variants"]
    assert figures["compiled"]["guards"] > figures["nothing"]["guards"]


def test_first_call_in_all_threads_at_once() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).relu() * 3

    fn = jitpy.jit(body)
    x = torch.randn(33)
    in_threads(lambda number: torch.testing.assert_close(fn(x), body(x)))


def test_threads_with_graph_breaks() -> None:
    def body(x: torch.Tensor, seen: list[float]) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            seen.append(1.0)
            return y + 1
        seen.append(-1.0)
        return y - 1

    fn = jitpy.jit(body, backend="eager")

    def work(number: int) -> None:
        chooser = random.Random(number)
        for _ in range(200):
            x = torch.full((4,), chooser.choice((-1.0, 1.0)))
            a: list[float] = []
            b: list[float] = []
            assert torch.equal(fn(x, a), body(x, b)) and a == b

    in_threads(work)


def test_each_thread_has_its_own_modes() -> None:
    def body(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        return x * 2, torch.is_grad_enabled()

    fn = jitpy.jit(body, backend="eager")
    x = torch.randn(3, requires_grad=True)

    def work(number: int) -> None:
        for _ in range(100):
            with torch.set_grad_enabled(number % 2 == 0):
                y, enabled = fn(x)
                assert y.requires_grad is enabled is (number % 2 == 0)

    in_threads(work)


def test_threads_compile_different_functions() -> None:
    def make(k: int) -> Callable[..., Any]:
        def body(x: torch.Tensor) -> torch.Tensor:
            return torch.cos(x * k) + k

        return body

    x = torch.randn(9)

    def work(number: int) -> None:
        for k in range(6):
            body = make(number * 10 + k)
            torch.testing.assert_close(jitpy.jit(body)(x), body(x))

    in_threads(work)


def test_reset_while_others_call() -> None:
    fn = jitpy.jit(program, backend="eager")
    x = torch.randn(8)
    wanted = program(x, 2)

    def work(number: int) -> None:
        for step in range(60):
            if number == 0 and step % 20 == 10:
                jitpy.reset()
            torch.testing.assert_close(fn(x, 2), wanted)

    in_threads(work)
