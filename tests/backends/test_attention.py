"""Attention written out by hand becomes torch's fused kernel, where nothing needs a gradient."""

from __future__ import annotations

import math

import pytest
import torch

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
        assert "scaled_dot_product_attention" in text and "matmul" not in text and "bmm" not in text


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
