"""Hooks that the jitted function itself registers and removes: they run in the backward pass as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy

#: name -> (maker of `fn(x)` and of the list that its hooks write to, breaks allowed in the forward pass)
CASES: dict[str, tuple[Callable[[], tuple[Callable[..., torch.Tensor], list[Any]]], int]] = {}


def case(breaks: int) -> Any:
    def register(make: Any) -> Any:
        CASES[make.__name__] = make, breaks
        return make

    return register


@case(1)
def changes_the_gradient_of_an_intermediate():
    def fn(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return y.sin().sum() + y.sum()

    return fn, []


@case(1)
def keeps_the_gradient_of_an_intermediate():
    seen: list[Any] = []

    def fn(x):
        y = x.sin()
        before = y * 3  # used before the hook is there: its gradient counts too
        y.register_hook(seen.append)
        return (y.cos() + before).sum()

    return fn, seen


@case(3)
def retained_gradient():
    seen: list[Any] = []

    def fn(x):
        y = x.sin()
        before = y * 3
        y.retain_grad()
        y.register_hook(lambda g: seen.append(g.sum().item()) or g + 1)
        x.register_hook(lambda g: seen.append(y.grad))
        return (y.cos() + before).sum()

    return fn, seen


@case(1)
def on_an_input():
    seen: list[Any] = []

    def fn(x):
        x.register_hook(lambda g: seen.append(g.sum().item()) or g * 2)
        return (x * 2).sin().sum()

    return fn, seen


@case(2)
def two_hooks_in_order():
    seen: list[Any] = []

    def fn(x):
        y = x * 2
        y.register_hook(lambda g: seen.append(("first", g.sum().item())) or g + 1)
        y.register_hook(lambda g: seen.append(("second", g.sum().item())) or g * 3)
        return y.sin().sum()

    return fn, seen


@case(2)
def removed_by_its_handle():
    seen: list[Any] = []

    def fn(x):
        y = x * 2
        handle = y.register_hook(lambda g: seen.append(1))
        z = y.sin()
        handle.remove()
        return z.sum()

    return fn, seen


@case(2)
def in_a_helper():
    seen: list[Any] = []

    def watched(t, name):
        t.register_hook(lambda g: seen.append((name, g.sum().item())))
        return t

    def fn(x):
        a = watched(x * 2, "a")
        b = watched(a.sin(), "b")
        return (a * b).sum()

    return fn, seen


@case(2)
def forward_hook_of_a_module():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(9.0).view(3, 3) / 9)
        layer.bias.zero_()
    seen: list[Any] = []

    def fn(x):
        handle = layer.register_forward_hook(lambda module, args, out: seen.append(out.detach()) or out * 2)
        y = layer(x)
        handle.remove()
        return (y + layer(x)).sum()

    return fn, seen


@case(2)
def pre_hook_of_a_module():
    layer = nn.Tanh()

    def fn(x):
        with_hook = layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        y = layer(x)
        with_hook.remove()
        return (y + layer(x)).sum()

    return fn, []


@case(9)
def backward_hook_of_a_module():
    layer = nn.Tanh()
    seen: list[Any] = []

    def fn(x):
        handle = layer.register_full_backward_hook(
            lambda module, grads, given: seen.append(given[0].sum().item()) or (grads[0] * 2,))
        y = layer(x * 3)
        handle.remove()
        return y.sum() + layer(x).sum()

    return fn, seen


@case(9)
def with_the_backward_pass_inside():
    seen: list[Any] = []

    def fn(x):
        y = x * 2
        y.register_hook(lambda g: seen.append(g.sum().item()) or g * 10)
        loss = y.sin().sum()
        (grad,) = torch.autograd.grad(loss, x, retain_graph=True)
        return loss + grad.sum()

    return fn, seen


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str, backend: str) -> None:
    jitpy.reset()
    make, allowed = CASES[name]
    (plain, expected), (fn, found) = make(), make()
    fast = jitpy.jit(fn, backend=backend)
    for i in range(4):
        gradients = []
        for run in (plain, fast):
            x = (torch.arange(3.0) / 3 + i).requires_grad_()
            run(x).backward()
            gradients.append(x.grad)
        torch.testing.assert_close(gradients[1], gradients[0])
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            if isinstance(one, tuple):
                assert one[0] == other[0]
                one, other = one[1], other[1]
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", CASES)
def test_few_breaks(name: str) -> None:
    make, allowed = CASES[name]
    fn, _ = make()
    report = jitpy.explain(fn)(torch.arange(3.0).requires_grad_())
    assert len(report.break_reasons) <= allowed, [str(record) for record in report.break_reasons]
