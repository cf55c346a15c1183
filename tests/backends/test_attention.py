"""Attention written out by hand becomes torch's fused kernel, where nothing needs a gradient."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import jitpy


def plain(q, k, v):
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1]), dim=-1), v)


def masked(q, k, v, mask):
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * 0.3 + mask, dim=-1), v)



def steps(fn, *args):
    jitted = jitpy.jit(fn)
    jitted(*args)
    from jitpy.engine import all_engines

    return "\n".join(v.compiled.steps_text() for e in all_engines() for v in e.variants if v.name == fn.__name__)


@pytest.mark.parametrize("shape", [(2, 3, 20, 16), (6, 20, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_further_from_float64_than_eager(shape, dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, dtype=dtype) for _ in range(3))
    mask = torch.randn(20, 20, dtype=dtype)
    for fn, args in ((plain, (q, k, v)), (masked, (q, k, v, mask))):
        exact = fn(*(a.double() for a in args))
        eager, found = fn(*args), jitpy.jit(fn)(*args)
        assert found.dtype == eager.dtype and found.stride() == eager.stride()
        bound = 4 * (eager.double() - exact).abs().max() + torch.finfo(dtype).eps
        assert (found.double() - exact).abs().max() <= bound
        text = steps(fn, *args)
        assert "scaled_dot_product_flash_attention" in text and "matmul" not in text and "bmm" not in text


def test_left_alone_where_something_needs_a_gradient():
    q, k, v = (torch.randn(2, 3, 8, 16, requires_grad=True) for _ in range(3))
    found = jitpy.jit(plain)(q, k, v)
    found.sum().backward()
    grads = [t.grad.clone() for t in (q, k, v)]
    for t in (q, k, v):
        t.grad = None
    plain(q, k, v).sum().backward()
    for grad, t in zip(grads, (q, k, v), strict=True):
        torch.testing.assert_close(grad, t.grad)


def test_scores_that_are_returned_stay():
    def both(q, k, v):
        scores = torch.softmax(torch.matmul(q, k.transpose(-2, -1)), dim=-1)
        return scores, torch.matmul(scores, v)

    args = [torch.randn(2, 3, 8, 16) for _ in range(3)]
    for found, wanted in zip(jitpy.jit(both)(*args), both(*args), strict=True):
        torch.testing.assert_close(found, wanted)


def hidden(q, k, v, mask):
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(mask, float("-inf"))
    return torch.softmax(scores, -1) @ v


def not_tril(q, k, v):
    return hidden(q, k, v, ~torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril())


def triu(q, k, v):
    return hidden(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)[None, None])


def where(q, k, v):
    shown = torch.full((q.shape[-2], k.shape[-2]), True).tril()
    return torch.softmax(torch.where(shown, (q @ k.transpose(-2, -1)) * 0.3, float("-inf")), -1) @ v


@pytest.mark.parametrize("size", [20, 100])  # masks of the second are not folded to constants
@pytest.mark.parametrize("form", [not_tril, triu, where], ids=lambda fn: fn.__name__)
def test_causal_masks(form, size):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, size, 16) for _ in range(3))
    torch.testing.assert_close(jitpy.jit(form)(q, k, v), form(q, k, v), rtol=1e-5, atol=1e-5)
    assert "scaled_dot_product_flash_attention" in steps(form, q, k, v)


def test_other_masks_stay():
    """A row of which all is hidden is NaN."""

    def without_itself(q, k, v):
        return hidden(q, k, v, torch.ones(20, 20, dtype=torch.bool).triu(0))

    def any_mask(q, k, v, mask):
        return hidden(q, k, v, mask)

    q, k, v = (torch.randn(2, 3, 20, 16) for _ in range(3))
    mask = torch.rand(20, 20) > 0.5
    mask[3] = True
    for fn, args in ((without_itself, ()), (any_mask, (mask,))):
        expected = fn(q, k, v, *args)
        assert expected.isnan().any()
        torch.testing.assert_close(jitpy.jit(fn)(q, k, v, *args), expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "flags"])
def test_large_scores_of_what_torchs_kernel_refuses(kind, dtype):
    """Keys whose last axis is not contiguous go by the formula, which torch computes in 32 bits."""
    mask = {"masked": torch.randn(16, 16).to(dtype), "flags": torch.rand(16, 16) > 0.3}.get(kind)

    def fn(q, k, v):
        bias = mask.to(q.dtype) if kind == "masked" else mask
        return F.scaled_dot_product_attention(q, k, v, bias, is_causal=kind == "causal")

    inputs = [(torch.randn(2, 4, 16, 32) * size).to(dtype) for size in (8, 8, 1)]
    inputs[1] = inputs[1].transpose(2, 3).contiguous().transpose(2, 3)
    found = []
    for run, wide in ((jitpy.jit(fn), dtype), (fn, dtype), (fn, torch.float64)):
        given = [x.to(wide).requires_grad_() for x in inputs]
        out = run(*given)
        found.append([out, *torch.autograd.grad(out.sin().sum(), given)])
    for ours, theirs, exact in zip(*found, strict=True):
        assert ours.dtype is theirs.dtype
        error, eager = ((x.double() - exact).abs().max() for x in (ours, theirs))
        assert error <= 2 * eager + 1e-3
