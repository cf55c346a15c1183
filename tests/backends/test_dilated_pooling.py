"""Maxima over windows with gaps: values, positions and gradients are eager's."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy import config
from jitpy.backends.triton import plan_graph
from jitpy.runtime.executable import PythonExecutable
from tests.graph_tools import trace


def special(*shape: int) -> torch.Tensor:
    """Equal numbers, NaN and infinities at the borders."""
    x = torch.randn(shape).round()
    x[..., 0], x[..., 3:9], x.flatten()[-2:] = float("-inf"), float("-inf"), float("nan")
    return x


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [
    (3, 1, 0, 2), (3, 2, 1, 2), (2, 1, 1, 3), ((3, 2), (2, 1), (1, 0), (3, 1)), (4, 3, 2, 1), (3, 2, 1, 4)])
def test_positions(kernel: object, stride: object, padding: object, dilation: object, triton: bool) -> None:
    for x, ceil in itertools.product((special(2, 3, 13, 17), torch.randn(2, 3, 12, 16)), (False, True)):
        def program(x: torch.Tensor, ceil: bool = ceil) -> tuple[torch.Tensor, torch.Tensor]:
            return F.max_pool2d(x, kernel, stride, padding, dilation, ceil, True)  # type: ignore[arg-type]

        expected = program(x)
        if triton:
            plan = plan_graph(trace(program, (x,)))
            assert plan.notes is not None and not plan.notes.eager
            with config.patch(triton_on_cpu=True):
                found = PythonExecutable(plan)(x)
        else:
            with torch.no_grad():
                found = jitpy.jit(program)(x)
        for one, wanted in zip(found, expected, strict=True):
            assert torch.equal(one.nan_to_num(), wanted.nan_to_num()) and torch.equal(one.isnan(), wanted.isnan())


def test_one_axis_and_its_gradient() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool1d(x, 8, 1, 4, 3) * 2

    x = torch.randn(2, 3, 64)
    torch.testing.assert_close(jitpy.jit(program)(x), program(x))
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    for run, leaf in zip((program, jitpy.jit(program)), leaves, strict=True):
        run(leaf).square().sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
