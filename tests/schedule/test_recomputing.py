"""What is computed again where it is read, and what is stored."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends.cpp import plan_graph
from jitpy.backends.cpp.target import CppTarget
from jitpy.backends.planner import Planner
from jitpy.runtime.executable import make_executable
from jitpy.runtime.plan import KernelStep
from tests.graph_tools import trace


@pytest.mark.parametrize(("window", "stride", "kernels"), [(3, 2, 2), (2, 2, 1), (1, 2, 1)])
def test_windows_that_read_elements_again(window: int, stride: int, kernels: int) -> None:
    """What a pooling reads is stored where its windows overlap, and take elements several times."""

    def program(x, scale):
        return F.max_pool2d(torch.tanh(x * scale).relu(), window, stride)

    tensors = [torch.randn(2, 8, 32, 32), torch.randn(8, 1, 1)]
    plan = plan_graph(trace(program, tensors))
    assert sum(isinstance(step, KernelStep) for step in plan.steps) == kernels
    torch.testing.assert_close(make_executable(plan)(*tensors)[0], program(*tensors))


def scan(gates: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`h[i] = gates[i] * h[i - 1] + x[i]` along the first axis by halving, as state-space models write it."""
    if len(x) == 1:
        return gates, x
    pairs = gates[:-1:2] * gates[1::2], x[1::2] + gates[1::2] * x[:-1:2]
    odd_gates, odd = scan(*pairs)
    even_gates, even = odd_gates[:-1] * gates[2::2], x[2::2] + gates[2::2] * odd[:-1]
    return (torch.stack([torch.cat([gates[:1], even_gates]), odd_gates], 1).flatten(0, 1),
            torch.stack([torch.cat([x[:1], even]), odd], 1).flatten(0, 1))


def test_halves_of_halves_are_stored() -> None:
    """Each level is read at two places by the next. Computing all of them again where the last is read would take work
    that grows with the length for each element, not with its logarithm."""
    def largest(length: int) -> int:
        tensors = [torch.rand(length, 512), torch.randn(length, 512)]
        graph = trace(lambda gates, x: scan(gates, x)[1], tensors)
        torch.testing.assert_close(make_executable(plan_graph(graph))(*tensors)[0], scan(*tensors)[1])
        return max(text.count("const float t") for text in Planner(graph, CppTarget()).text().split("static void"))

    assert largest(64) < 4 * largest(16)
