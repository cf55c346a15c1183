"""Columns of large matrices: programs take chunks in turn, and each group of their threads leaves a result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from jitpy import config
from jitpy.backends.triton import plan_graph, tiles
from jitpy.runtime.executable import PythonExecutable
from jitpy.runtime.gpu.compile import Target, compile_kernels
from jitpy.runtime.plan import LaunchStep
from tests.graph_tools import trace
from tests.triton.cases import BF16, Case, randn
from tests.triton.test_interpreted import check

pytest.importorskip("triton")
CASES = [
    Case("sum", lambda x: x.sum(0), lambda: (randn(4096, 128, dtype=BF16),)),
    Case("sum_and_largest", lambda x: (x.sum(0), x.amax(0)), lambda: (randn(3000, 200),), units=30),
    Case("place_of_largest", lambda x: x.round().argmax(0), lambda: (randn(3001, 70),), exact=True),
    Case("bias_gradient", lambda g, y: ((g * y).sum(0), g.sum(0) * 2),
         lambda: (randn(4096, 72, dtype=BF16), randn(4096, 72, dtype=BF16))),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_like_eager(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "LARGE", 1 << 10)
    inputs = case.make()
    plan = plan_graph(trace(case.fn, inputs))
    first, _ = (step.kernel for step in plan.steps if isinstance(step, LaunchStep))
    assert "tl.reshape(" in first.source
    with config.patch(triton_on_cpu=True):
        check(case, list(PythonExecutable(plan)(*inputs)), inputs)


def test_threads_do_not_wait_for_each_other() -> None:
    x = torch.empty(16384, 4096, dtype=BF16, device="meta")
    plan = plan_graph(trace(lambda x: x.sum(0), [x]))
    first, _ = compile_kernels([step.kernel for step in plan.steps if isinstance(step, LaunchStep)], Target("cuda", 90))
    assert "bar.sync" not in first.assembly
    assert "ld.global.L1::evict_first.L2::cache_hint.v4.b32" in first.assembly


def test_windows_are_read_along_the_rows_that_they_lie_in() -> None:
    """Elements of windows that share a cache line belong to one program, not those of other images."""
    x = torch.empty(128, 8, 64, 64, device="meta")
    plan = plan_graph(trace(lambda x: torch.nn.functional.avg_pool2d(x, 4).sigmoid().sum((1, 2, 3)), [x]))
    assert plan.notes is not None and [kernel.style for kernel in plan.notes.kernels] == ["rows"]


@pytest.mark.parametrize("fn", [lambda x: x.sum(1), lambda x: x.argmax(1), lambda x: x - x.mean(1, keepdim=True)])
def test_programs_have_columns_of_one_matrix(fn: Callable[[torch.Tensor], torch.Tensor],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """Where columns are no multiple of a program's, remainders would hide that its neighbours lie together."""
    monkeypatch.setattr(tiles, "ENOUGH_PROGRAMS", 4)
    x = randn(2, 300, 1027)
    plan = plan_graph(trace(fn, [x]))
    first = next(step.kernel for step in plan.steps if isinstance(step, LaunchStep))
    assert "    y = " in first.source and "% 1027" not in first.source
    with config.patch(triton_on_cpu=True):
        (found,) = PythonExecutable(plan)(x)
    torch.testing.assert_close(found, fn(x), rtol=1e-4, atol=1e-5)
