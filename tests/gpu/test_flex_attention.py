"""`flex_attention` on a GPU against eager: gradients, statistics, numbers on the host, lengths that change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import jitpy


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def results(fn: Callable[..., Any], given: list[Tensor], captured: list[Tensor]) -> list[Tensor]:
    given = [t.detach().clone().requires_grad_() for t in given]
    for tensor in captured:
        tensor.grad = None
    out, aux = fn(*given)
    (out.float().square().sum() + aux.lse.sum()).backward()
    return [out.detach(), aux.lse.detach(), aux.max_scores, *(t.grad.clone() for t in (*given, *captured))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_statistics_and_host_numbers(cuda: torch.device, dtype: torch.dtype) -> None:
    bias = torch.randn(4, 256, device=cuda, requires_grad=True)
    cap = torch.tensor(20.0)  # on the host

    def mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap) + bias[h, q - k + 128]

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        mask = create_block_mask(causal, None, None, q.size(2), k.size(2), device=q.device)
        return flex_attention(q, k, v, mod, mask, enable_gqa=True, return_aux=AuxRequest(lse=True, max_scores=True))

    jitted = jitpy.jit(fn, fullgraph=True)
    tolerance = 1e-3 if dtype is torch.float32 else 5e-2
    for length in (128, 100, 65):
        given = [torch.randn(2, heads, length, 32, device=cuda, dtype=dtype) for heads in (4, 2, 2)]
        exact = results(fn, [t.double() for t in given], [bias])
        torch._dynamo.reset()
        for own, other in zip(results(jitted, given, [bias]), exact, strict=True):
            error = (own.double() - other.double()).norm() / other.double().norm().clamp(min=1e-3)
            assert error < tolerance
