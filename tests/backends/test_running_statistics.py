"""Batch norm by the running statistics: one kernel with what follows, in every dtype that eager takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy

KINDS = [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.float16, torch.float32),
         (torch.bfloat16, torch.bfloat16), (torch.float64, torch.float64)]


def normaliser(dtype: torch.dtype, affine: bool = True) -> nn.BatchNorm2d:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6, affine=affine).eval()
    for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
        tensor.data.uniform_(0.5, 2.0)
    return norm.to(dtype)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype, kept", KINDS)
def test_inference(dtype: torch.dtype, kept: torch.dtype, affine: bool) -> None:
    norm = normaliser(kept, affine)

    def block(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(norm(x) + y)

    x, y = (torch.randn(3, 6, 5, 4).to(dtype) for _ in range(2))
    with torch.no_grad():
        report = jitpy.explain(block)(x, y)
        found, expected = jitpy.jit(block)(x, y), block(x, y)
    assert len(report.kernels) <= 2, "one, and one for the scale of each channel"
    assert found.dtype is dtype and found.stride() == expected.stride()
    half = dtype.itemsize == 2
    torch.testing.assert_close(found, expected, rtol=2e-2 if half else 1e-5, atol=2e-2 if half else 1e-5)


@pytest.mark.parametrize("dtype, kept", KINDS)
def test_gradients(dtype: torch.dtype, kept: torch.dtype) -> None:
    norm = normaliser(kept)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(norm(x)).float().square().sum()

    x = torch.randn(3, 6, 5, 4).to(dtype).requires_grad_()
    wanted = (x, norm.weight, norm.bias)
    for found, expected in zip(torch.autograd.grad(jitpy.jit(loss)(x), wanted), torch.autograd.grad(loss(x), wanted),
                               strict=True):
        assert found.dtype is expected.dtype
        torch.testing.assert_close(found, expected, rtol=2e-2 if dtype.itemsize == 2 else 1e-4, atol=1e-2)


LAYOUTS = {
    "rows": lambda: torch.randn(5, 6, 7),
    "other axis": lambda: torch.randn(5, 7, 6).transpose(1, 2),
    "channels last": lambda: torch.randn(3, 6, 4, 4).to(memory_format=torch.channels_last),
    "channels last of volumes": lambda: torch.randn(2, 6, 2, 3, 2).to(memory_format=torch.channels_last_3d),
    "batches inside": lambda: torch.randn(4, 6, 3, 4).transpose(0, 2),
    "columns": lambda: torch.randn(6, 8).t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype, kept", [*KINDS, (torch.float16, torch.float16)])
def test_training_in_any_layout(dtype: torch.dtype, kept: torch.dtype, layout: str) -> None:
    def step(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        y = nn.functional.batch_norm(x, mean, var, weight, bias, training=True)
        return y.detach(), torch.autograd.grad((y.float() * x.float()).sum(), x)[0], mean, var

    def run(fn: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        return fn(LAYOUTS[layout]().to(dtype), *(torch.rand(6).to(kept) + 0.5 for _ in range(4)))

    tolerance = 2e-2 if dtype.itemsize == 2 else 1e-4
    for found, expected in zip(run(jitpy.jit(step)), run(step), strict=True):
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("number", [torch.tensor(2.7), torch.tensor(-3), torch.tensor(True), torch.tensor(float("nan")),
                                    torch.tensor(1.5, dtype=torch.bfloat16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_fill_with_a_number_in_a_tensor(number: torch.Tensor, dtype: torch.dtype) -> None:
    if not dtype.is_floating_point and (number.isnan() or dtype is torch.uint8 and number < 0):
        pytest.skip("what such a conversion gives is undefined")

    def fill(x: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.zeros(4, 5, dtype=dtype)
        y[:, 0] = number
        return y.t().clone(memory_format=torch.contiguous_format) * 2, x.fill_(number)

    x, other = torch.zeros(3, 2, dtype=dtype).t(), torch.zeros(3, 2, dtype=dtype).t()
    for found, expected in zip(jitpy.jit(fill)(x, number), fill(other, number), strict=True):
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(x, other, equal_nan=True)
