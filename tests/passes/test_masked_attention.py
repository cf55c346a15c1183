"""Attention written out with a mask is `flex_attention` on the CPU, with eager's NaN in rows that hide all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitpy
from jitpy import config

BATCH, LENGTH, KEYS, WIDTH = 2, 20, 24, 8


def repeated(x: Tensor, times: int) -> Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def added(scores: Tensor, mask: Tensor) -> Tensor:
    return scores / 3 + mask


def hidden(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores * 0.5).masked_fill(mask, float("-inf"))


def shown(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, scores, float("-inf"))


def attention(masked: Callable[[Tensor, Tensor], Tensor], times: int) -> Callable[..., Tensor]:
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        k, v = repeated(k, times), repeated(v, times)
        return torch.softmax(masked(q @ k.transpose(-2, -1), mask), -1) @ v

    return fn


def tensors(times: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(BATCH, 4, LENGTH, WIDTH), *(torch.randn(BATCH, 4 // times, KEYS, WIDTH) for _ in range(2))]


def is_flexible(fn: Callable[..., Tensor], *given: Tensor) -> bool:
    return "ir.flex_attention" in str(jitpy.explain(fn)(*given)).partition("guards:")[0].partition("kernels:")[2]


SHAPES = [(BATCH, 1, LENGTH, KEYS), (1, 1, LENGTH, KEYS), (BATCH, 4, 1, KEYS), (1, 4, LENGTH, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", [added, hidden, shown])
@pytest.mark.parametrize("times", [1, 2])
def test_masks(times: int, masked: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    given = tensors(times)
    mask = torch.rand(shape) > 0.5
    mask[0, 0, 0] = masked is hidden  # a row that hides all
    if masked is added:
        mask = torch.zeros(shape).masked_fill(~mask, float("-inf"))
    fn = attention(masked, times)
    with torch.no_grad():
        expected = fn(*given, mask)
        assert expected.isnan().any()
        found = jitpy.jit(fn)(*given, mask)
        assert is_flexible(fn, *given, mask)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("length", [7, LENGTH])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_of_the_least_number(dtype: torch.dtype, length: int) -> None:
    """Their scores are lost where the sum is rounded: the result is the mean of all values."""
    q, k, v = (torch.randn(BATCH, 4, length, WIDTH).to(dtype) for _ in range(3))
    mask = torch.zeros(BATCH, 1, length, length, dtype=dtype)
    mask[0, 0, 2:5] = torch.finfo(dtype).min
    fn = attention(added, 1)
    with torch.no_grad():
        torch.testing.assert_close(jitpy.jit(fn)(q, k, v, mask), fn(q, k, v, mask), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none(bad: float) -> None:
    fn = attention(hidden, 2)
    for position in range(3):
        given = tensors(2)
        given[position][0, 0, 3, 2] = bad
        mask = torch.rand(BATCH, 1, LENGTH, KEYS) > 0.5
        with torch.no_grad():
            torch.testing.assert_close(jitpy.jit(fn)(*given, mask), fn(*given, mask), equal_nan=True)


def test_gradients_and_few_queries_stay_written_out() -> None:
    fn = attention(hidden, 2)
    given = tensors(2)
    mask = torch.rand(BATCH, 1, LENGTH, KEYS) > 0.5
    assert not is_flexible(fn, *(t.requires_grad_() for t in given), mask)
    with torch.no_grad():
        assert not is_flexible(fn, given[0][:, :, :4], *given[1:], mask[:, :, :4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_torchs_own_kernel_hides_no_nan(dtype: torch.dtype) -> None:
    fn = attention(added, 1)
    given = [t[:, :, :4].to(dtype) for t in tensors(1)]
    mask = torch.zeros(BATCH, 1, 4, 4, dtype=dtype)
    mask[:, :, 1] = float("-inf")
    with torch.no_grad():
        expected = fn(*given, mask)
        assert expected.isnan().any()
        torch.testing.assert_close(jitpy.jit(fn)(*given, mask), expected, equal_nan=True, atol=1e-2, rtol=1e-2)


def test_weights_that_are_kept_are_read() -> None:
    """Their product with the values is all that is left to do."""
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(added(q @ k.transpose(-2, -1), mask), -1)
        return weights @ v, weights

    given = tensors(1)
    with torch.no_grad():
        report = str(jitpy.explain(fn)(*given, torch.randn(BATCH, 1, LENGTH, KEYS)))
    assert "aten.matmul.default (2 times)" in report and "scaled_dot_product" not in report


def test_the_causal_mask_is_torchs_own_kernel() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        return torch.softmax((q @ k.transpose(-2, -1)).masked_fill(~mask, float("-inf")), -1) @ v

    given = [torch.randn(BATCH, 4, LENGTH, WIDTH) for _ in range(3)]
    with torch.no_grad():
        torch.testing.assert_close(jitpy.jit(fn)(*given), fn(*given))
        assert not is_flexible(fn, *given)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_heads_whose_width_changes(on_gpu: bool) -> None:
    """One token in front of a cache all of whose sizes are symbols."""
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q * 2, k, v)

    with config.patch(triton_on_cpu=on_gpu), torch.no_grad():
        jitpy.reset()
        compiled = jitpy.jit(fn, fullgraph=True, dynamic=True)
        for width in (16, 24):
            given = [torch.randn(3, 4, length, width) for length in (1, 9, 9)]
            torch.testing.assert_close(compiled(*given), fn(*given))
    jitpy.reset()
