"""What is in use while a plan runs: the order of its steps, and memory that the call was given for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy import logs
from jitpy.backends.cpp import plan_graph
from jitpy.ir.graph import OWNED
from jitpy.runtime.executable import PythonExecutable, make_executable
from jitpy.runtime.plan import Plan
from jitpy.runtime.profiled import ProfiledExecutable
from tests.graph_tools import trace

Tensor = torch.Tensor
MIB = 1 << 20


def profiled(plan: Plan, *inputs: Any) -> tuple[ProfiledExecutable, tuple[Any, ...]]:
    run = ProfiledExecutable(plan)
    return run, run(*inputs)


def backward_of_linear(x: Tensor, w: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    h = (x @ w).sin()  # 4 MiB
    passed_on = (grad @ v.t()).cos()  # 4 MiB
    of_weight = h.t() @ grad  # 64 KiB, and the last that reads h
    return passed_on.sum(1), of_weight


def test_what_frees_memory_comes_before_what_takes_it() -> None:
    inputs = [torch.randn(s) for s in ((2048, 64), (64, 512), (512, 32), (2048, 32))]
    run, outputs = profiled(plan_graph(trace(backward_of_linear, inputs)), *inputs)
    for output, expected in zip(outputs, backward_of_linear(*inputs), strict=True):
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    assert 4 * MIB <= run.profile.peak_bytes < 5 * MIB  # never both


def scores_in_heads(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    scores = (x @ w).view(8, 128, 512)
    return scores.softmax(-1).view(1024, 512) @ v


def test_values_of_another_shape_are_written_over() -> None:
    inputs = [torch.randn(s) for s in ((1024, 512), (512, 512), (512, 8))]
    plan = plan_graph(trace(scores_in_heads, inputs))
    for run, outputs in (profiled(plan, *inputs), (None, make_executable(plan)(*inputs))):
        torch.testing.assert_close(outputs[0], scores_in_heads(*inputs))
        assert run is None or run.profile.peak_bytes < 3 * MIB  # the scores, and no second time


def given(fn: Callable[..., Any], inputs: list[Tensor], owned: int = 0) -> Plan:
    graph = trace(fn, inputs)
    graph.inputs[owned].meta[OWNED] = True
    return plan_graph(graph)


def twice_read(x: Tensor, w: Tensor) -> Tensor:
    return (x.sin() + 1) @ w


def test_memory_that_was_given_up_is_written_over() -> None:
    inputs = [torch.randn(1024, 512), torch.randn(512, 8)]
    plan = given(twice_read, inputs)
    assert plan.overwritten == (0,)
    assert plan_graph(trace(twice_read, inputs)).overwritten == ()
    before = inputs[0].clone()
    for run in (make_executable(plan), PythonExecutable(plan)):  # the caller sees these inputs, and gets them back
        torch.testing.assert_close(run(*inputs)[0], twice_read(*inputs))
        assert torch.equal(inputs[0], before)


def test_results_do_not_live_in_memory_that_was_given_up() -> None:
    inputs = [torch.randn(1024, 512)]
    assert given(lambda x: x.sin() + 1, inputs).overwritten == ()


def test_what_is_returned_as_it_was_given_is_not_written_over() -> None:
    inputs = [torch.randn(1024, 512), torch.randn(512, 8)]
    assert given(lambda x, w: (x, twice_read(x, w)), inputs).overwritten == ()


def loss_of(x: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(x @ w, labels)


@pytest.fixture
def case() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(64, 16, requires_grad=True), torch.randn(16, 512, requires_grad=True), torch.arange(64)


def test_a_pass_that_keeps_its_graph_can_be_repeated(case: tuple[Tensor, Tensor, Tensor]) -> None:
    x, w, _ = case
    expected = torch.autograd.grad(loss_of(*case), (x, w))
    loss = jitpy.jit(loss_of)(*case)
    for keep in (True, True, False):
        for grad, right in zip(torch.autograd.grad(loss, (x, w), retain_graph=keep), expected, strict=True):
            torch.testing.assert_close(grad, right)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, (x, w))


def test_saved_tensors_that_hooks_hold_stay_as_they_are(case: tuple[Tensor, Tensor, Tensor]) -> None:
    x, w, _ = case
    held: list[tuple[Tensor, Tensor]] = []

    def pack(tensor: Tensor) -> Tensor:
        held.append((tensor, tensor.detach().clone()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = jitpy.jit(loss_of)(*case)
    grads = torch.autograd.grad(loss, (x, w))
    for grad, right in zip(grads, torch.autograd.grad(loss_of(*case), (x, w)), strict=True):
        torch.testing.assert_close(grad, right)
    assert held
    assert all(torch.equal(tensor, copy) for tensor, copy in held)


def test_the_log_of_steps_tells_what_is_alive_at_the_peak() -> None:
    inputs = [torch.randn(s) for s in ((2048, 64), (64, 512), (512, 32), (2048, 32))]
    lines: list[str] = []
    before = logs.set_sink(lines.append)
    logs.enable("steps")
    try:
        make_executable(plan_graph(trace(backward_of_linear, inputs)))(*inputs)
    finally:
        logs.disable("steps")
        logs.set_sink(before)
    text = "\n".join(lines)
    assert "aten.mm" in text
    assert "peak: 4." in text
    assert "4.00 MiB  float32[2048, 512]" in text.split("peak:")[1]
