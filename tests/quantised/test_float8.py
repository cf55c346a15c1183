"""Floats of 8 bits in kernels on the CPU: every number, to the bit."""

from __future__ import annotations

import pytest
import torch

import jitpy

DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2]


def all_numbers(dtype):
    return torch.arange(256).to(torch.uint8).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_is_read(dtype):
    def fn(x):
        return x.to(torch.float32) * 2.0

    x = all_numbers(dtype)
    assert not jitpy.explain(fn)(x).frames[0].eager
    got, want = jitpy.jit(fn)(x), fn(x)
    assert torch.equal(got.view(torch.int32)[~want.isnan()], want.view(torch.int32)[~want.isnan()])
    assert torch.equal(got.isnan(), want.isnan())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_is_rounded_to(dtype):
    """Numbers of 8 bits, their neighbours and what lies half-way between them."""
    def fn(x):
        y = (x * 1.0).to(dtype)
        return y, y.to(torch.float32) + 0.5

    exact = all_numbers(dtype).float()
    exact = exact[exact.isfinite()].sort()[0]
    middle = (exact[1:] + exact[:-1]) / 2
    x = torch.cat([exact, middle, exact * 1.0001, torch.tensor([
        1e9, -1e9, float("inf"), -float("inf"), float("nan"), 463.9, 464.0, 464.1, 480.0, 61439.0, 61440.0, 1e-9,
        -0.0])])
    for step in (-1, 1):
        x = torch.cat([x, torch.nextafter(middle, torch.full_like(middle, step * 1e9))])
    (got, wide), (want, wanted) = jitpy.jit(fn)(x), fn(x)
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    torch.testing.assert_close(wide, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_converted_in_one_kernel(dtype):
    def fn(x, w, scale):
        return x @ (w.t().to(torch.float32) * scale)

    torch.manual_seed(0)
    given = torch.randn(4, 64), torch.randn(32, 64).to(dtype), torch.rand(32)
    torch.testing.assert_close(jitpy.jit(fn)(*given), fn(*given))
    kernels = [str(kernel) for kernel in jitpy.explain(fn)(*given).frames[0].eager]
    assert not any("_to_copy" in kernel for kernel in kernels), kernels


@pytest.mark.parametrize("fn", [
    lambda x: x.t().contiguous(),
    lambda x: x.reshape(-1).clone(),
    lambda x: (x.float() + 1).to(x.dtype).t(),
    lambda x: x[1:].to(torch.bfloat16),
    lambda x: torch.cat([x, x]).float(),
    lambda x: x.to(torch.float64).sum(),
    lambda x: x.to(torch.float16).to(torch.float8_e5m2),
    lambda x: (x.float() > 0).sum(),
    lambda x: (x.view(torch.uint8) + 1, x.float().amax(1)),
    lambda x: torch.where(x.float() > 0, x.float(), -1.0).to(x.dtype),
    lambda x: x.to(torch.int32) + 1,
])
@pytest.mark.parametrize("dtype", DTYPES)
def test_programs(fn, dtype):
    x = (torch.randn(8, 48) * 3).to(dtype)

    def flat(result):
        return [one.view(torch.uint8) if one.dtype.itemsize == 1 else one
                for one in (result if isinstance(result, tuple) else (result,))]

    for got, want in zip(flat(jitpy.jit(fn)(x)), flat(fn(x)), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
