"""Rows and columns that the programs of a cluster share. Without a GPU the cost model never chooses them; here it is
told that programs can wait for each other."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy import config
from jitpy.backends.triton import plan_graph, programs, target, tiles
from jitpy.backends.triton.emitter import Program
from jitpy.runtime.executable import PythonExecutable
from jitpy.runtime.gpu import through_triton
from jitpy.runtime.gpu.compile import Target, compile_kernels
from jitpy.runtime.gpu.kernel import GpuKernel
from jitpy.runtime.plan import LaunchStep, Plan
from tests.graph_tools import trace
from tests.triton.cases import Case, randn
from tests.triton.test_interpreted import check

pytest.importorskip("triton")
HALF, BRAIN = torch.float16, torch.bfloat16


def residual_norm(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + y
    return h, h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6)


ROWS = [
    Case("group norm", lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)),
         lambda: (randn(1, 16, 96, 64, dtype=BRAIN), randn(16), randn(16))),
    Case("layer norm", lambda x, w, b: F.layer_norm(x, (40000,), w, b),
         lambda: (randn(3, 40000), randn(40000), randn(40000))),
    Case("last part is short", lambda x: torch.native_layer_norm(x, (40008,), None, None, 1e-5),
         lambda: (randn(3, 40008, dtype=BRAIN),)),
    Case("last part is empty", lambda x: torch.log_softmax(x, -1), lambda: (randn(3, 33000),)),
    Case("softmax of a sum", lambda x, y: torch.softmax(x + y, -1) * y,
         lambda: (randn(2, 36000, dtype=HALF), randn(2, 36000, dtype=HALF))),
    Case("positions", lambda x: (torch.softmax(x, -1), x.argmax(-1), x.amax(-1)), lambda: (randn(2, 40000),)),
    Case("loss", lambda x: torch.logsumexp(x, -1).exp(), lambda: (randn(2, 40000) / 9,)),
    Case("two results", residual_norm, lambda: (randn(2, 40000), randn(2, 40000))),
]
COLUMNS = [
    Case("whole chunks", lambda x: x.sum(0), lambda: (randn(1024, 128, dtype=BRAIN),)),
    Case("chunks with a rest", lambda x: (x.sum(0), x.argmax(0)), lambda: (randn(1001, 130),), units=400),
    Case("two operands", lambda x, y: (x * y).sum(0) + 1, lambda: (randn(800, 64), randn(800, 64)), units=400),
    Case("middle", lambda x: x.amax(1), lambda: (randn(2, 1000, 64),)),
    Case("truth", lambda x: ((x > 3).any(0), (x > -9).all(0)), lambda: (randn(1500, 40),)),
]


@pytest.fixture(autouse=True)
def clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "has_clusters", lambda device: True)
    monkeypatch.setattr(target, "LIMITS", dataclasses.replace(target.LIMITS, few_rows=1))
    monkeypatch.setattr(tiles, "LARGE", 1 << 10)


def launches(plan: Plan) -> list[LaunchStep]:
    return [step for step in plan.steps if isinstance(step, LaunchStep)]


def shared_launch(plan: Plan) -> LaunchStep:
    (step,) = launches(plan)
    assert step.kernel.cluster in (2, 4, 8) and "wait_for_cluster()" in step.kernel.source
    return step


@pytest.mark.parametrize("case", [*ROWS, *COLUMNS], ids=str)
def test_like_eager(case: Case) -> None:
    inputs = case.make()
    plan = plan_graph(trace(case.fn, inputs))
    step = shared_launch(plan)
    (grid,) = step.grid
    assert isinstance(grid, int) and grid % step.kernel.cluster == 0
    with config.patch(triton_on_cpu=True):
        check(case, list(PythonExecutable(plan)(*inputs)), inputs)


@pytest.mark.parametrize("case", [ROWS[0], COLUMNS[0]], ids=str)
def test_machine_code(case: Case) -> None:
    """A row is read once, 16 bytes at a time; every wait is one of all threads."""
    step = shared_launch(plan_graph(trace(case.fn, case.make())))
    (binary,) = compile_kernels([step.kernel], Target("cuda", 90))
    waits = step.kernel.source.count("    wait_for_cluster()")
    assert binary.assembly.count("barrier.cluster.arrive.release.aligned") == waits
    assert binary.assembly.count("barrier.cluster.wait.acquire.aligned") == waits
    assert re.search(r"ld\.global\S*\.(v4\.b32|v2\.b64)", binary.assembly)


def test_rows_of_changing_number_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch memory has a known size."""
    found = []

    def printed(*args: Any) -> Program:
        found.append(programs.print_program(*args))
        return found[-1]

    monkeypatch.setattr(target, "print_program", printed)
    fn = jitpy.jit(lambda x: torch.log_softmax(x * 2, -1))
    with config.patch(triton_on_cpu=True):
        for rows in (2, 3):
            x = randn(rows, 20000)
            torch.testing.assert_close(fn(x), torch.log_softmax(x * 2, -1))
    jitpy.reset()
    assert [text.cluster > 1 for program in found for text in program.launches] == [True, False]


def test_candidates_stay_in_their_cluster() -> None:
    case = ROWS[0]
    inputs = case.make()
    (step,) = launches(plan_graph(trace(case.fn, inputs), tune=True))
    assert step.candidates and {kernel.cluster for kernel, _ in step.candidates} == {step.kernel.cluster}


BARRIERS = """
import triton
import triton.language as tl


@triton.jit
def wait_for_cluster():
    pass


@triton.jit
def chain(x, y, z):
    k = tl.program_id(0)
    tl.store(x + k, k * 10)
    wait_for_cluster()
    left = tl.load(x + (k + 1) % 4)
    tl.store(y + k, left)
    wait_for_cluster()
    tl.store(z + k, tl.load(y + (k + 1) % 4))
"""


def test_the_interpreter_keeps_to_barriers() -> None:
    """Each program sees what all of its cluster wrote in front of a barrier, programs behind it too."""
    kernel = GpuKernel(BARRIERS, "chain", (("x", "*i32"), ("y", "*i32"), ("z", "*i32")), cluster=4)
    x, y, z = (torch.full((4,), -1, dtype=torch.int32) for _ in range(3))
    with config.patch(triton_on_cpu=True):
        for _ in range(2):
            through_triton.launch(kernel, (4,), (x, y, z))
            assert y.tolist() == [10, 20, 30, 0] and z.tolist() == [20, 30, 0, 10]
