"""Kernels that reduce the rows of a matrix and its columns, in Triton's interpreter and as machine code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from jitpy import config
from jitpy.backends.triton import plan_graph, target
from jitpy.runtime.executable import PythonExecutable
from jitpy.runtime.gpu.compile import Target, compile_kernels
from jitpy.runtime.plan import CallStep, LaunchStep, Plan
from tests.backends.test_crossed import ONE_KERNEL, columns_of_a_square, compare, lying, rows_read_columns
from tests.graph_tools import trace

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small matrices count, and plans run in the interpreter."""
    monkeypatch.setattr(target, "LIMITS", dataclasses.replace(target.LIMITS, crossed_points=1, crossed_rows=16))
    with config.patch(triton_on_cpu=True):
        yield


def launches(plan: Plan) -> list[LaunchStep]:
    return [step for step in plan.steps if isinstance(step, LaunchStep)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("shape", "dtype"), [
    ((300, 96), torch.float32), ((65, 1024), torch.float32), ((500, 17), torch.float32), ((99, 80), torch.bfloat16)])
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_pass(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    if dtype is torch.bfloat16 and name == "kinds":
        pytest.skip("products of 16-bit numbers are rounded at each step in eager")
    inputs = [torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype), torch.randn(shape[1], dtype=dtype)]
    plan = plan_graph(trace(ONE_KERNEL[name], inputs))
    if dtype is not torch.bfloat16:
        assert len(launches(plan)) == 2 and launches(plan)[1].kernel.name.endswith("_combine")
        assert not any(isinstance(step, CallStep) for step in plan.steps)
    compare(ONE_KERNEL[name], inputs, PythonExecutable(plan)(*inputs))


@pytest.mark.parametrize("fn", [rows_read_columns, columns_of_a_square, lying])
def test_more_than_one_pass(fn: Callable[..., Any]) -> None:
    inputs = [torch.randn(30, 30), torch.randn(30, 30), torch.randn(30)]
    compare(fn, inputs, PythonExecutable(plan_graph(trace(fn, inputs)))(*inputs))


def test_long_rows_are_left_to_kernels_of_their_own() -> None:
    inputs = [torch.empty(64, 32768, device="meta"), torch.empty(64, 32768, device="meta"),
              torch.empty(32768, device="meta")]
    plan = plan_graph(trace(ONE_KERNEL["layer norm"], inputs))
    assert any("columns' partial results" in refusal.reason for refusal in plan.notes.refusals)
    one, other = (value[:, :16384] for value in inputs[:2])
    plan = plan_graph(trace(lambda x, y: (x * (x * y).sum(-1, keepdim=True), x.sum(0)), [one, other]))
    assert any("more than a program can hold" in refusal.reason for refusal in plan.notes.refusals)


@pytest.mark.parametrize("machine", [Target("cuda", 90), Target("hip", "gfx942", 64)], ids=["sm_90", "gfx942"])
def test_machine_code(machine: Target) -> None:
    inputs = [torch.empty(16384, 1024, dtype=torch.bfloat16, device="meta") for _ in range(2)]
    plan = plan_graph(trace(ONE_KERNEL["layer norm"], [*inputs, torch.empty(1024, device="meta")]))
    for binary in compile_kernels([step.kernel for step in launches(plan)], machine):
        assert binary.code[:4] == b"\x7fELF"
