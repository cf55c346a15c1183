"""Backward passes through complex numbers inside the jitted function: gradients are torch's, in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

Loss = Callable[[torch.Tensor], torch.Tensor]


def product(x):
    z = x * (1 + 2j)
    return (z * z).abs().sum()


def quotient(x):
    z = torch.complex(x, x.roll(1, 0) + 2)
    return (z / (z.conj() + (0.5 - 1j)) - x).abs().pow(2).sum()


def power_spectrum(x):
    return (torch.fft.rfft(x).abs() ** 2).sum()


def spectral_convolution(x):
    spectrum = torch.fft.rfft2(x, norm="ortho")
    weight = torch.arange(spectrum.numel()).reshape(spectrum.shape) * (0.1 + 1j)
    return (torch.fft.irfft2(spectrum * weight, s=x.shape[-2:]) - x).pow(2).mean()


def odd_sizes(x):
    return torch.fft.irfftn(torch.fft.rfftn(x[:3, :5]) ** 2, s=(3, 5)).pow(3).sum()


def windows(x):
    spectrum = torch.stft(x.flatten(), 8, 4, window=torch.hann_window(8, dtype=x.dtype), return_complex=True)
    return torch.log(spectrum.abs() + 1e-3).sum() + torch.view_as_real(spectrum).pow(2).sum()


def rotary(x):
    pairs = torch.view_as_complex(x.reshape(-1, 3, 2))
    turns = torch.polar(torch.ones(3, dtype=x.dtype), torch.arange(3, dtype=x.dtype))
    return torch.view_as_real(pairs * turns).flatten().pow(3).sum()


def parts(x):
    spectrum = torch.fft.fft(x)
    return (spectrum.real**2 + spectrum.imag * spectrum.angle()).sum() + (spectrum.conj() * spectrum).real.sum()


def correlation(x):
    query, key = torch.fft.rfft(x, dim=0), torch.fft.rfft(x * 2, dim=0)
    return torch.fft.irfft(query * torch.conj(key), dim=0, n=4).softmax(0).pow(2).sum()


def both_sides(x):
    spectrum = torch.stft(x.flatten(), 8, 4, window=torch.ones(8, dtype=x.dtype), onesided=False, return_complex=True)
    return spectrum.abs().pow(2).sum()


def joined(x):
    z = torch.cat([torch.fft.fft(x), x[:1] * 1j])
    return (torch.stack([z.real, z.imag]).transpose(0, 1) * 3).pow(2).sum() + z[1:3].flip(0).abs().sum()


def matrices(x):
    z = torch.complex(x @ x.t(), torch.eye(4, dtype=x.dtype))
    return (z @ z.mH).real.sum() + torch.linalg.norm(z)


LOSSES = [product, quotient, power_spectrum, spectral_convolution, odd_sizes, windows, rotary, parts, correlation,
          both_sides, joined, matrices]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_gradients_of_a_captured_step(loss: Loss, backend: str) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()

    def step(x):
        value = loss(x)
        value.backward()
        return value

    expected = step(x)
    gradient, x.grad = x.grad, None
    jitted = jitpy.jit(step, backend=backend, fullgraph=True)
    for _ in range(2):
        x.grad = None
        torch.testing.assert_close(jitted(x), expected)
        torch.testing.assert_close(x.grad, gradient)
        assert x.grad.stride() == gradient.stride()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("loss", [power_spectrum, spectral_convolution, correlation], ids=lambda loss: loss.__name__)
def test_gradients_of_gradients(loss: Loss, backend: str) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()

    def step(x):
        (slope,) = torch.autograd.grad(loss(x), x, create_graph=True)
        return torch.autograd.grad((slope * slope).sum(), x)[0]

    torch.testing.assert_close(jitpy.jit(step, backend=backend)(x), step(x))


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_complex_parameters(backend: str) -> None:
    """A Fourier layer with complex weights, trained for some steps."""

    def trained(jit: Callable[..., Callable[..., torch.Tensor]]) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(5)
        weight = torch.randn(4, dtype=torch.complex128, generator=generator).requires_grad_()
        x = torch.randn(3, 6, dtype=torch.float64, generator=generator)

        def step():
            loss = (torch.fft.irfft(torch.fft.rfft(x) * weight, n=6) - x).pow(2).sum()
            loss.backward()
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=0.01)
            weight.grad = None
            return loss.detach()

        run = jit(step)
        return [run() for _ in range(4)] + [weight.detach()]

    found = trained(lambda step: jitpy.jit(step, backend=backend))
    torch.testing.assert_close(found, trained(lambda step: step))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("fn", [torch.fft.hfft, torch.fft.hfft2, torch.fft.hfftn])
def test_transforms_of_a_pending_conjugation(fn: Any, dtype: torch.dtype) -> None:
    """Kernels get a copy that autograd does not see."""

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = fn(x * 2)
        (gradient,) = torch.autograd.grad((y * torch.arange(y.numel()).reshape(y.shape)).sum(), x)
        return gradient

    x = torch.randn(3, 7, dtype=dtype)
    with jitpy.config.patch(raise_errors=True):
        torch.testing.assert_close(jitpy.jit(step)(x), step(x))
