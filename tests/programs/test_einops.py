"""einops, which parses its patterns once and keeps what it found in caches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jitpy

einops = pytest.importorskip("einops")


def attend(x: torch.Tensor) -> torch.Tensor:
    """(batch, rows, 3 * heads * width) -> (batch, 3, heads * width)"""
    q, k, v = einops.rearrange(x, "b n (t h d) -> t b h n d", t=3, h=2)
    weights = einops.einsum(q, k, "b h i d, b h j d -> b h i j").softmax(-1)
    rows = einops.rearrange(weights @ v, "b h n d -> b n (h d)")
    mean = einops.reduce(rows, "b n d -> b d", "mean")
    packed, sizes = einops.pack([rows, mean], "b * d")
    rows, mean = einops.unpack(packed, sizes, "b * d")
    return einops.repeat(mean, "b d -> b r d", r=3) + einops.reduce(rows, "b n d -> b 1 d", "max")


def test_functions() -> None:
    """One graph at once, for any length. (The first call of all imports a part of einops.)"""
    einops.rearrange(torch.ones(1), "a -> a")
    assert jitpy.explain(attend)(torch.randn(2, 5, 24)).graph_break_count == 0
    jitted = jitpy.jit(attend)
    for n in (5, 6, 7, 9, 12, 5, 31):
        x = torch.randn(2, n, 24)
        torch.testing.assert_close(jitted(x), attend(x))


def test_training_of_layers() -> None:
    from einops.layers.torch import Rearrange, Reduce

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), nn.Linear(48, 24),
                             nn.LayerNorm(24), Reduce("b n d -> b d", "mean"), nn.Linear(24, 5))

    plain, model = make(), make()
    jitted = jitpy.jit(model)
    for batch in (2, 3, 4):
        x = torch.randn(batch, 3, 8, 8)
        for one, call in ((plain, plain), (model, jitted)):
            call(x).square().sum().backward()
        for a, b in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def test_errors() -> None:
    """A pattern that does not fit raises einops' own error."""
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return einops.rearrange(x * 2, "b (n m) -> n b m", n=3)

    with pytest.raises(einops.EinopsError, match="can't divide axis of length 8 in chunks of 3"):
        wrong(torch.ones(2, 8))
    with pytest.raises(einops.EinopsError, match="can't divide axis of length 8 in chunks of 3"):
        jitpy.jit(wrong)(torch.ones(2, 8))
