"""Training with float8 products, which are emulated on the CPU: the losses and gradients of eager."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

import jitpy

float8 = pytest.importorskip("torchao.float8")

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")


def converted(recipe):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.GELU(), nn.Linear(128, 64))
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    return float8.convert_to_float8_training(model, config=dataclasses.replace(config, emulate=True))


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = (model(x) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("recipe", RECIPES)
def test_step_is_captured(recipe):
    """Forward pass, backward pass and the optimizer's step are one graph of kernels."""
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    eagers = converted(recipe)
    mine = copy.deepcopy(eagers)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (eagers, mine)]
    compiled = jitpy.jit(step, fullgraph=True)
    for _ in range(10):
        want, got = step(eagers, optimizers[0], x), compiled(mine, optimizers[1], x)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=0)
    report = jitpy.explain(step)(mine, optimizers[1], x)
    assert report.graph_break_count == 0 and not report.left_to_eager


@pytest.mark.parametrize("recipe", RECIPES)
def test_loss_is_captured(recipe):
    """A forward pass alone, whose gradients torch asks for."""
    def loss(model, x):
        return (model(x) ** 2).mean()

    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    eagers = converted(recipe)
    mine = copy.deepcopy(eagers)
    want, got = loss(eagers, x), jitpy.jit(loss, fullgraph=True)(mine, x)
    torch.testing.assert_close(got, want)
    want.backward()
    got.backward()
    for one, other in zip(mine.parameters(), eagers.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
