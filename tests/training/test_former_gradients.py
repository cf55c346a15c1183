"""A step that replaces gradients gives the memory of the former ones back before it computes the new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitpy
from jitpy import logs

Tensor = torch.Tensor
SIZE = 600  # a weight of more than 1 MiB


@pytest.fixture(autouse=True)
def clean():
    jitpy.reset()
    yield
    jitpy.reset()


def step_of(model: nn.Module, clear_first: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def step(x: Tensor, labels: Tensor) -> Tensor:
        if clear_first:
            model.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        if not clear_first:
            model.zero_grad()
        loss.backward()
        return loss

    return step


def batch(seed: int, last: int = SIZE - 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, SIZE, generator=generator), torch.tensor([0, 1, 2, 3, 4, 5, 6, last])


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [p.grad for p in model.parameters()]


def test_former_gradients_go_before_the_backward_pass() -> None:
    texts: list[str] = []
    model = nn.Linear(SIZE, SIZE)
    step = jitpy.jit(step_of(model, clear_first=True))
    sink = logs.set_sink(texts.append)
    logs.enable("steps")
    try:
        for seed in range(3):
            texts.clear()
            step(*batch(seed))
    finally:
        logs.disable("steps")
        logs.set_sink(sink)
    lines = "\n".join(texts).splitlines()
    drop = next(k for k, line in enumerate(lines) if "call drop_gradients(" in line)
    assert any("call aten.mm" in line for line in lines[drop:])


@pytest.mark.parametrize("clear_first", [True, False])
def test_gradients_are_those_of_eager(clear_first: bool) -> None:
    torch.manual_seed(0)
    model, twin = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
    twin.load_state_dict(model.state_dict())
    step, plain = jitpy.jit(step_of(model, clear_first)), step_of(twin, clear_first)
    held: list[Any] = []
    for seed in range(4):
        torch.testing.assert_close(step(*batch(seed)), plain(*batch(seed)))
        for mine, right in zip(gradients(model), gradients(twin), strict=True):
            torch.testing.assert_close(mine, right)
        held.append([(grad, grad.clone()) for grad in gradients(model) if grad is not None])
    assert all(torch.equal(grad, copy) for one in held for grad, copy in one)  # who holds one keeps it as it was


@pytest.mark.parametrize("clear_first", [True, False])
def test_a_step_that_fails_leaves_the_gradients_of_eager(clear_first: bool) -> None:
    torch.manual_seed(0)
    model, twin = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
    twin.load_state_dict(model.state_dict())
    step, plain = jitpy.jit(step_of(model, clear_first)), step_of(twin, clear_first)
    for seed in range(3):
        step(*batch(seed))
        plain(*batch(seed))
    for run in (step, plain):
        with pytest.raises(IndexError, match="out of bounds"):
            run(*batch(3, last=SIZE))
    for mine, right in zip(gradients(model), gradients(twin), strict=True):
        assert (mine is None) == (right is None) == clear_first
        if right is not None:
            torch.testing.assert_close(mine, right)
