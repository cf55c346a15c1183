"""Products of operands of 8 bits, as models that torchao quantises write them: by kernels, right to 16 bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops.out_dtype import out_dtype

import jitpy

Tensor = torch.Tensor
BF16, KIND = torch.bfloat16, torch.float8_e4m3fn


def converted(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, (weight.float() * scale).to(BF16)).relu()


def scaled_behind(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return F.silu(F.linear(x, weight.to(BF16)) * scale.view(-1).to(BF16))


def rows_to_int8(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    own = x.abs().amax(1, keepdim=True).float().clamp(min=1e-6) / 127
    rounded = (x * (1 / own)).round().clamp(-128, 127).to(torch.int8)
    return (out_dtype(torch.ops.aten.mm.default, torch.int32, rounded, weight.t()) * own * scale.view(-1)).to(BF16)


def rows_to_float8(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    own = x.abs().amax(1, keepdim=True).float().clamp(min=1e-6) / 448
    rounded = (x.float() / own).clamp(-448, 448).to(KIND)
    return torch._scaled_mm(rounded, weight.t(), own, scale.t(), out_dtype=BF16, use_fast_accum=True)


CASES: list[tuple[Callable[..., Tensor], torch.dtype]] = [
    (converted, KIND), (converted, torch.float8_e5m2), (converted, torch.int8), (scaled_behind, torch.int8),
    (rows_to_int8, torch.int8), (rows_to_float8, KIND)]


@pytest.mark.parametrize("inner", [2048, 8192])
@pytest.mark.parametrize("rows", [1, 16, 48])
@pytest.mark.parametrize(("fn", "kind"), CASES)
def test_products_with_weights_of_8_bits(fn: Callable[..., Tensor], kind: torch.dtype, rows: int, inner: int) -> None:
    """Programs of a cluster share a long inner axis."""
    torch.manual_seed(0)
    x = torch.randn(rows, inner, device="cuda").to(BF16)
    weight = (torch.randn(2048, inner, device="cuda") * 20).to(kind)
    scale = torch.rand(2048, 1, device="cuda") + 0.5
    found = jitpy.jit(fn, fullgraph=True)(x, weight, scale).double()
    if fn is rows_to_float8 or fn is rows_to_int8:  # eager's kernels refuse some of these sizes
        exact = F.linear(x.double(), weight.double() * scale.double())
        assert (found - exact).norm() <= (0.02 if kind is torch.int8 else 0.05) * exact.norm()
    else:
        exact = fn(x, weight, scale).double()
        assert (found - exact).norm() <= 6e-3 * exact.norm()


def test_queries_keys_and_values_of_a_token_are_one_kernel() -> None:
    x, *weights = (torch.randn(shape, device="cuda").to(BF16) for shape in ((1, 512), *[(512, 512)] * 3))
    found = jitpy.jit(lambda x, *weights: [F.linear(x, one) for one in weights], fullgraph=True)(x, *weights)
    for one, weight in zip(found, weights, strict=True):
        exact = F.linear(x.double(), weight.double())
        assert (one - exact).norm() <= 4e-3 * exact.norm()
