"""Hooks of several parameters run in the order of eager's engine, whatever kind of hooks they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy


class Tied(nn.Module):
    """The first weight that is read is read again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        ids = (x[:, :3].abs() * 10).long() % 7
        return nn.functional.linear(self.norm(self.words(ids) + self.inner(self.words(ids))), self.words.weight)


class Loose(nn.Module):
    """Parameters that are used one by one, some through views, and one not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.unused = nn.Parameter(torch.randn(2))
        self.matrix = nn.Parameter(torch.randn(5, 4))
        self.shift = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return (x * self.scale) @ self.matrix.t() + self.shift * self.scale.sum()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1)),
    "without biases": lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 4, bias=False)),
    "convolutions": lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.BatchNorm2d(3),
                                          nn.ReLU(), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(8, 2)),
    "tied": Tied,
    "loose": Loose,
}

#: What puts a hook on a parameter.
KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "gradients": lambda parameter, note: parameter.register_hook(lambda grad: note()),
    "accumulated": lambda parameter, note: parameter.register_post_accumulate_grad_hook(lambda p: note()),
    "nodes": lambda parameter, note: parameter.view_as(parameter).grad_fn.next_functions[0][0].register_prehook(
        lambda grads: note()),
}


def watched(model: nn.Module, kind: str) -> tuple[list[str], list[Any]]:
    seen: list[str] = []
    held = []
    for name, parameter in model.named_parameters():
        held.append(parameter.view_as(parameter).grad_fn.next_functions[0][0])  # else the node goes, with its hooks
        KINDS[kind](parameter, lambda name=name: seen.append(name))
    return seen, held


def passes(model: nn.Module, forward: Callable[..., torch.Tensor], seen: list[str]) -> list[Any]:
    """What several backward passes of different kinds leave behind."""
    left: list[Any] = []
    for number in range(3):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
        parameters = [p for name, p in model.named_parameters() if name != "unused"]
        loss = forward(x).square().mean()
        loss.backward(retain_graph=True)
        left.append(list(seen))
        if number == 1:
            loss.backward(inputs=parameters[:2], retain_graph=True)
            left += [list(seen), torch.autograd.grad(loss, parameters[1:], retain_graph=True), list(seen)]
        loss.backward()
        left += [list(seen), [None if p.grad is None else p.grad.clone() for p in model.parameters()]]
    return left


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("name", sorted(MODELS))
def test_hooks_run_in_eagers_order(name, kind):
    jitpy.reset()
    torch.manual_seed(0)
    plain = MODELS[name]()
    model = copy.deepcopy(plain)
    seen, _held = watched(plain, kind)
    wanted = passes(plain, plain, seen)
    seen, _held = watched(model, kind)
    found = passes(model, jitpy.jit(model), seen)
    for have, want in zip(found, wanted, strict=True):
        if want and isinstance(want[0], str):
            assert have == want
        else:
            torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


def test_hooks_that_come_later():
    """No guard is about hooks: the same compiled code serves with and without."""
    jitpy.reset()
    torch.manual_seed(0)
    model = MODELS["layers"]()
    fast = jitpy.jit(model)
    x = torch.randn(6, 4)
    fast(x).sum().backward()
    seen, _held = watched(model, "gradients")
    fast(x).sum().backward()
    ours = list(seen)
    seen.clear()
    model(x).sum().backward()
    assert ours == seen and len(ours) == 6
