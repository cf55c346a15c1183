"""Functions that torch.compile compiles in jitted ones, and the reverse, in one process."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy

pytestmark = pytest.mark.usefixtures("_unseen")


def check(fast: Callable[..., Any], plain: Callable[..., Any], times: int = 3) -> None:
    for number in range(times):
        x = torch.randn(4, 3) + number
        torch.testing.assert_close(fast(x), plain(x))


def counting(counts: list[int]) -> Callable[..., Any]:
    """A backend for torch.compile that counts the calls of its graphs."""

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            counts.append(1)
            return module.forward(*args)

        return call

    return backend


class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 2


def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


# -- torch.compile inside ----------------------------------------------------------------------------------


def test_compiled_function_in_a_jitted_one() -> None:
    calls: list[int] = []
    compiled = torch.compile(wave, backend=counting(calls))
    check(jitpy.jit(lambda x: compiled(x) * 2), lambda x: wave(x) * 2)
    assert len(calls) == 3


def test_it_is_one_call_between_two_graphs() -> None:
    compiled = torch.compile(wave, backend="eager")
    report = jitpy.explain(lambda x: compiled(x.cos()) * 2)(torch.ones(3))
    assert [record.reason.id for record in report.break_reasons] == ["compiled_by_torch"] and report.graph_count == 2
    with pytest.raises(jitpy.FullGraphError, match="compiled_by_torch"):
        jitpy.jit(lambda x: compiled(x) * 2, fullgraph=True)(torch.ones(3))


def test_compiled_submodule() -> None:
    calls: list[int] = []
    model = nn.Sequential(Scale(), nn.Tanh(), nn.Linear(3, 3))
    plain = copy.deepcopy(model)
    model[0].compile(backend=counting(calls))
    check(jitpy.jit(model), plain)
    assert len(calls) == 3
    check(jitpy.jit(nn.Sequential(torch.compile(model[1], backend="eager"), nn.Tanh())),
          nn.Sequential(nn.Tanh(), nn.Tanh()))


def test_compiled_inside() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.compile(wave, backend="eager")(x) * 2

    def module(x: torch.Tensor) -> torch.Tensor:
        layer = nn.Linear(3, 3)
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
        layer.compile(backend="eager")
        return layer(x) * 2

    check(jitpy.jit(function), lambda x: wave(x) * 2)
    check(jitpy.jit(module), lambda x: x.sum(1, keepdim=True).expand(4, 3) * 2)


def test_jit_of_what_torch_compile_made() -> None:
    calls: list[int] = []
    check(jitpy.jit(torch.compile(wave, backend=counting(calls))), wave)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    check(jitpy.jit(torch.compile(model, backend=counting(calls))), model)
    assert len(calls) == 6


def test_gradients_go_through_both() -> None:
    compiled = torch.compile(wave, backend="aot_eager")
    fast = jitpy.jit(lambda x: (compiled(x * 3) * 2).sum())
    for _ in range(3):
        x = torch.randn(5, requires_grad=True)
        fast(x).backward()
        torch.testing.assert_close(x.grad, (x.detach() * 3).cos() * 6)


# -- torch.compile outside ---------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False])
def test_jitted_function_in_a_compiled_one(native: bool) -> None:
    with jitpy.config.patch(native=native):
        fast = jitpy.jit(wave)
        check(torch.compile(lambda x: fast(x * 3) * 2, backend="eager"), lambda x: wave(x * 3) * 2)


def test_jitted_module_in_a_compiled_function() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    fast = jitpy.jit(model)
    check(torch.compile(lambda x: fast(x * 3) * 2, backend="eager"), lambda x: model(x * 3) * 2)


def test_disabled_function_in_a_compiled_one() -> None:
    compiling: list[bool] = []

    @jitpy.disable
    def disabled(x: torch.Tensor) -> torch.Tensor:
        compiling.append(torch.compiler.is_compiling())
        return wave(x)

    check(torch.compile(lambda x: disabled(x * 3) * 2, backend="eager"), lambda x: wave(x * 3) * 2)
    assert compiling == [False] * 3


def test_nested_either_way() -> None:
    jitted = jitpy.jit(wave)
    compiled = torch.compile(lambda x: jitted(x * 3) * 2, backend="eager")
    check(jitpy.jit(lambda x: compiled(x) - 1), lambda x: wave(x * 3) * 2 - 1)
    middle = jitpy.jit(lambda x: compiled(x) - 1)
    check(torch.compile(lambda x: middle(x.cos()), backend="eager"), lambda x: wave(x.cos() * 3) * 2 - 1)


def test_breaks_and_frames_below_on_both_sides() -> None:
    def below(x: torch.Tensor) -> torch.Tensor:
        jitpy.graph_break()
        return x + 1

    jitted = jitpy.jit(lambda x: sorted([1], key=lambda _: below(x).sum())[0] * below(x))
    compiled = torch.compile(lambda x: jitted(x.sin()).cos(), backend="eager")
    check(jitpy.jit(lambda x: below(compiled(x))), lambda x: (x.sin() + 1).cos() + 1)


def test_backward_pass_inside_a_compiled_function() -> None:
    """The backward half is compiled when it first runs, where torch.compile serves the thread."""
    jitted = jitpy.jit(lambda x: wave(x).sum())

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = jitted(x * 2) * 3
        loss.backward()
        assert x.grad is not None
        return x.grad.clone()

    compiled = torch.compile(step, backend="eager")
    for _ in range(3):
        x = torch.randn(5, requires_grad=True)
        torch.testing.assert_close(compiled(x), (x.detach() * 2).cos() * 6)


def test_the_outer_compiler_counts() -> None:
    calls: list[int] = []
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    check(torch.compile(jitpy.jit(wave), backend=counting(calls), fullgraph=True), wave)
    check(torch.compile(jitpy.jit(model), backend=counting(calls), fullgraph=True), model)
    assert len(calls) == 6


def test_in_threads() -> None:
    jitted = jitpy.jit(wave)
    compiled = torch.compile(lambda x: jitted(x * 3) * 2, backend="eager")
    outer = jitpy.jit(lambda x: compiled(x) - 1)
    errors: list[BaseException] = []

    def work(function: Any, plain: Any) -> None:
        try:
            check(function, plain, times=10)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in (
        (outer, lambda x: wave(x * 3) * 2 - 1), (compiled, lambda x: wave(x * 3) * 2)) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
