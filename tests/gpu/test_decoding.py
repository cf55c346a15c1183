"""`generate` on a GPU: kernels that write into the cache, attention of one query, graphs for each cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_tokens_are_those_of_eager(cache: str | None, mode: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=100,
                                      num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).eval()
    settings: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache,
                                "disable_compile": True}
    prompts = [torch.randint(1, 100, (1, length), device="cuda") for length in (5, 9, 9, 6, 20, 9, 5)]
    expected = [model.generate(ids, **settings) for ids in prompts]
    model.forward = jitpy.jit(model.forward, mode=mode)
    for ids, wanted in zip(prompts, expected, strict=True):
        assert torch.equal(model.generate(ids, **settings), wanted)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_one_token_and_a_cache(mode: str) -> None:
    """In 16 bits, as near to float64 as eager."""
    def step(x: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        k.index_copy_(2, at, x[:, :2] * 2)
        v.index_copy_(2, at, x[:, 2:4])
        shown = (torch.arange(k.shape[2], device="cuda") <= at)[None, None, None]
        k, v = (one[:, :, None].expand(-1, -1, 2, -1, -1).reshape(1, 4, -1, 64) for one in (k, v))
        return F.scaled_dot_product_attention(x, k, v, shown)

    fast = jitpy.jit(step, mode=mode)
    for length in (96, 400):
        caches = [torch.zeros(2, 1, 2, length, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        exact = torch.zeros(2, 1, 2, length, 64, device="cuda", dtype=torch.float64)
        for place in range(12):
            x, at = torch.randn(1, 4, 1, 64, device="cuda").bfloat16(), torch.tensor([place * 7], device="cuda")
            wanted, found = step(x, *caches[0], at), fast(x, *caches[1], at)
            right = step(x.double(), *exact, at)
            assert (found - right).abs().max() <= 1.5 * (wanted - right).abs().max() + 1e-3
            assert torch.equal(caches[0], caches[1])
