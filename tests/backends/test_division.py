"""Remainders and rounded quotients of floats: eager's to the bit, whatever the operands are."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import jitpy

inf, nan = math.inf, math.nan
ENDS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 0.1, 7.0, 1e5, inf, -inf, nan, 1e-38, 1e-45, -1e-45, 1e-40, 3.4e38,
        -3.4e38, 2.0**23, 2.0**23 + 1, 2.0**24, 2.0**52, 2.0**52 + 1, 2.0**53, 5e-324, 1e308, -1e308, 2.2e-308]
FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "fmod": torch.fmod, "remainder": torch.remainder, "floor_divide": torch.floor_divide}
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16,
            torch.float16: torch.int16}


def _operands(dtype: torch.dtype, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random bits, numbers of all sizes beside small ones, multiples and what is near to them, where numbers end."""
    bits = [torch.randint(-2**63, 2**63 - 1, (count,)).view(dtype)[:count] for _ in range(2)]
    usual = torch.randn(count, dtype=torch.float64).to(dtype)
    ends = torch.tensor(ENDS, dtype=torch.float64).to(dtype)
    first, second = torch.meshgrid(ends, ends, indexing="ij")
    wholes = torch.randint(-50, 50, (count,)).double()
    pairs = [
        bits,
        [(usual.double() * torch.exp(torch.randn(count).double() * 12)).to(dtype), usual.flip(0)],
        [(wholes * usual.double()).to(dtype), usual],
        [(wholes * torch.randint(1, 99, (count,)) / 7).to(dtype), (torch.randint(1, 99, (count,)) / 7).to(dtype)],
        [first.flatten(), second.flatten()],
    ]
    return torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs])


@pytest.mark.parametrize("simd", ["auto", "scalar"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_eagers_to_the_bit(name: str, dtype: torch.dtype, simd: str) -> None:
    torch.manual_seed(0)
    a, b = _operands(dtype, 30000)
    function = FUNCTIONS[name]
    wanted = function(a, b)
    if name == "floor_divide" and dtype.itemsize == 2:  # eager rounds on the way
        wanted = function(a.float(), b.float()).to(dtype)
    with jitpy.config.patch(simd=simd, raise_errors=True):
        found = jitpy.jit(lambda a, b: function(a, b))(a, b)
    # eager's vectors know no quotients beyond the largest float
    lost = wanted.isnan() & a.isfinite() & ~b.isnan() & (b != 0)
    same = (found.view(INTEGERS[dtype]) == wanted.view(INTEGERS[dtype])) | (found.isnan() & wanted.isnan())
    assert (same | lost).all(), (a[~same & ~lost], b[~same & ~lost], found[~same & ~lost], wanted[~same & ~lost])
    for x, y, z in zip(a[lost][:2000].tolist(), b[lost][:2000].tolist(), found[lost][:2000].tolist(), strict=True):
        left = math.fmod(x, y)
        if name == "remainder" and left and (left < 0) != (y < 0):
            left = torch.tensor(left + y, dtype=torch.promote_types(dtype, torch.float32)).to(dtype).item()
        assert z == left, (x, y)


def test_vectors_with_a_large_quotient_go_element_by_element() -> None:
    a = torch.full((1000,), 7.5)
    b = torch.full((1000,), 2.0)
    b[::37], b[3], b[500] = 1e-5, 1e-30, 0.0
    a[::41] = 2.0**30 + 64
    for function in FUNCTIONS.values():
        torch.testing.assert_close(jitpy.jit(lambda a, b, function=function: function(a, b) + 0)(a, b),
                                   function(a.double(), b.double()).float() if function is not torch.floor_divide
                                   else function(a, b), rtol=0, atol=0, equal_nan=True)
