"""A sample of kernels compiled to machine code, for an NVIDIA and an AMD GPU: neither is needed for that."""

from __future__ import annotations

import re

import pytest
import torch

from jitpy.backends.triton import plan_graph
from jitpy.runtime.gpu.compile import Target, compile_kernels
from jitpy.runtime.plan import LaunchStep
from tests.graph_tools import trace
from tests.triton.cases import CASES

pytest.importorskip("triton")
SAMPLE = [
    "gelu_bf16", "modulo", "int8", "bool", "transposed_bf16", "embedding", "softmax_bf16", "softmax_long",
    "column_sum_tall", "column_arg_tall", "cumsum_long", "embedding_gradient", "rows_that_start_anywhere",
    "many_conversions", "many_updates",
]  # fmt: skip


@pytest.mark.parametrize("target", [Target("cuda", 90), Target("hip", "gfx942", 64)], ids=["sm_90", "gfx942"])
def test_machine_code(target: Target) -> None:
    kernels = {}
    for case in CASES:
        if case.name in SAMPLE:
            plan = plan_graph(trace(case.fn, case.make()))
            kernels.update((step.kernel, None) for step in plan.steps if isinstance(step, LaunchStep))
    for binary in compile_kernels(list(kernels), target):
        assert binary.code[:4] == b"\x7fELF"


def test_wide_loads() -> None:
    """Rows of bfloat16 are read 16 bytes at a time."""
    plan = plan_graph(trace(lambda x: torch.softmax(x, -1), [torch.randn(64, 2048).bfloat16()]))
    kernel = next(step.kernel for step in plan.steps if isinstance(step, LaunchStep))
    (binary,) = compile_kernels([kernel], Target("cuda", 90))
    assert re.search(r"ld\.global\S*\.(v4\.b32|v2\.b64)", binary.assembly)


def test_wide_loads_of_rows_that_start_anywhere() -> None:
    """Those whose length is odd are read 8 bytes at a time, but for their ends."""
    logits = torch.empty(4096, 50257, dtype=torch.bfloat16, device="meta")
    plan = plan_graph(trace(lambda x: torch.logsumexp(x, -1), [logits]))
    kernel = next(step.kernel for step in plan.steps if isinstance(step, LaunchStep))
    (binary,) = compile_kernels([kernel], Target("cuda", 90))
    assert re.search(r"ld\.global\S*\.(v4\.b32|v2\.b64|v2\.b32)", binary.assembly)


def test_wide_loads_from_many_tensors() -> None:
    """Which tensor a program reads is chosen, and how it is read is known all the same."""
    plan = plan_graph(trace(lambda *ps: tuple(p.bfloat16() for p in ps), [torch.randn(512 * n) for n in range(1, 6)]))
    (step,) = [step for step in plan.steps if isinstance(step, LaunchStep)]
    (binary,) = compile_kernels([step.kernel], Target("cuda", 90))
    assert "ld.global.v4.b32" in binary.assembly
