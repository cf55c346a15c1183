"""Training with other sizes at each call: gradients from kernels whose sizes are symbols equal eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 16, padding_idx=0)
        self.norm = torch.nn.LayerNorm(16)
        self.up, self.down = torch.nn.Linear(16, 40), torch.nn.Linear(20, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.table(ids))
        a, b = self.up(F.gelu(h)).chunk(2, -1)
        logits = self.down(a * torch.sigmoid(b)) + self.table.weight[ids, :1]
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=3)


class Pictures(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm, self.group = torch.nn.BatchNorm2d(8), torch.nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.max_pool2d(F.relu(self.norm(self.conv(x))), 3, 2, 1)
        h = F.interpolate(self.group(h), scale_factor=2, mode="nearest")
        h = F.avg_pool2d(h, 2)[:, :, 1:] + h[:, :, :1, ::2]
        return h.square().mean((2, 3)).log_softmax(1)[:, 2].sum()


def words(batch: int) -> torch.Tensor:
    return torch.randint(0, 11, (batch, 7))


def pictures(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 12, 10)


@pytest.mark.parametrize(("make", "inputs"), [(Words, words), (Pictures, pictures)])
def test_gradients_at_each_size(make: type[torch.nn.Module], inputs: Callable[[int], Any]) -> None:
    torch.manual_seed(0)
    model = make()
    twin = copy.deepcopy(model)
    compiled = jitpy.jit(twin)
    for batch in (4, 6, 5, 9):
        x = inputs(batch)
        model.zero_grad()
        twin.zero_grad()
        expected, found = model(x), compiled(x)
        expected.backward()
        found.backward()
        torch.testing.assert_close(found, expected)
        for a, b in zip(twin.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
        for a, b in zip(twin.buffers(), model.buffers(), strict=True):
            torch.testing.assert_close(a, b)


def test_index_out_of_range_in_a_scatter() -> None:
    """Nothing is written outside; the call raises as a lookup does."""
    ids = torch.tensor([0, 5, 1])

    def program(source: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4, 32).index_add(0, ids, source)

    compiled = jitpy.jit(program)
    source = torch.randn(3, 32)
    assert torch.equal(compiled(source, ids % 4), program(source, ids % 4))
    with pytest.raises((IndexError, RuntimeError)):
        compiled(source, ids)
