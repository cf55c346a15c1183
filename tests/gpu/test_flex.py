"""`flex_attention` on the GPU: kernels forwards and backwards, and launches that share the keys of few queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jitpy
from benchmarks.gpu.flex import dense
from jitpy.engine import all_engines

Tensor = torch.Tensor


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def soft_cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 20.0 * torch.tanh(score / 20.0)


def program(score: Any) -> Callable[..., Tensor]:
    def call(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=True)

    return call


def inputs(sizes: tuple[int, int, int, int, int, int], device: torch.device) -> list[Tensor]:
    batch, heads, shared, queries, keys, size = sizes
    return [torch.randn(batch, count, length, size, device=device, dtype=torch.bfloat16, requires_grad=True)
            for count, length in ((heads, queries), (shared, keys), (shared, keys))]


def styles() -> list[str]:
    """Of the kernels of everything compiled."""
    return [kernel.style for engine in all_engines() for variant in engine.variants if variant.graph is not None
            for part in variant.graph.lowered if part.notes is not None for kernel in part.notes.kernels]


def distance(found: Tensor, exact: Tensor) -> float:
    return ((found.double() - exact.double()).norm() / exact.double().norm()).item()


@pytest.mark.parametrize("name", ["soft cap", "alibi with a gradient", "documents"])
@pytest.mark.parametrize("size", [64, 128])
def test_both_passes(name: str, size: int, cuda: torch.device) -> None:
    """No further from float64 than bfloat16 makes it."""
    slopes = torch.rand(8, device=cuda, requires_grad=True)
    ids = torch.arange(1000, device=cuda) // 300
    score, mask = {
        "soft cap": (soft_cap, causal),
        "alibi with a gradient": (lambda s, b, h, q, k: s + slopes[h] * (k - q), causal),
        "documents": (None, lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)),
    }[name]
    given = inputs((2, 8, 4, 1000, 1000, size), cuda)
    blocks = create_block_mask(mask, None, None, 1000, 1000, device=cuda)
    wanted = [*given, *([slopes] if "gradient" in name else [])]
    jitpy.reset()
    call = jitpy.jit(program(score))
    out = call(*given, blocks)
    grad = torch.randn_like(out)
    found = [out, *torch.autograd.grad(out, wanted, grad)]
    assert styles().count("flex") == 2
    double = [one.detach().double().requires_grad_() for one in given]
    exact = dense(score, mask, *double)
    exacts = [exact, *torch.autograd.grad(exact, [*double, *wanted[3:]], grad.double())]
    # that of slopes is a sum of many terms that cancel each other
    assert [distance(a, b) < limit for a, b, limit in zip(found, exacts, (6e-3,) * 4 + (5e-2,), strict=False)] == \
        [True] * len(found)


@pytest.mark.parametrize("queries", [1, 5])
def test_few_queries(queries: int, cuda: torch.device) -> None:
    given = [one.detach() for one in inputs((1, 8, 2, queries, 4000, 128), cuda)]
    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < q + 3900

    blocks = create_block_mask(mask, None, None, queries, 4000, device=cuda)
    jitpy.reset()
    call = jitpy.jit(program(None))
    found = call(*given, blocks)
    assert "flex" in styles()
    assert distance(found, dense(None, mask, *(one.double() for one in given))) < 6e-3
