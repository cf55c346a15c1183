"""Whole training steps in one jitted function on a GPU: what eager computes, step by step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitpy

MODES = ("default", "reduce-overhead")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "adamw one by one": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=False),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
    "adam capturable": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, capturable=True),
}


class Trained:
    """A model with its optimizer, and the step that trains it."""

    def __init__(self, model: nn.Module, name: str, mixed: bool) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = OPTIMIZERS[name](self.model.parameters())
        self.scaler = torch.amp.GradScaler("cuda", enabled=mixed, init_scale=256.0)
        self.mixed = mixed

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=self.mixed):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def train(trained: Trained, step: Callable[..., torch.Tensor], device: torch.device) -> list[float]:
    generator = torch.Generator(device).manual_seed(1)
    losses = []
    for _ in range(8):
        x = torch.randn(32, 64, device=device, generator=generator)
        y = torch.randint(0, 10, (32,), device=device, generator=generator)
        losses.append(step(x, y).item())
    return losses


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training(cuda: torch.device, name: str, mode: str, mixed: bool) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10)).to(cuda)
    ours, theirs = Trained(model, name, mixed), Trained(model, name, mixed)
    found, expected = train(ours, jitpy.jit(ours.step, mode=mode), cuda), train(theirs, theirs.step, cuda)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-2, atol=1e-3)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=4e-3)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        states = ours.optimizer.state[one], theirs.optimizer.state[other]
        if "step" in states[0]:
            assert states[0]["step"].device == states[1]["step"].device
            assert states[0]["step"].item() == states[1]["step"].item() == 8
    assert ours.scaler.get_scale() == theirs.scaler.get_scale()


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_in_two_layouts(cuda: torch.device, causal: bool) -> None:
    """cuDNN's backward kernel is cached without regard to the strides of the gradient that it reads."""

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, rows: bool) -> torch.Tensor:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return ((out if rows else out.transpose(1, 2).reshape(w.shape)) * w).float().sum()

    torch.manual_seed(0)
    shape = (2, 6, 64, 64)
    given = [torch.randn(shape, device=cuda, dtype=torch.bfloat16) for _ in range(3)]
    weights = torch.randn(shape, device=cuda, dtype=torch.bfloat16), torch.randn(2, 64, 384, device=cuda).bfloat16()
    step = jitpy.jit(loss)
    for call, rows in ((loss, False), (step, True), (step, False), (step, True)):
        exact = [x.double().requires_grad_() for x in given]
        loss(*exact, weights[0 if rows else 1].double(), rows).backward()
        own = [x.clone().requires_grad_() for x in given]
        call(*own, weights[0 if rows else 1], rows).backward()
        for one, other in zip(own, exact, strict=True):
            assert (one.grad.double() - other.grad).norm() < 2e-2 * other.grad.norm()
