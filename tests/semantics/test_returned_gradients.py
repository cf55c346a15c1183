"""`torch.autograd.grad` returns what arrives: perhaps the very tensor that it was given, or one tensor for several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy


def passed_on(w: torch.Tensor, g: torch.Tensor) -> Any:
    return torch.autograd.grad(w + 2, w, g)


def through_a_view(w: torch.Tensor, g: torch.Tensor) -> Any:
    return torch.autograd.grad(w.view(3, 1), w, g.view(3, 1))


def of_both(w: torch.Tensor, g: torch.Tensor) -> Any:
    a, b = w * 2, w * 3
    return torch.autograd.grad(a + b, (a, b), g * 2)


def written(w: torch.Tensor, g: torch.Tensor) -> Any:
    (found,) = torch.autograd.grad(w + 2, w, g)
    found.mul_(2)
    return (g + 1,)


def source_written(w: torch.Tensor, g: torch.Tensor) -> Any:
    (found,) = torch.autograd.grad(w + 2, w, g)
    g.mul_(2)
    return (found + 1,)


def read(w: torch.Tensor, g: torch.Tensor) -> Any:
    (found,) = torch.autograd.grad(w + 2, w, g)
    return (found + g,)


def asked_behind(w: torch.Tensor, g: torch.Tensor) -> Any:
    y = w * 2
    a, b = torch.autograd.grad(y + 1, (y, w), g)
    return (a * (3 if a is g else 5) + b,)


def asked_in_a_hook(w: torch.Tensor, g: torch.Tensor) -> Any:
    y = w.exp()
    y.register_hook(lambda grad: grad * (3 if grad is y else 5))
    return torch.autograd.grad(y + 1, w, y)


def asked_of_a_list(w: torch.Tensor, g: torch.Tensor) -> Any:
    y = w.exp()
    known = {g: 3.0}
    y.register_hook(lambda grad: grad * known.get(grad, 5.0))
    return torch.autograd.grad(y + 1, w, g)


class Asks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.made = x * 2
        ctx.save_for_backward(x)
        return ctx.made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * (3 if grad is ctx.made else 5) * (7 if grad is x else 11)


def asked_in_a_backward(w: torch.Tensor, g: torch.Tensor) -> Any:
    y = Asks.apply(w)
    return torch.autograd.grad(y, w, y)


def asked_in_a_backward_of_what_is_saved(w: torch.Tensor, g: torch.Tensor) -> Any:
    return torch.autograd.grad(Asks.apply(w), w, w)


def asked_in_a_backward_of_another(w: torch.Tensor, g: torch.Tensor) -> Any:
    return torch.autograd.grad(Asks.apply(w), w, g)


ASKED = [asked_behind, asked_in_a_hook, asked_of_a_list, asked_in_a_backward, asked_in_a_backward_of_what_is_saved,
         asked_in_a_backward_of_another]


def _observed(fn: Callable[..., Any]) -> list[Any]:
    w, g = torch.ones(3, requires_grad=True), torch.arange(3.0)
    results = [*fn(w, g), w, g]
    memories = [t.untyped_storage()._cdata for t in results]
    facts: list[Any] = [(a is b, c == d) for a, c in zip(results, memories, strict=True)
                        for b, d in zip(results, memories, strict=True)]
    results[0].add_(1)
    return facts + [(t.tolist(), t.stride()) for t in results]


@pytest.mark.parametrize("fn", [passed_on, through_a_view, of_both, written, source_written, read, *ASKED])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_gradient(fn: Callable[..., Any], backend: str) -> None:
    jitted = jitpy.jit(fn, backend=backend)
    for _ in range(2):
        assert _observed(jitted) == _observed(fn)


def test_what_nobody_sees_is_captured() -> None:
    jitpy.jit(read, fullgraph=True)(torch.ones(3, requires_grad=True), torch.ones(3))


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", [lambda y: y + 1, lambda y: y * 1, lambda y: y.clone(), lambda y: y.view(3, 1)])
def test_hooks_outside_get_what_the_pass_is_given(fn: Callable[[torch.Tensor], torch.Tensor], backend: str) -> None:
    def passes(fn: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        found: list[Any] = []
        for with_history in (False, True):
            y = torch.ones(3, requires_grad=True).exp()
            given = y if with_history else torch.arange(3.0)
            y.register_hook(lambda grad, given=given: found.append((grad is given, grad.requires_grad)))
            result = fn(y)
            (grad,) = torch.autograd.grad(result, y, given.view_as(result) if result.shape != y.shape else given)
            found.append((grad is given, grad.requires_grad))
        return found

    assert passes(jitpy.jit(fn, backend=backend)) == passes(fn)
