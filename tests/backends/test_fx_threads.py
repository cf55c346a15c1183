"""Backends as torch.compile takes them that compile in other threads, and graphs for them that compute numbers."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import jitpy


@pytest.fixture(autouse=True)
def _fresh() -> None:
    jitpy.reset()


def within(seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """The result of a call in a thread that is left behind where it takes too long."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(function(*args)), daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, "the call does not come to its end"
    return done[0]


def branching(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:
        return y.sin() + 1
    return y - 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_backend_whose_threads_call_jitted_functions(dynamic: bool | None) -> None:
    helper = jitpy.jit(lambda t: t.sin() + 1, backend="eager")
    compiled: list[torch.Tensor] = []

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        def work() -> Callable[..., Any]:
            compiled.append(helper(torch.ones(3)))
            return module.forward

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    fn = jitpy.jit(branching, backend=backend, dynamic=dynamic)
    for n in (3, 4, 3):
        x = torch.randn(n)
        torch.testing.assert_close(within(60, fn, x), branching(x))
    assert compiled
    for found in compiled:
        torch.testing.assert_close(found, torch.ones(3).sin() + 1)
    assert not helper.entries  # its calls ran as plain Python, and did not count
    assert helper(torch.ones(3)).shape == (3,) and len(helper.entries) == 1


def test_another_thread_need_not_wait_for_a_backend() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        inside.set()
        assert go_on.wait(60)
        return module.forward

    slow = threading.Thread(target=jitpy.jit(branching, backend=backend), args=(torch.ones(2),))
    slow.start()
    assert inside.wait(60)
    other = jitpy.jit(lambda t: t * 3, backend="eager")
    assert within(60, other, torch.ones(2)).tolist() == [3, 3] and not other.entries
    go_on.set()
    slow.join()
    assert within(60, other, torch.ones(2)).tolist() == [3, 3] and len(other.entries) == 1


def test_a_backend_that_goes_on_compiling_in_a_thread() -> None:
    made: list[threading.Thread] = []

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        ready: list[Callable[..., Any]] = []

        def compile() -> None:
            time.sleep(0.01)
            ready.append(torch.fx.GraphModule(module, module.graph).forward)

        made.append(threading.Thread(target=compile))
        made[-1].start()
        return lambda *args: (ready[0] if ready else module.forward)(*args)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.ReLU())
    fn = jitpy.jit(model, backend=backend)
    for k in range(6):
        x = torch.randn(2 + k % 2, 4)
        model.zero_grad()
        expected = model(x)
        expected.square().sum().backward()
        gradients = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
        model.zero_grad()
        found = fn(x)
        found.square().sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close([p.grad for p in model.parameters()], gradients)
        for thread in made if k == 3 else ():
            thread.join()
    assert made


# -- numbers that a graph computes --------------------------------------------------------------------------------


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * x.sum().item()).cos()


def listed(x: torch.Tensor) -> Any:
    return x.tolist(), x * 2


def chosen(x: torch.Tensor) -> torch.Tensor:
    return x[: int(x.argmax().item()) + 1].sum() * x.max().item()


def several(x: torch.Tensor) -> Any:
    total, place = x.sum().item(), int(x.argmax())
    return total * 2, [0] * place, round(total, 1), x + total


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("fn", [scaled, listed, chosen, several])
def test_numbers_that_a_graph_computes_under_torchs_compiler(fn: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = jitpy.jit(fn, backend="inductor", dynamic=dynamic)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for k in range(5):
            x = torch.roll(torch.arange(4.0) / 4 - 0.25, k) + k
            torch.testing.assert_close(compiled(x), fn(x))
    # a float that changes and is a result is a constant to torch's compiler
    assert fn is several or not [str(w.message) for w in seen if "jitpy" in str(w.message)]
