"""Rows and columns that clusters of programs share, on a GPU that has them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends.triton import plan_graph, target, tiles
from jitpy.runtime.executable import PythonExecutable, make_executable
from jitpy.runtime.plan import LaunchStep, Plan
from tests.graph_tools import trace
from tests.triton.cases import Case
from tests.triton.test_clusters import COLUMNS, ROWS
from tests.triton.test_interpreted import check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or torch.version.hip is not None
                       or torch.cuda.get_device_capability() < (9, 0), reason="needs a GPU with clusters"),
]


def shared_plan(case: Case, inputs: tuple[torch.Tensor, ...]) -> Plan:
    plan = plan_graph(trace(case.fn, inputs))
    assert any(isinstance(step, LaunchStep) and step.kernel.cluster > 1 for step in plan.steps)
    return plan


@pytest.mark.parametrize("case", [*ROWS, *COLUMNS], ids=str)
def test_like_eager(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """By native code, and step by step."""
    monkeypatch.setattr(target, "LIMITS", dataclasses.replace(target.LIMITS, few_rows=1))
    monkeypatch.setattr(tiles, "LARGE", 1 << 10)
    inputs = tuple(x.cuda() for x in case.make())
    plan = shared_plan(case, inputs)
    for executable in (make_executable(plan), PythonExecutable(plan)):
        for _ in range(2):
            check(case, list(executable(*inputs)), inputs)


LARGE = [
    Case("group norm", lambda x: F.silu(F.group_norm(x, 32)), lambda: (torch.randn(32, 512, 64, 64).bfloat16(),)),
    Case("softmax", lambda x: torch.softmax(x, -1), lambda: (torch.randn(3000, 40000),)),
    Case("column sum", lambda x: x.sum(0), lambda: (torch.randn(16384, 4096).bfloat16(),)),
]


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_results_repeat(case: Case) -> None:
    """More programs than fit the chip at a time, many times over, on two streams at once and in a CUDA graph."""
    inputs = tuple(x.cuda() for x in case.make())
    run = make_executable(shared_plan(case, inputs))
    (first,) = run(*inputs)
    check(case, [first], inputs)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    found = []
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 2]):
            (other,) = run(*inputs)
            found.append((other != first).any())
            del other
    torch.cuda.synchronize()
    assert not any(map(bool, found))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (other,) = run(*inputs)
    for _ in range(5):
        graph.replay()
    assert torch.equal(other, first)
