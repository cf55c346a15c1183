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


def _observed(fn: Callable[..., Any]) -> list[Any]:
    w, g = torch.ones(3, requires_grad=True), torch.arange(3.0)
    results = [*fn(w, g), w, g]
    memories = [t.untyped_storage()._cdata for t in results]
    facts: list[Any] = [(a is b, c == d) for a, c in zip(results, memories, strict=True)
                        for b, d in zip(results, memories, strict=True)]
    results[0].add_(1)
    return facts + [(t.tolist(), t.stride()) for t in results]


@pytest.mark.parametrize("fn", [passed_on, through_a_view, of_both, written, source_written, read])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_gradient(fn: Callable[..., Any], backend: str) -> None:
    jitted = jitpy.jit(fn, backend=backend)
    for _ in range(2):
        assert _observed(jitted) == _observed(fn)


def test_what_nobody_sees_is_captured() -> None:
    jitpy.jit(read, fullgraph=True)(torch.ones(3, requires_grad=True), torch.ones(3))
