"""Tensors whose state, which no key tells, makes eager raise or require grad: guards tell them from usual ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

Make = Callable[[bool], torch.Tensor]


def _one_of_several(unusual: bool) -> torch.Tensor:
    w = torch.ones(2, 3, requires_grad=True)
    base = w * 2
    part, _ = base.unbind(0)
    if unusual:
        base.mul_(2)
    return part


def _without_versions(unusual: bool) -> torch.Tensor:
    with torch.inference_mode(unusual):
        tensor = torch.ones(3)
    if unusual:
        tensor.data = torch.ones(3)
    return tensor


def _keys_of_inference(unusual: bool) -> torch.Tensor:
    with torch.inference_mode(unusual):
        given = torch.ones(3)
    tensor = torch.ones(3)
    tensor.data = given
    return tensor


def write_behind(t: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    r = t * 2
    i.add_(1)
    return r


def write_before(t: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    i.add_(1)
    return t * 2


def view_and_write(t: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    r = t[None]
    i.add_(1)
    return r


def write_and_view(t: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    i.add_(1)
    return t[None]


def _played(fn: Callable[..., Any], make: Make) -> list[Any]:
    facts = []
    for unusual in (True, False, False, False, True, False, True):
        other = torch.zeros(2)
        try:
            result = fn(make(unusual), other)
            facts.append((result.detach().tolist(), result.requires_grad, result.is_inference()))
        except RuntimeError as error:
            facts.append(str(error))
        facts.append(other.tolist())
    return facts


@pytest.mark.parametrize("make", [_one_of_several, _without_versions, _keys_of_inference])
@pytest.mark.parametrize("fn", [write_behind, write_before, view_and_write, write_and_view])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_errors_come_where_eager_raises_them(fn: Callable[..., Any], make: Make, backend: str) -> None:
    assert _played(jitpy.jit(fn, backend=backend), make) == _played(fn, make)


def test_assigned_data_inside_of_what_inference_mode_made() -> None:
    def fn(h: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            t = h * 2
        t.data = y
        r = t.expand(2, 3)
        i.add_(1)
        return r

    for called in (fn, jitpy.jit(fn)):
        i = torch.zeros(2)
        with pytest.raises(RuntimeError, match="do not track version counter"):
            called(torch.ones(3), torch.ones(3), i)
        assert i.tolist() == [0, 0]


def test_view_whose_base_comes_to_require_grad() -> None:
    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = torch.ones(2, 3)
            self.register_buffer("part", self.whole[0])

        def forward(self) -> torch.Tensor:
            return (self.part * 2).exp()

    held = Holder()
    jitted = jitpy.jit(held)
    for _ in range(5):
        assert not jitted().requires_grad
    held.whole.requires_grad_()
    assert jitted().requires_grad == held().requires_grad is True
