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


# -- writes that the compiled graph makes itself --------------------------------------------------------------------


def only_multiplied(a: Tensor, v: Tensor) -> None:
    a.mul_(v.view(4, 4))


def only_copied(a: Tensor, v: Tensor) -> None:
    a.view(-1).copy_(v.sin())


def keeps_its_result(a: Tensor, v: Tensor) -> None:
    a.mul_(v.view(4, 4)).exp_()


def keeps_both(a: Tensor, v: Tensor) -> Any:
    a.mul_(v.view(4, 4)).tanh_()
    return v.exp()


def part_of_a_view(a: Tensor, v: Tensor) -> Any:
    a.t()[1:3].T[:2].mul_(v[:4].view(2, 2))
    return a.square()


def overlapping_views(a: Tensor, v: Tensor) -> Any:
    a.view(16)[:10].copy_(v[:10])
    a.view(16)[6:].mul_(v[6:])
    return a.view(2, 8).sin()


def other_dtype(a: Tensor, v: Tensor) -> Any:
    a.view(16).copy_(v.double() * 2)
    a[0] = v[:4].half()
    return a * 2


def broadcast(a: Tensor, v: Tensor) -> Any:
    a.copy_(v[:4])
    a[:, 1].copy_(v[3])
    return (a * a).sum()


def transposed(a: Tensor, v: Tensor) -> Any:
    a.t().copy_(v.view(4, 4).exp())
    return a @ a


def used_twice(a: Tensor, v: Tensor) -> Any:
    a.add_(v.view(4, 4) * v[0])
    return a * a, a.sum() + v.sum()


def its_result_and_the_write(a: Tensor, v: Tensor) -> Any:
    y = v * 2
    a.view(16).copy_(y.exp())
    return y


def copied_whole(a: Tensor, v: Tensor) -> None:
    a.copy_(v.view(4, 4))


COMPILED = [copied, multiplied, a_part, only_multiplied, only_copied, part_of_a_view, overlapping_views, other_dtype,
            broadcast, transposed, used_twice, its_result_and_the_write]
#: autograd keeps a value that is written, where the program's `.data` reaches it: torch's own operator writes
OWN_WRITES = [keeps_its_result, keeps_both]


@pytest.mark.parametrize("history", [True, False], ids=["history", "plain"])
@pytest.mark.parametrize("fn", COMPILED, ids=lambda fn: fn.__name__)
def test_compiled_in_one_graph(fn: Program, history: bool) -> None:
    expected = play(fn, fn, history)
    compiled = jitpy.jit(fn)
    for _ in range(3):
        torch.testing.assert_close(play(fn, compiled, history), expected)
    w, v = torch.randn(4, 4, requires_grad=True), torch.rand(16).requires_grad_()
    report = jitpy.explain(fn)(w * 3 if history else torch.randn(4, 4), v)
    assert report.graph_count == 1 and report.graph_break_count == 0
    assert not any(part.reason for graph in report.graphs for part in graph.lowered)


def test_history_is_there_behind_the_call() -> None:
    compiled = jitpy.jit(copied)
    for a, v, written in ((torch.randn(4, 4), torch.rand(16), False),
                          (torch.randn(4, 4), torch.rand(16).requires_grad_(), True),
                          (torch.randn(4, 4, requires_grad=True) * 1, torch.rand(16), True),
                          (torch.randn(4, 4, requires_grad=True) * 1, torch.rand(16).requires_grad_(), True),
                          (torch.randn(4, 4), torch.rand(16), False)):
        before = a.grad_fn
        out = compiled(a, v)
        assert (a.grad_fn is not None) is a.requires_grad is out.requires_grad is written and a._version == 1
        assert not written or a.grad_fn is not before
        torch.testing.assert_close(out, v.view(4, 4) * 2)


@pytest.mark.parametrize("history", [True, False], ids=["history", "plain"])
@pytest.mark.parametrize("fn", [*COMPILED, *OWN_WRITES], ids=lambda fn: fn.__name__)
def test_an_argument_that_is_a_view(fn: Program, history: bool) -> None:
    compiled = jitpy.jit(fn)
    for program in (compiled, compiled):
        results = []
        for run in (fn, program):
            torch.manual_seed(4)
            w, v = torch.randn(6, 4, requires_grad=True), torch.rand(16).requires_grad_()
            base = w * 2 if history else torch.randn(6, 4)
            a = base[1:5]
            out = run(a, v)
            loss = (base * base).sum() + a.sum() * 2 + sum((o * o).sum() for o in (
                out if isinstance(out, tuple) else (out,)) if isinstance(o, Tensor))
            assert a._base is base and base.grad_fn is not None and a.grad_fn is not None
            loss.backward()
            results.append([out, base, a, base._version, w.grad, v.grad])
        torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("fn", [only_multiplied, keeps_its_result, keeps_both, only_copied], ids=lambda f: f.__name__)
def test_later_writes_are_refused_as_in_eager(fn: Program) -> None:
    for history in (True, False):
        seen = []
        for program in (fn, jitpy.jit(fn)):
            w, v = torch.ones(4, 4, requires_grad=True), torch.rand(16).requires_grad_()
            a = w * 3 if history else torch.ones(4, 4)
            program(a, v)
            total = a.sum()
            a.detach().add_(1)
            try:
                total.backward()
                seen.append("")
            except RuntimeError as error:
                seen.append(str(error).partition(";")[0].partition(", which")[0])
        assert seen[0] == seen[1]


@pytest.mark.parametrize("history", [True, False], ids=["history", "plain"])
@pytest.mark.parametrize("fn", [*COMPILED, *OWN_WRITES], ids=lambda fn: fn.__name__)
def test_gradients_of_gradients(fn: Program, history: bool) -> None:
    results = []
    for program in (fn, jitpy.jit(fn)):
        torch.manual_seed(5)
        w, v = torch.randn(4, 4, requires_grad=True), torch.rand(16).requires_grad_()
        a = w * w if history else torch.randn(4, 4)
        out = program(a, v)
        loss = (a * a).sum() + sum((o * o).sum() for o in (out if isinstance(out, tuple) else (out,))
                                   if isinstance(o, Tensor))
        first = torch.autograd.grad(loss, (v, w) if history else (v,), create_graph=True, allow_unused=True)
        again = sum((g * g).sum() for g in first if g is not None)
        second = torch.autograd.grad(again, (v, w) if history else (v,), allow_unused=True)  # type: ignore[arg-type]
        results.append([*first, *second])
    torch.testing.assert_close(results[1], results[0])


def test_gradients_of_gradients_beside_state_that_changes() -> None:
    def fn(state: Tensor, a: Tensor) -> Tensor:
        with torch.no_grad():
            state.mul_(2)
        a.mul_(state)
        return a.exp()

    results = []
    for program in (fn, jitpy.jit(fn)):
        w, state = torch.linspace(0, 1, 4).requires_grad_(), torch.ones(4)
        for _ in range(2):
            first, = torch.autograd.grad(program(state, w * 1).sum(), w, create_graph=True)
            results.append([state.clone(), first, *torch.autograd.grad(first.square().sum(), w)])
    torch.testing.assert_close(results[2:], results[:2])


def test_hooks_stay_with_the_value_they_were_put_on() -> None:
    results = []
    for program in (only_multiplied, jitpy.jit(only_multiplied)):
        w, v = torch.full((4, 4), 2.0, requires_grad=True), torch.full((16,), 3.0, requires_grad=True)
        a, seen = w * 1, []
        a.retain_grad()
        a.register_hook(lambda g, seen=seen: seen.append(("before", g.clone())))
        program(a, v)
        a.register_hook(lambda g, seen=seen: seen.append(("after", g.clone())))
        (a * 5).sum().backward()
        results.append([[name for name, _ in seen], [g for _, g in seen], a.grad, w.grad, v.grad])
        with pytest.raises(RuntimeError, match="a second time"):
            a.sum().backward()
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[1][1:], results[0][1:])


@pytest.mark.parametrize("fn", [only_multiplied, only_copied, copied, its_result_and_the_write, copied_whole],
                         ids=lambda fn: fn.__name__)
def test_a_second_pass_is_refused_as_in_eager(fn: Program) -> None:
    for history in (True, False):
        seen = []
        for program in (fn, jitpy.jit(fn)):
            w, v = torch.ones(4, 4, requires_grad=True), torch.arange(16.0).requires_grad_()
            a = w * 3 if history else torch.ones(4, 4)
            program(a, v)
            a.sum().backward(retain_graph=True)
            a.sum().backward()
            try:
                a.sum().backward()
                seen.append("")
            except RuntimeError as error:
                seen.append(str(error)[:60])
            seen.append(v.grad)
        assert seen[0] == seen[2]
        torch.testing.assert_close(seen[3], seen[1])
