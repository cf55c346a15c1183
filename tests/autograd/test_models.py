"""Models as they are trained: losses, gradients, buffers and random state as eager leaves them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import jitpy
from jitpy.autograd import compile
from tests.autograd.models import MODELS, Step, no_further_off, twin


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were made differentiable by jitpy itself."""
    made: list[Any] = []
    original = compile.make_differentiable

    def make(forward: Any, spec: Any) -> Any:
        made.append(spec)
        return original(forward, spec)

    monkeypatch.setattr(compile, "make_differentiable", make)
    return made


def needs(name: str) -> None:
    if name != "resnet":
        pytest.importorskip("transformers")


@pytest.mark.parametrize("name", MODELS)
def test_one_step_equals_eager(name: str, nodes: list[Any]) -> None:
    needs(name)
    model, loss = MODELS[name]()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # masks of float64 are others
    model.train()
    if hasattr(model, "config"):
        model.config.attention_dropout = model.config.attention_probs_dropout_prob = 0.0
        for module in model.modules():
            if isinstance(getattr(module, "dropout_prob", None), float):
                module.dropout_prob = 0.0
    plain, precise = twin(model), twin(model, torch.float64)
    last = Step(twin(model).to(memory_format=torch.channels_last), loss)
    found, eager, exact = Step(model, jitpy.jit(loss)), Step(plain, loss), Step(precise, loss)
    assert len(nodes) == 1
    no_further_off(found.loss, eager.loss, exact.loss, "the loss", last.loss)
    for key, grad in eager.grads.items():
        if grad is None:
            assert found.grads[key] is None, key
        else:
            no_further_off(found.grads[key], grad, exact.grads[key], key, last.grads[key])
    for key, buffer in eager.buffers.items():
        torch.testing.assert_close(found.buffers[key], buffer)


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet"])
def test_dropout_as_in_eager(name: str, nodes: list[Any]) -> None:
    """The same masks under a seed, and the same random state afterwards."""
    needs(name)
    model, loss = MODELS[name]()
    model.train()
    plain = twin(model)
    compiled = jitpy.jit(loss)
    for seed in range(3):
        eager, found = Step(plain, loss, seed), Step(model, compiled, seed)  # what is said once is said by the first
        torch.testing.assert_close(found.loss, eager.loss)
        assert found.random == eager.random
        for key, grad in eager.grads.items():
            torch.testing.assert_close(found.grads[key], grad, rtol=1e-3, atol=1e-5)
    assert len(nodes) == 1


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_fifty_steps(name: str, amp: bool, nodes: list[Any]) -> None:
    """An ordinary loop around a jitted loss follows eager."""
    needs(name)
    model, loss = MODELS[name]()
    model.train()
    losses = []
    for made, fn in ((twin(model), loss), (model, jitpy.jit(loss))):
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3)
        losses.append([])
        for _ in range(50):
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                value = fn(made)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses[-1].append(value.item())
    assert len(nodes) == 1
    first, second = (torch.tensor(values) for values in losses)
    torch.testing.assert_close(first, second, rtol=5e-2 if amp else 2e-3, atol=5e-2 if amp else 1e-3)
