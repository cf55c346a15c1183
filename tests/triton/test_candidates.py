"""What tuning chooses from: every candidate of a launch computes the same."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
import torch.nn.functional as F

from jitpy import config
from jitpy.backends.triton import emitter, plan_graph, reductions, tiles
from jitpy.backends.triton.tiles import Launch
from jitpy.runtime.executable import PythonExecutable
from jitpy.runtime.plan import LaunchStep, Plan
from jitpy.schedule.loops import Kernel
from tests.graph_tools import trace
from tests.triton.cases import CASES, Case, randn
from tests.triton.test_interpreted import check

pytest.importorskip("triton")
LARGE = [
    Case("pointwise", lambda x, b: torch.relu(x + b) * 0.5, lambda: (randn(64, 1024), randn(1024))),
    Case("transposed", lambda x, y: x.t() + y, lambda: (randn(128, 256), randn(256, 128))),
    Case("rows", lambda x: torch.softmax(x, -1), lambda: (randn(64, 1024),)),
    Case("long rows", lambda x: torch.log_softmax(x, -1), lambda: (randn(2, 33000),)),
    Case("groups", lambda x, w: F.silu(F.group_norm(x, 4, w)), lambda: (randn(16, 16, 96, 64), randn(16))),
    Case("columns", lambda x: x.sum(0), lambda: (randn(3000, 70),), launches=2, units=400),
    Case("all", lambda x: x.sum(), lambda: (randn(300, 1000),), launches=2, units=400),
    Case("positions", lambda x: x.argmax(-1), lambda: (randn(32, 1024),)),
]


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_candidates(case: Case) -> None:
    inputs = case.make()
    plan = plan_graph(trace(case.fn, inputs), tune=True)
    (step, *rest) = [step for step in plan.steps if isinstance(step, LaunchStep)]
    place = plan.steps.index(step)
    assert len(rest) < case.launches and 3 <= len(step.candidates) <= 8
    assert len({kernel for kernel, _ in step.candidates} | {step.kernel}) == len(step.candidates) + 1
    for kernel, grid in step.candidates[::2]:
        steps = list(plan.steps)
        steps[place] = dataclasses.replace(step, kernel=kernel, grid=grid)
        with config.patch(triton_on_cpu=True):
            check(case, list(PythonExecutable(dataclasses.replace(plan, steps=steps))(*inputs)), inputs)


LONG = [
    Case("long softmax", lambda x: torch.softmax(x, -1), lambda: (randn(2, 33000),)),
    Case("long rows that start anywhere", lambda x: torch.log_softmax(x, -1), lambda: (randn(3, 33001).bfloat16(),)),
    Case("large groups", lambda x, w: F.silu(F.group_norm(x, 4, w)), lambda: (randn(16, 16, 96, 64), randn(16))),
]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("case", LONG, ids=str)
def test_ways_to_write_long_rows(case: Case, cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last pass may walk backwards; rows that could be held are walked."""
    original = reductions.reduction_launch

    def other(kernel: Kernel, stages: int, passes: int, clusters: bool) -> Launch:
        launch = original(kernel, stages, passes, clusters)
        assert launch.held or launch.together > 1
        return dataclasses.replace(launch, backward=not launch.backward, cached=cached, held=False,
                                   together=max(2, launch.together))

    monkeypatch.setattr(reductions, "reduction_launch", other)
    inputs = case.make()
    plan = plan_graph(trace(case.fn, inputs))
    with config.patch(triton_on_cpu=True):
        check(case, list(PythonExecutable(plan)(*inputs)), inputs)


@pytest.mark.parametrize("case", [
    Case("whole chunks", lambda x: x.sum(0), lambda: (randn(4096, 70, dtype=torch.bfloat16),), launches=2),
    Case("chunks with a rest", lambda x: (x.sum(0), x.argmax(0)), lambda: (randn(3001, 130),), launches=2, units=400),
    Case("two operands", lambda x, y: (x * y).sum(0) + 1, lambda: (randn(2100, 64), randn(2100, 64)), launches=2,
         units=400),
], ids=str)
def test_large_columns_in_turns(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs take chunks of a column in turn."""
    monkeypatch.setattr(tiles, "LARGE", 1 << 10)
    inputs = case.make()
    plan = plan_graph(trace(case.fn, inputs))
    loop = r"for r_turn in range\(0, \d+, \d+\):" if case.name == "whole chunks" else \
        r"for r_start in range\(part \* \d+, \d+, \d+\):"
    assert re.search(loop, plan_source(plan))
    with config.patch(triton_on_cpu=True):
        check(case, list(PythonExecutable(plan)(*inputs)), inputs)


def plan_source(plan: Plan) -> str:
    return "".join(step.kernel.source for step in plan.steps if isinstance(step, LaunchStep))


def test_only_tuning_has_candidates() -> None:
    plan = plan_graph(trace(lambda x: x * 2, (randn(64, 1024),)))
    assert not any(step.candidates for step in plan.steps if isinstance(step, LaunchStep))


WIDE = ("softmax_long", "column_sum_tall", "layer_norm", "cumsum_long", "cumsum_long_columns", "argmin_of_columns",
        "middle_and_last", "transposed_bf16", "log_softmax_that_starts_anywhere")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [case for case in CASES if case.name in WIDE], ids=str)
def test_positions_of_64_bits(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kernels of more than 2**31 elements do, with few."""
    monkeypatch.setattr(emitter, "_is_wide", lambda *args: True)
    inputs = case.make()
    plan = plan_graph(trace(case.fn, inputs))
    assert ".to(tl.int64)" in plan_source(plan)
    with config.patch(triton_on_cpu=True):
        check(case, list(PythonExecutable(plan)(*inputs)), inputs)
