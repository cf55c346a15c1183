"""Linear layers with activations, which the library applies where it can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitpy


@pytest.mark.parametrize("shape", [(512, 256), (4, 128, 256)])
def test_relu_is_eagers(shape: tuple[int, ...], cuda: torch.device) -> None:
    x = torch.randn(shape, device=cuda, dtype=torch.bfloat16)
    w, b = (torch.randn(s, device=cuda, dtype=torch.bfloat16) for s in ((512, 256), (512,)))
    x.view(-1, 256)[3, 5] = float("nan")

    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.relu(F.linear(x, w, b))

    with torch.no_grad():
        torch.testing.assert_close(jitpy.jit(fn)(x, w, b), fn(x, w, b), rtol=1e-2, atol=1e-2, equal_nan=True)


@pytest.mark.parametrize("activation", [F.relu, lambda y: F.gelu(y, approximate="tanh")], ids=["relu", "gelu"])
def test_errors_and_gradients(activation: Callable[[Tensor], Tensor], cuda: torch.device) -> None:
    x, w, b = (torch.randn(s, device=cuda, dtype=torch.bfloat16) * 0.3 for s in ((256, 512), (1024, 512), (1024,)))
    inputs = [x.requires_grad_(), w.requires_grad_(), b.requires_grad_()]

    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return activation(F.linear(x, w, b))

    with torch.no_grad():
        exact = fn(*(one.double() for one in inputs))
        errors = [(call(*inputs) - exact).norm().item() for call in (fn, jitpy.jit(fn))]
    assert errors[1] <= 1.05 * errors[0]
    grads = [torch.autograd.grad(call(*inputs).float().square().sum(), inputs) for call in (fn, jitpy.jit(fn))]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2 * other.abs().max().item())
