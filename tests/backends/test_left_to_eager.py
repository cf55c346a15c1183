"""Graphs with gradients that need kernels of their own at every size: none is left whole to eager kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import jitpy


@pytest.fixture
def left() -> Iterator[list[str]]:
    """The log's lines about graphs, or halves of graphs, that have no kernels."""
    lines: list[str] = []
    before = jitpy.logs.set_sink(lambda text: lines.append(text) if "is left to eager kernels" in text else None)
    jitpy.logs.enable("fusion")
    yield lines
    jitpy.logs.disable("fusion")
    jitpy.logs.set_sink(before)


def compare(model: nn.Module, make: Callable[[int], torch.Tensor], batches: tuple[int, ...], **options: bool) -> None:
    plain = copy.deepcopy(model)
    jitted = jitpy.jit(model, **options)
    for batch in batches:
        x = make(batch).requires_grad_()
        y = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        want, got = plain(x), jitted(y)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
        grad = torch.randn_like(want)
        for other in (grad, grad.contiguous(), grad.transpose(-1, -2).contiguous().transpose(-1, -2)):
            want.backward(other, retain_graph=True)
            got.backward(other, retain_graph=True)
        torch.testing.assert_close(y.grad, x.grad)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


def channels_last(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 9, 8).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("native", [True, False])
def test_channels_last_convolutions_at_new_batch_sizes(left: list[str], native: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)
    with jitpy.config.patch(native=native):
        compare(model, channels_last, (2, 3, 5, 1))
    assert (left == []) is native, "gradients need the native runtime, and a log says so"


@pytest.mark.parametrize("make", [channels_last, lambda batch: torch.randn(batch, 3, 9, 8)])
def test_batch_norm_by_running_statistics_at_any_size(left: list[str], make: Callable[..., torch.Tensor]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    compare(model, make, (2, 3, 5), dynamic=True)
    assert left == []


def test_batch_norm_of_the_batch_with_dynamic_sizes(left: list[str]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU())
    compare(model, lambda batch: torch.randn(batch, 3, 9, 8), (2, 3, 5), dynamic=True)
    assert left == []
