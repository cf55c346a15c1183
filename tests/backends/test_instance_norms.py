"""Instance norms are kernels of ours: batch norms by the statistics of the batch, without running ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import jitpy
from jitpy import config

MODULES = {
    "1 axis": (lambda: nn.InstanceNorm1d(3), (2, 3, 50)),
    "2 axes": (lambda: nn.InstanceNorm2d(3), (2, 3, 9, 7)),
    "3 axes": (lambda: nn.InstanceNorm3d(4, affine=True), (2, 4, 5, 6, 7)),
    "with parameters": (lambda: nn.InstanceNorm2d(3, affine=True), (2, 3, 9, 7)),
    "running statistics in training": (lambda: nn.InstanceNorm2d(3, track_running_stats=True), (2, 3, 9, 7)),
}


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm().detach() / exact.norm().detach())


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", MODULES)
def test_as_exact_as_eager(name: str, dtype: torch.dtype, triton: bool) -> None:
    make, shape = MODULES[name]
    module = make().to(dtype)
    x = torch.randn(shape).to(dtype) + 3
    exact = copy.deepcopy(module).double()(x.double())
    with torch.no_grad(), config.patch(triton_on_cpu=triton):
        jitted = jitpy.jit(copy.deepcopy(module))
        found = jitted(x)
        assert not jitpy.explain(module)(x).left_to_eager
        expected = module(x)
    assert found.stride() == expected.stride() and found.dtype is expected.dtype
    assert distance(found, exact) <= distance(expected, exact) + 4 * torch.finfo(dtype).eps


def test_gradients() -> None:
    module = nn.InstanceNorm2d(3, affine=True)
    mine = copy.deepcopy(module)
    x = torch.randn(2, 3, 9, 7)
    results = []
    for run, own in ((module, module), (jitpy.jit(mine), mine)):
        leaf = x.clone().requires_grad_()
        run(leaf).square().sum().backward()
        results.append((leaf.grad, own.weight.grad, own.bias.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
