"""Version counters of arguments move as eager's: once for each write in place that autograd sees."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy


def once(x, y):
    x.add_(1)


def twice(x, y):
    x.add_(1)
    x.mul_(2)


def both(x, y):
    x.add_(1)
    y.copy_(x)
    x.mul_(y)
    x.sub_(1)


def through_views(x, y):
    x[0].add_(1)
    x.t()[1] = 3
    y.view(-1)[2:5].zero_()


def item(x, y):
    x[0] = 1


def out(x, y):
    torch.add(x, y, out=y)


def swapped(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)


def only_read(x, y):
    return (x * 2).add_(y).sum()


def through_data(x, y):
    x.data.add_(1)
    y.add_(1)
    y.data.mul_(2)


def under_no_grad(x, y):
    with torch.no_grad():
        x.add_(1)
        x.sub_(y)


def nothing_left(x, y):
    x.add_(1)
    x.sub_(1)


ALL: list[Callable[..., Any]] = [once, twice, both, through_views, item, out, swapped, only_read, through_data,
                                 under_no_grad, nothing_left]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", ALL)
def test_as_eager(fn: Callable[..., Any], backend: str, native: bool) -> None:
    with jitpy.config.patch(native=native):
        jitted = jitpy.jit(fn, backend=backend)
        worlds = [[torch.randn(4, 4), torch.randn(4, 4)] for _ in range(2)]
        for _ in range(3):
            for context, call in zip(worlds, (fn, jitted), strict=True):
                call(*context)
            assert [t._version for t in worlds[1]] == [t._version for t in worlds[0]]


@pytest.mark.parametrize("make", [
    lambda parameters: torch.optim.AdamW(parameters), lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
], ids=["AdamW", "SGD"])
def test_of_parameters_and_their_state_in_a_training_step(make: Callable[..., torch.optim.Optimizer]) -> None:
    model = torch.nn.Linear(3, 3)
    versions = []
    for compiled in (False, True):
        own = copy.deepcopy(model)
        optimizer = make(own.parameters())

        def step(x, own=own, optimizer=optimizer):
            optimizer.zero_grad()
            own(x).sum().backward()
            optimizer.step()

        call = jitpy.jit(step) if compiled else step
        for _ in range(4):
            call(torch.randn(2, 3))
        state = [t for of_one in optimizer.state.values() for t in of_one.values() if isinstance(t, torch.Tensor)]
        before = [t._version for t in (*own.parameters(), *state)]
        call(torch.randn(2, 3))
        versions.append([t._version - v for t, v in zip((*own.parameters(), *state), before, strict=True)])
    assert versions[0] == versions[1]


def test_a_write_under_gradients_is_still_found() -> None:
    """Eager's error for what was changed in place, by a compiled write."""
    x = torch.randn(3, requires_grad=True)
    factor = torch.ones(3)
    y = (x * factor).sum()
    jitpy.jit(once)(factor, x.detach())
    with pytest.raises(RuntimeError, match="is at version 1; expected version 0"):
        y.backward()
