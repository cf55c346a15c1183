"""`as_strided`: of inputs that lie in another order, of its own results, with gradients, and behind average pools."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitpy
from tests.semantics.harness import case, make_test


def transposed():
    return (torch.randn(4, 6).t(),)


def wanting():
    return (torch.randn(24, requires_grad=True),)


def transposed_wanting():
    return (torch.randn(4, 6).t().requires_grad_(),)


@case(transposed, fullgraph=True)
def of_a_transposed_input(x):
    return x.as_strided((4, 3), (6, 2)) * 2


@case(transposed, fullgraph=True)
def of_a_transposed_input_with_an_offset(x):
    return x.as_strided((3,), (2,), 1) + x.as_strided((2, 2), (1, 1), 3).sum()


@case(transposed, fullgraph=True)
def written_through_a_transposed_input(x):
    x.as_strided((4,), (5,), 2).mul_(3)
    return x + 1


@case(transposed_wanting, fullgraph=True)
def of_a_transposed_input_with_gradients(x):
    return (x.as_strided((4, 3), (6, 2)) * torch.arange(3.0)).sum()


@case(wanting, fullgraph=True)
def windows_with_gradients(x):
    return x.as_strided((8, 5), (2, 1)).sin().sum(1)


@case(wanting, fullgraph=True)
def of_its_own_result_with_gradients(x):
    y = x.as_strided((4, 5), (6, 1))
    return (y.as_strided((2, 3), (12, 2)) * 3).sum()


@case(wanting, fullgraph=True)
def of_a_part_with_gradients(x):
    return x.view(4, 6)[1:3].as_strided((2, 2), (7, 2), 7).exp().sum()


@case(wanting)
def beyond_its_own_result_with_gradients(x):
    y = x.as_strided((4, 5), (6, 1))
    return (y.as_strided((6,), (1,)) * 3).sum()


@case(wanting, fullgraph=True)
def written_through_with_gradients(x):
    y = x * 2
    y.as_strided((4, 5), (6, 1)).as_strided((2, 3), (12, 2)).mul_(x[:3])
    return y.sin()


@case(wanting)
def of_a_part_that_was_written_to(x):
    y = x * 2
    part = y.view(4, 6)[1:3]
    part.mul_(3)
    z = part.as_strided((2, 2), (7, 2), 7)
    part.add_(1)
    return z * 2, part


@case(transposed_wanting, fullgraph=True)
def written_to_behind_a_strided_view(x):
    y = (x * 2).t().t()
    z = y.as_strided((4, 3), (6, 2))
    y.mul_(2)
    return z.sum(), y


test_all = make_test(__name__)


@pytest.mark.parametrize("size", [1, (1, 1)])
def test_training_behind_an_average_pool_of_channels_last_is_one_graph(size: Any) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(size), nn.Flatten(), nn.Linear(8, 4))
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step, model

    (plain, one), (fn, other) = make(), make()
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    y = torch.tensor([1, 3])
    report = jitpy.explain(make()[0])(x, y)
    assert report.graph_break_count == 0 and report.kernels
    jitted = jitpy.jit(fn)
    for batch in (2, 2, 3):
        images = torch.randn(batch, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        labels = torch.randint(4, (batch,))
        torch.testing.assert_close(jitted(images, labels), plain(images, labels))
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)
