"""`flex_attention`: numbers of elements that 32 bits do not hold, places read twice, lists that are wrong, layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

import jitpy

pytestmark = pytest.mark.usefixtures("plain_eager")


def inputs(length: int = 64, heads: int = 4, width: int = 16, last: int = 16) -> list[Tensor]:
    return [torch.randn(2, heads, length, size) for size in (width, width, last)]


MODS: dict[str, Callable[..., Tensor]] = {
    "product of bits": lambda s, b, h, q, k: torch.where((q * 73856093 + k * 19349663) % 100 < 20, s - 5, s),
    "large product": lambda s, b, h, q, k: torch.where((q * 1000 * k * 4000) % 100000 < 500, s - 5, s),
    "large number": lambda s, b, h, q, k: torch.where(q * 3000000000 > k, s - 5, s),
    "bytes": lambda s, b, h, q, k: s + (q.to(torch.uint8) - k.to(torch.uint8)).float() * 0.01,
    "signed bytes": lambda s, b, h, q, k: s + (q.to(torch.int8) + k.to(torch.int8)).float() * 0.01,
    "dtype": lambda s, b, h, q, k: s + (2 * q if q.dtype is torch.int64 else 3 * k) * 0.01,
    "sum and quotient": lambda s, b, h, q, k: s + (q + k - b * 4 + h) // 3 * 0.01,
}


@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_places_have_64_bits(name: str, dynamic: bool) -> None:
    mod = MODS[name]
    jitted = jitpy.jit(lambda q, k, v: flex_attention(q, k, v, mod), fullgraph=True, dynamic=dynamic)
    for length in (200, 150):
        given = inputs(length)
        torch._dynamo.reset()
        torch.testing.assert_close(jitted(*given), flex_attention(*given, mod), atol=1e-4, rtol=1e-4)


READS: dict[str, Callable[..., Tensor]] = {
    "head first, then last": lambda s, t, h, k: s + t[h, k % 4] * s + t[k % 4, h] * s * 0.4,
    "a row, and a column": lambda s, t, h, k: s + t[h, k * 0 + 1] * s + t[k * 0 + 2, h] * s * 0.5,
    "the diagonal": lambda s, t, h, k: s + t[h, h] * s + t[h, k % 4] * 0.3 * s,
    "rows": lambda s, t, h, k: s + t[h, k % 4] * s + t[h, (k + 1) % 4] * 0.3 * s,
}


@pytest.mark.parametrize("name", READS)
def test_gradients_of_what_is_read_twice(name: str) -> None:
    """Threads must not add to one place at once."""
    table, read = torch.randn(4, 4, requires_grad=True), READS[name]
    given = inputs(200)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, lambda s, b, h, i, j: read(s, table, h, j))

    pull = torch.randn(2, 4, 200, 16)
    (wanted,) = torch.autograd.grad(call(*given), table, pull)
    jitted = jitpy.jit(call, fullgraph=True)
    for _ in range(5):
        (found,) = torch.autograd.grad(jitted(*given), table, pull)
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("count", "index"), [(6, None), (10**8, None), (-1, None), (4, -1), (4, -10**6), (4, 10**6)])
def test_wrong_lists_read_no_other_memory(count: int, index: int | None) -> None:
    """The dense reference knows what they amount to: blocks that there are, and no others."""
    numbers = torch.full((1, 1, 4), count, dtype=torch.int32)
    indices = torch.arange(4, dtype=torch.int32).expand(1, 1, 4, 4).contiguous()
    if index is not None:
        indices[..., 3] = index
    mask = BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=16, mask_mod=lambda b, h, i, j: i >= 0,
                                    compute_q_blocks=False)
    given = inputs()
    found = jitpy.jit(flex_attention, fullgraph=True)(*given, block_mask=mask)
    keys = 48 if index is not None else 64 if count > 0 else 0
    q, k, v = given
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k[:, :, :keys], v[:, :, :keys]) if keys else v * 0
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_layouts() -> None:
    """Of axes with equal strides the later counts as the inner one, also of few queries and with sizes that change."""
    jitted = jitpy.jit(flex_attention)
    for q, k, v in (inputs(1, 2, 16, 5), inputs(1, 2, 16, 5), inputs(1, 2, 16, 1)):
        assert jitted(q, k, v).stride() == flex_attention(q, k, v).stride()
    q, k, v = (t[:1, :1].expand(3, 4, 40, 16) for t in inputs(40))
    assert jitpy.jit(flex_attention)(q, k, v).stride() == flex_attention(q, k, v).stride()
    jitted, memory = jitpy.jit(flex_attention), torch.randn(200000)
    for length in (20, 25, 30, 50, 63, 70):
        q = memory.as_strided((2, 2, length, 16), (1000, 16 * length, 16, 1))
        k, v = torch.randn(2, 2, 2, length, 16)
        assert jitted(q, k, v).stride() == flex_attention(q, k, v).stride(), length


def test_layouts_of_gradients() -> None:
    given = [t.transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for t in inputs(33, 4, 7, 5)]
    pull = torch.randn(2, 4, 33, 5)
    wanted = torch.autograd.grad(flex_attention(*given), given, pull)
    found = torch.autograd.grad(jitpy.jit(flex_attention)(*given), given, pull)
    assert [one.stride() for one in found] == [one.stride() for one in wanted]
