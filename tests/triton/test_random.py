"""Kernels that draw numbers, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from jitpy import config
from jitpy.backends.triton import plan_graph
from jitpy.ir import ops
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph, Node
from jitpy.ir.ops.philox import DRAWN, MASK, MASKED, NORMAL, UNIFORM, Streams, kept_share, streams_of
from jitpy.ir.spec import contiguous_stride
from jitpy.runtime.executable import PythonExecutable
from jitpy.runtime.gpu.compile import Target, compile_kernels
from jitpy.runtime.plan import CallStep, LaunchStep, Plan
from tests.graph_tools import trace

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _interpreted() -> Iterator[None]:
    with config.patch(triton_on_cpu=True):
        yield


def dropped(shape: tuple[int, ...], probability: float, dtype: torch.dtype, streams: Streams, skipped: int = 0,
            normed: bool = False) -> tuple[Graph, list[torch.Tensor]]:
    """x * 2, dropped by a state, plus itself, normed or not; and the mask."""
    inputs = [torch.randn(shape).to(dtype), torch.tensor([-(1 << 62) + 99, (1 << 34) + 8])]
    graph = trace(lambda x, state: (x * 2, state), inputs)
    b = Builder(graph)
    x: Node = graph.outputs[0]
    mask = b.call(MASK, graph.inputs[1], shape, contiguous_stride(shape), kept_share(probability), streams.threads,
                  streams.vector, skipped)
    result = b.call("aten.add.Tensor", b.call(MASKED, x, mask, probability), x)
    if normed:
        result = b.call("aten.softmax.int", result, -1)
    graph.outputs[:] = [result, mask]
    return graph, inputs


def expected(inputs: list[torch.Tensor], probability: float, streams: Streams, skipped: int,
             normed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    x, state = inputs
    mask = ops.get(MASK).target(state, tuple(x.shape), x.stride(), kept_share(probability), streams.threads,
                                streams.vector, skipped)
    result = ops.get(MASKED).target(x * 2, mask, probability) + x * 2
    return (torch.softmax(result, -1) if normed else result), mask


def launches(plan: Plan) -> list[LaunchStep]:
    assert not any(isinstance(step, CallStep) for step in plan.steps)
    return [step for step in plan.steps if isinstance(step, LaunchStep)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("shape", "blocks"), [
    ((40, 96), 1), ((40, 96), 1000), ((3, 5, 7), 1), ((33, 6), 1), ((9, 1), 1000), ((1,), 8), ((2, 4100), 2)])
def test_masks(shape: tuple[int, ...], blocks: int, normed: bool) -> None:
    streams = streams_of(torch.Size(shape).numel(), 8, blocks)
    graph, inputs = dropped(shape, 0.3, torch.float32, streams, 12, normed)
    plan = plan_graph(graph)
    assert len(launches(plan)) == 1
    result, mask = PythonExecutable(plan)(*inputs)
    wanted = expected(inputs, 0.3, streams, 12, normed)
    assert torch.equal(mask, wanted[1])
    torch.testing.assert_close(result, wanted[0], rtol=1e-5 if normed else 0, atol=1e-5 if normed else 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("shape", "blocks"), [((33, 130), 1), ((7, 5), 1056), ((2, 4100), 2)])
@pytest.mark.parametrize(("kind", "scale", "shift"), [(UNIFORM, 1.0, 0.0), (UNIFORM, 3.5, -1.25), (NORMAL, 2.0, 0.5)])
def test_random_tensors(kind: str, scale: float, shift: float, shape: tuple[int, ...], blocks: int,
                        dtype: torch.dtype) -> None:
    """In the order of memory, rounded before they are used."""
    rows, columns = shape
    inputs = [torch.randn(shape).to(dtype), torch.tensor([-(1 << 62) + 99, (1 << 34) + 8])]
    graph = trace(lambda x, state: (x * 2, state), inputs)
    streams = streams_of(rows * columns, 1, blocks)
    b = Builder(graph)
    args = (shape, (1, rows), dtype, kind, scale, shift, streams.threads, 12)
    drawn_node = b.call(DRAWN, graph.inputs[1], *args)
    graph.outputs[:] = [b.call("aten.add.Tensor", drawn_node, graph.outputs[0]), drawn_node]
    plan = plan_graph(graph)
    assert all("drawn_" in step.kernel.source for step in launches(plan))
    result, numbers = PythonExecutable(plan)(*inputs)
    wanted = ops.get(DRAWN).target(inputs[1], *args)
    near = 3e-6 if dtype is torch.float32 else 4e-3 if dtype is torch.bfloat16 else 5e-4
    exact = kind == UNIFORM and scale == 1.0  # eager's kernels on CPUs may multiply and add in one step
    torch.testing.assert_close(numbers, wanted, rtol=0 if exact else near, atol=0 if exact else 1e-6)
    torch.testing.assert_close(result, wanted + inputs[0] * 2, rtol=2 * near, atol=1e-5)
    for step in launches(plan) if shape == (7, 5) else ():
        for target in (Target("cuda", 90), *([Target("hip", "gfx942", 64)] if exact else [])):  # the other has no sin
            assert compile_kernels([step.kernel], target)[0].code[:4] == b"\x7fELF"


@pytest.mark.parametrize("target", [Target("cuda", 90), Target("hip", "gfx942", 64)])
def test_neighbours_share_their_call(target: Target) -> None:
    """A call is ten rounds with two products each."""
    shape = (4096, 1024)
    plan = plan_graph(dropped(shape, 0.1, torch.bfloat16, streams_of(1 << 22, 8, 1056))[0])
    (step,) = launches(plan)
    (binary,) = compile_kernels([step.kernel], target)
    assert binary.code[:4] == b"\x7fELF"
    if target.backend == "cuda":
        elements = shape[0] * shape[1] // (step.grid[0] * step.kernel.num_warps * 32)
        assert elements >= 8
        assert binary.assembly.count("mul.wide.u32") <= elements // 4 * 20
