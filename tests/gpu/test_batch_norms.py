"""Batch norms by running statistics, folded into cuDNN's convolutions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitpy


class Block(nn.Module):
    """A residual block, whose shortcut is a convolution where channels change."""

    def __init__(self, before: int, inner: int, after: int, dilation: int = 1) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.two = nn.Conv2d(inner, after, 3, padding=dilation, dilation=dilation)
        self.norm2 = nn.BatchNorm2d(after, affine=before != after)
        self.shortcut = nn.Identity() if before == after else nn.Sequential(
            nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.one(x)))
        return F.relu(self.norm2(self.two(y)) + self.shortcut(x))


def trained(model: nn.Module, x: Tensor) -> nn.Module:
    """With statistics and parameters as after training."""
    model = model.to(x.device)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None
            if part.affine:
                nn.init.uniform_(part.weight, 0.5, 1.5)
                nn.init.normal_(part.bias, 0, 0.3)
    with torch.no_grad():
        model.train()(x)
    return model.eval()


def run(call: Any, x: Tensor) -> Tensor:
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        return call(x)


def kernels_of(call: Any, x: Tensor) -> str:
    said: list[str] = []
    sink = jitpy.logs.set_sink(said.append)
    jitpy.logs.enable("graph")
    try:
        run(call, x)
    finally:
        jitpy.logs.disable("graph")
        jitpy.logs.set_sink(sink)
    return "\n".join(said)


CASES = [(64, 32, 128, 1), (16, 8, 24, 2), (40, 24, 56, 1)]


@pytest.mark.parametrize(("before", "inner", "after", "dilation"), CASES)
def test_errors(before: int, inner: int, after: int, dilation: int, cuda: torch.device) -> None:
    """Not farther from float64 than eager is."""
    x = torch.randn(8, before, 28, 28, device=cuda)
    model = trained(Block(before, inner, after, dilation), x)
    jitted = jitpy.jit(model)
    assert kernels_of(jitted, x).count("in one call") == 2
    exact = _exactly(model, x)
    found, expected = run(jitted, x), run(model, x)
    assert found.stride() == expected.stride() and found.dtype is expected.dtype
    error, eagers = ((one.double() - exact).norm() / exact.norm() for one in (found, expected))
    assert error <= 1.05 * eagers


def _exactly(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return copy.deepcopy(model).double()(x.double())


def test_images_and_other_channels(cuda: torch.device) -> None:
    for channels in (3, 1, 5, 13):
        x = torch.randn(4, channels, 64, 64, device=cuda)
        model = trained(nn.Sequential(nn.Conv2d(channels, 32, 7, 2, 3), nn.BatchNorm2d(32), nn.ReLU(),
                                      nn.Conv2d(32, 32, 3), nn.BatchNorm2d(32), nn.ReLU()), x)
        exact = _exactly(model, x)
        error, eagers = ((run(call, x).double() - exact).norm() / exact.norm() for call in (jitpy.jit(model), model))
        assert error <= 1.05 * eagers


def test_what_is_not_finite(cuda: torch.device) -> None:
    x = torch.randn(2, 64, 16, 16, device=cuda)
    model = trained(Block(64, 32, 128), x)
    x[0, 3, 2, 5], x[1, 4, 7, 7] = float("nan"), float("inf")
    found, expected = run(jitpy.jit(model), x), run(model, x)
    assert torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_current_parameters(mode: str, cuda: torch.device) -> None:
    """Weights and statistics change between calls, in place and by training."""
    x = torch.randn(8, 64, 28, 28, device=cuda)
    model = trained(Block(64, 32, 128), x)
    jitted = jitpy.jit(model, mode=mode)
    for number in range(8):
        found, expected = run(jitted, x), run(model, x)
        assert (found - expected).abs().max() <= 0.05 * expected.abs().max()
        with torch.no_grad():
            if number % 2:
                model.two.weight.mul_(1.3)
                model.norm2.running_var.mul_(0.7)
                model.norm1.bias.add_(0.2)
            else:
                model.train()(x + number)
                model.eval()


def test_no_memory_is_read_that_nothing_wrote(cuda: torch.device) -> None:
    """cuDNN's call has a summand of weight zero, for which torch gives it the result's own memory."""
    x = torch.randn(8, 64, 28, 28, device=cuda)
    model = trained(nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()), x)
    jitted = jitpy.jit(model)
    for _ in range(5):
        waste = [torch.full((8, 64, 28, 28), float("nan"), device=cuda, dtype=torch.bfloat16) for _ in range(6)]
        del waste
        assert run(jitted, x).isfinite().all()


def test_training_keeps_its_batch_norms(cuda: torch.device) -> None:
    x = torch.randn(8, 64, 28, 28, device=cuda)
    model = trained(Block(64, 32, 128), x).train()
    jitted = jitpy.jit(model)
    grads = []
    for call in (model, jitted):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            call(x).float().square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-2 * one.abs().max().item() + 1e-4)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_of_gradients(cuda: torch.device, dtype: torch.dtype, autocast: bool) -> None:
    """By running statistics gradients of images in channels-last are row-major, as in eager."""
    norm = trained(nn.BatchNorm2d(8), torch.randn(4, 8, 6, 6, device=cuda))
    for function in (norm, lambda x: F.relu(norm(x * 2))):
        found = []
        for call in (function, jitpy.jit(function)):
            torch.manual_seed(0)
            x = torch.randn(4, 8, 6, 6, device=cuda, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                out = call(x)
            found.append((out, torch.autograd.grad(out.float().square().sum(), x)[0]))
        for theirs, ours in zip(*found, strict=True):
            assert ours.stride() == theirs.stride()
            torch.testing.assert_close(ours.float(), theirs.float(), rtol=2e-2, atol=2e-2)
