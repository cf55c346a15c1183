"""Parameters that are read with gradients after an optimizer has changed them, in the same call: what is computed from
them has its history from their new values. Where a result needs that, a second graph begins at the read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitpy

#: name -> maker of `step(model, optimizer)`, itself a maker of the function that is jitted
STEPS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], Callable[..., Any]]] = {}


def step(make: Any) -> Any:
    STEPS[make.__name__] = make
    return make


def update(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


@step
def forward_pass(model, optimizer):
    def fn(x, y):
        update(model, optimizer, x, y)
        return model(x)

    return fn


@step
def in_a_helper(model, optimizer):
    def both(x, y):
        loss = update(model, optimizer, x, y)
        return model(x) + loss.detach()

    def fn(x, y):
        return both(x, y) * 2

    return fn


@step
def norm_of_a_weight(model, optimizer):
    def fn(x, y):
        loss = update(model, optimizer, x, y)
        weight = model[0].weight
        return (weight**2).sum(), loss.detach()

    return fn


@step
def after_a_write_of_the_program(model, optimizer):
    def fn(x, y):
        grads = torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= 0.1 * g
        return F.mse_loss(model(x), y)

    return fn


@step
def after_data_was_changed(model, optimizer):
    def fn(x, y):
        model[0].weight.data.mul_(0.5)
        return F.mse_loss(model(x), y)

    return fn


@step
def in_a_loop_of_updates(model, optimizer):
    def fn(x, y):
        total = torch.zeros(())
        for k in range(3):
            update(model, optimizer, x * (k + 1), y)
            total = total + model[0].bias.detach().abs().sum()
        return model(x).sum() * total

    return fn


@step
def by_a_function_that_calls_back(model, optimizer):
    def fn(x, y):
        def one(scale):
            update(model, optimizer, x * scale, y)
            return model(x).sum()

        return list(map(one, [1.0, 2.0]))[1]

    return fn


def follow(name: str, backend: str) -> Any:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    models = first, copy.deepcopy(first)
    plain, ours = (torch.optim.Adam(m.parameters(), lr=0.05) for m in models)
    eager, jitted = STEPS[name](models[0], plain), jitpy.jit(STEPS[name](models[1], ours), backend=backend)
    for _ in range(4):
        x, y = torch.randn(5, 3), torch.randn(5, 2)
        wanted, found = eager(x, y), jitted(x, y)
        torch.testing.assert_close(found, wanted)
        for result in (wanted, found):
            (result[0] if isinstance(result, tuple) else result).sum().backward()
        for mine, its in zip(models[1].parameters(), models[0].parameters(), strict=True):
            torch.testing.assert_close(mine, its)
            torch.testing.assert_close(mine.grad, its.grad)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", sorted(STEPS))
def test_steps_are_eagers(name, backend):
    jitpy.reset()
    follow(name, backend)


@pytest.mark.parametrize("name", sorted(set(STEPS) - {"by_a_function_that_calls_back"}))
def test_another_graph_begins_at_the_read(name):
    jitpy.reset()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    fn = STEPS[name](model, torch.optim.Adam(model.parameters(), lr=0.05))
    report = jitpy.explain(fn)(torch.randn(5, 3), torch.randn(5, 2))
    assert [record.reason.id for record in report.break_reasons] == ["new_history"], str(report)
    assert report.graph_count == 2, str(report)
