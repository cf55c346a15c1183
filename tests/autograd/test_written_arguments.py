"""Arguments with a history that get another one, and results computed from these: gradients go through the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitpy
from jitpy.errors import FullGraphError

Program = Callable[[Tensor, Tensor], Any]


def copied(a: Tensor, v: Tensor) -> Any:
    a.view(16).copy_(v)
    return a * 2


def several_results(a: Tensor, v: Tensor) -> Any:
    b = a.exp()
    a.view(16).copy_(v)
    return a.sin(), b * v.view(4, 4), (a * b).sum(), v * 3


def multiplied(a: Tensor, v: Tensor) -> Any:
    a.mul_(v.view(4, 4))
    a.view(16).add_(v)
    return a.exp().sum(0)


def a_part(a: Tensor, v: Tensor) -> Any:
    a[1:3] = v[:8].view(2, 4)
    return a.exp()


def a_constant(a: Tensor, v: Tensor) -> Any:
    a.view(16)[3] = 0
    return a.exp() * v.view(4, 4)


def computed_ahead(a: Tensor, v: Tensor) -> Any:
    t = v.view(4, 4) * 2
    a.copy_(t)
    return t + a, t.sum() * a.detach()


def without_a_result(a: Tensor, v: Tensor) -> Any:
    a.copy_(v.view(4, 4).tanh())
    with torch.no_grad():
        return (a > 0).float()


def random_numbers(a: Tensor, v: Tensor) -> Any:
    first = torch.rand(4, 4)
    a.view(16).copy_(v)
    return a * first, torch.nn.functional.dropout(a, 0.5)


CAPTURED = [copied, several_results, multiplied, a_part, a_constant, computed_ahead, without_a_result, random_numbers]


def view_of_the_argument(a: Tensor, v: Tensor) -> Any:
    b = a.view(16)
    b.copy_(v)
    return b, a * 2


def old_value_behind(a: Tensor, v: Tensor) -> Any:
    old = a[0]
    a.mul_(v.view(4, 4))
    return a * 2, old * 3


def may_fail(a: Tensor, v: Tensor) -> Any:
    a.view(16).copy_(v)
    return torch.linalg.cholesky(a @ a.T + torch.eye(4))


def numbers(a: Tensor, v: Tensor) -> Any:
    a.view(16).copy_(v)
    return a * 2, a.sum().item()


def draws_in_between(a: Tensor, v: Tensor) -> Any:
    w = v * 2
    a.view(16).copy_(v)
    x = torch.nn.functional.dropout(a, 0.5)
    return x, w * torch.rand(16)


BROKEN = [view_of_the_argument, may_fail, numbers, draws_in_between]


def play(fn: Program, program: Callable[..., Any], history: bool = True) -> list[Any]:
    """All that can be seen of a call: results, what hooks on the argument saw, gradients of all kinds."""
    torch.manual_seed(3)
    w, v = torch.randn(4, 4, requires_grad=True), torch.rand(16).requires_grad_()
    a = w * 3 if history else torch.randn(4, 4)
    version = a._version
    out = program(a, v)
    out = out if isinstance(out, tuple) else (out,)
    seen: list[Any] = [*(o.detach().clone() if isinstance(o, Tensor) else o for o in out), a.detach().clone(),
                       a._version - version, a.requires_grad, a.is_leaf, [isinstance(o, Tensor) and o.requires_grad
                                                                          for o in out]]
    hooked: list[Tensor] = []
    a.retain_grad()
    a.register_hook(lambda g: hooked.append(g.clone()) or g * 2)
    loss = sum((o * o).sum() for o in out if isinstance(o, Tensor) and o.requires_grad) + (a * 5).sum()
    direct = torch.autograd.grad(loss, (a, v), retain_graph=True, allow_unused=True)
    loss.backward()  # type: ignore[union-attr]
    return [*seen, *direct, hooked, a.grad, w.grad, v.grad]


@pytest.mark.parametrize("backend", ["codegen", "eager", lambda module, examples: module.forward])
@pytest.mark.parametrize("history", [True, False], ids=["history", "plain"])
@pytest.mark.parametrize("fn", [*CAPTURED, *BROKEN, old_value_behind], ids=lambda fn: fn.__name__)
def test_gradients_go_through_the_argument(fn: Program, history: bool, backend: Any) -> None:
    if fn is a_constant and not history:
        pytest.skip("the argument requires no grad then")
    expected = play(fn, fn, history)
    for whole in (False, True) if fn in CAPTURED else (False,):
        compiled = jitpy.jit(fn, backend=backend, fullgraph=whole)
        for _ in range(3):
            torch.testing.assert_close(play(fn, compiled, history), expected)


@pytest.mark.parametrize("fn", BROKEN, ids=lambda fn: fn.__name__)
def test_what_cannot_be_one_graph_says_so(fn: Program) -> None:
    a, v = torch.randn(4, 4, requires_grad=True) * 3, torch.rand(16).requires_grad_()
    version = a._version
    with pytest.raises(FullGraphError):
        jitpy.jit(fn, fullgraph=True)(a, v)
    assert a._version == version


@pytest.mark.parametrize("dynamic", [None, True])
def test_symbolic_sizes(dynamic: bool | None) -> None:
    def fn(a: Tensor, v: Tensor) -> Any:
        b = a.exp()
        a.view(-1).copy_(v)
        return a.sin() * a.shape[0], b * 2, a.new_ones(a.shape[1] + 1)

    compiled = jitpy.jit(fn, fullgraph=True, dynamic=dynamic)
    for n in (4, 5, 7, 5):
        results = []
        for program in (fn, compiled):
            torch.manual_seed(n)
            w, v = torch.randn(n, n, requires_grad=True), torch.randn(n * n, requires_grad=True)
            a = w * 3
            out = program(a, v)
            (sum(o.sum() for o in out) + a.square().sum()).backward()
            results.append([*out, a, w.grad, v.grad])
        torch.testing.assert_close(results[1], results[0])


def test_fullgraph_is_one_graph() -> None:
    a, v = torch.randn(4, 4, requires_grad=True) * 3, torch.rand(16).requires_grad_()
    report = jitpy.explain(copied, fullgraph=True)(a, v)
    assert report.graph_count == 1 and report.graph_break_count == 0
    report = jitpy.explain(copied)(torch.randn(4, 4, requires_grad=True) * 3, v)
    assert "an argument that got a value with a history" in report.break_reasons[0].detail
