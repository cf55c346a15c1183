"""Products of int8 in int32 on the GPU: of sizes that the kernel takes, and of others."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.out_dtype import out_dtype

import jitpy


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("sizes", [(32, 64, 16), (1, 4096, 64), (7, 60, 15), (33, 128, 40)])
def test_products_are_exact(sizes: tuple[int, int, int], is_transposed: bool) -> None:
    rows, inner, columns = sizes
    a = torch.randint(-128, 128, (rows, inner), dtype=torch.int8)
    b = torch.randint(-128, 128, (inner, columns), dtype=torch.int8)
    b = b.t().contiguous().t() if is_transposed else b
    jitted = jitpy.jit(lambda a, b: out_dtype(torch.ops.aten.mm.default, torch.int32, a, b), fullgraph=True)
    assert torch.equal(jitted(a.cuda(), b.t().cuda().t() if is_transposed else b.cuda()).cpu(), a.int() @ b.int())
