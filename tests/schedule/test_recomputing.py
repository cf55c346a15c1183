"""What is computed again where it is read, and what is stored."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends.cpp import plan_graph
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
