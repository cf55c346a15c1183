"""Kernels of every family compiled to machine code, for an NVIDIA and an AMD GPU: neither is needed for that."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends.triton import plan_graph
from jitpy.ir.graph import Mutation
from jitpy.runtime.gpu.compile import Binary, Target, compile_kernels
from jitpy.runtime.plan import LaunchStep
from tests.graph_tools import trace
from tests.triton.cases import CASES

pytest.importorskip("triton")
#: Every kind of kernel, by cases that lead to it.
FAMILIES = {
    "pointwise": ["gelu_bf16", "modulo", "zero_dim_operand"],
    "types": ["int8", "bool", "double", "casts"],
    "batches": ["many_conversions", "many_updates"],
    "layouts": ["transposed_bf16", "cat", "pad", "channels_last"],
    "computed places": ["embedding", "gather"],
    "additions at computed places": ["embedding_gradient", "index_put"],
    "rows": ["softmax_bf16", "layer_norm_bf16", "cross_entropy", "var"],
    "held rows": ["softmax_held_fp16", "layer_norm_held_bf16", "group_norm_held"],
    "long rows": ["softmax_long", "layer_norm_long", "rows_that_start_anywhere"],
    "positions": ["argmax_of_long_rows", "argmax_bf16", "argmin_of_columns"],
    "columns": ["column_sum", "column_softmax_long", "layer_norm_gradient"],
    "shared reductions": ["column_sum_tall", "column_arg_tall", "full_sum", "full_any"],
    "scans": ["cumsum_long", "cumsum_of_columns", "cumprod"],
    "shared scans": ["cumprod_shared", "cumsum_shared_columns"],
}
TARGETS = {"sm_90": Target("cuda", 90), "gfx942": Target("hip", "gfx942", 64)}
BY_NAME = {case.name: case for case in CASES}


def compiled(names: Iterable[str], target: Target) -> list[Binary]:
    """The kernels of these cases as machine code."""
    kernels = {}
    for name in names:
        plan = plan_graph(trace(BY_NAME[name].fn, BY_NAME[name].make()))
        kernels.update((step.kernel, None) for step in plan.steps if isinstance(step, LaunchStep))
    return compile_kernels(list(kernels), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, target: str) -> None:
    """One case of each by default."""
    for binary in compiled(FAMILIES[family][:1], TARGETS[target]):
        assert binary.code[:4] == b"\x7fELF"


@pytest.mark.skipif(os.environ.get("JITPY_TEST_ALL") != "1", reason="a minute or two: JITPY_TEST_ALL=1 compiles all")
@pytest.mark.parametrize("target", TARGETS)
def test_every_case(target: str) -> None:
    binaries = compiled(BY_NAME, TARGETS[target])
    assert len(binaries) > 200 and all(binary.code[:4] == b"\x7fELF" for binary in binaries)


@pytest.mark.parametrize(("case", "loads"), [("softmax_held_fp16", 6), ("group_norm_held", 8)])
def test_held_rows_are_read_once(case: str, loads: int) -> None:
    """A thread's part of the row, 16 bytes at a time, whatever is computed from it."""
    (binary,) = compiled([case], TARGETS["sm_90"])
    assert len(re.findall(r"ld\.global\S*\.(v4\.b32|v2\.b64)", binary.assembly)) == loads


def test_launches_begin_early() -> None:
    """Where the GPU lets them, while the ones in front of them end, but for a plan's first; each waits before it
    touches memory."""
    for name in ("column_sum_tall", "full_sum", "cumsum_shared", "softmax_held_fp16"):
        for target, can in ((Target("cuda", 90), True), (Target("cuda", 80), False), (TARGETS["gfx942"], False)):
            for number, binary in enumerate(compiled([name], target)):
                assert binary.overlaps == (can and number > 0)
                assert ("griddepcontrol.launch_dependents" in binary.assembly) == can
                wait, load, store = (binary.assembly.find(text) for text in
                                     ("griddepcontrol.wait", "ld.global", "st.global"))
                assert (wait > 0 and all(wait < at for at in (load, store) if at > 0)) if can else wait == -1


def test_weights_are_read_before_results() -> None:
    """Loads of inputs that the graph does not write to are on their way while the launch in front still runs."""
    inputs = [torch.randn(shape).bfloat16() for shape in ((1, 64), (128, 64), (128, 64))]
    graph = trace(lambda x, w, v: (F.linear(x * 2, w) + F.linear(x * 3, v), v * 2), inputs)
    graph.mutations = [Mutation(2, graph.outputs.pop())]
    plan = plan_graph(graph, products="all")
    kernels = [step.kernel for step in plan.steps if isinstance(step, LaunchStep)]
    (text,) = [kernel.source for kernel in kernels if "tl.reduce" in kernel.source]
    body = text[text.rindex("let_next_begin()"):]
    before, after = body.split("await_results()")
    assert [kernel.overlaps for kernel in kernels] == [False] + [True] * (len(kernels) - 1)
    assert before.count("tl.load") == 1 and after.count("tl.load") == 3


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


@pytest.mark.parametrize(("depth", "warps"), [(512, 2), (2048, 8), (5632, 16), (16384, 32)])
def test_threads_of_products_of_a_row(depth: int, warps: int) -> None:
    """A wide load for each, and two of long rows."""
    inputs = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((1, depth), (2048, depth))]
    plan = plan_graph(trace(F.linear, inputs), products="all")
    (kernel,) = (step.kernel for step in plan.steps if isinstance(step, LaunchStep))
    assert kernel.num_warps == warps
