"""What autograd tells of views: when they were made, how, and what may be written to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

Facts = list[Any]


def _leaf() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3).requires_grad_()


def _plain() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3)


def _computed() -> torch.Tensor:
    return _leaf() * 2


def view_made_before_a_leaf_is_written(x):
    with torch.no_grad():
        view = x.t()
        x.mul_(x)
    return view


def view_made_behind_a_write_to_a_leaf(x):
    with torch.no_grad():
        x.mul_(x)
        view = x.t()
    return view


def one_of_several_made_before_a_write(x):
    part = x.split(1)[0]
    x += 1
    return part


def one_of_several_made_behind_a_write(x):
    x += 1
    return x.split(1)[0]


def two_of_several_around_a_write(x):
    before = x.unbind(0)[0]
    x *= 2
    return before, x.unbind(0)[0]


def one_of_several_of_a_result(x):
    return (x * 2).unbind(0)[-1]


def part_of_one_of_several(x):
    return (x * 2).split(1)[0][0]


def several_without_grad_mode(x):
    with torch.no_grad():
        first, *_ = x.split(1)
        return first + 1, x.chunk(2)[1] * 2


def several_without_grad_mode_shown(x):
    with torch.no_grad():
        first, second = x.unbind(0)
    return first, first * 2 + x[1]


def detached(x):
    return x.detach()


def detached_result_and_result(x):
    y = x * 2
    return y.detach(), y


def data_of_an_argument(x):
    return x.data, x * 2


def view_without_grad_mode(x):
    with torch.no_grad():
        return x.detach().clone()[0]


def plain_view(x):
    return x[0], x.t()


def strided_part_written(x):
    part = x.as_strided((2, 2), (1, 2))
    part.mul_(3)
    return part


def strided_part_of_a_result_written(x):
    y = x * 1
    part = y.as_strided((2, 2), (1, 2))
    part[0] += 1
    return part, y * 1


def _error(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except RuntimeError as error:
        return re.sub(r"Output \d+ of \w+ is", "This is", str(error))[:60]


def _gradients(x: torch.Tensor, parts: list[torch.Tensor]) -> list[Any]:
    if not parts:
        return []
    found = torch.autograd.grad(sum(parts), [x], retain_graph=True, allow_unused=True)
    return [None if g is None else g.tolist() for g in found]


def _facts(x: torch.Tensor, out: Any) -> Facts:
    """What a caller finds out about the results: asked, written to, and behind a backward pass."""
    tensors = out if isinstance(out, tuple) else (out,)
    facts: Facts = []
    for t in tensors:
        facts += [t.requires_grad, _error(lambda t=t: t.is_leaf)]
    if not x.requires_grad:
        x.requires_grad_()
        facts += [(t.requires_grad, _error(lambda t=t: t.is_leaf)) for t in tensors]
        x.requires_grad_(False)
    facts.append(_error(lambda: _gradients(x, [(t * (k + 2)).sum() for k, t in enumerate((x, *tensors))
                                               if t.requires_grad])))
    weight = torch.full((), 2.0, requires_grad=True)
    for t in tensors:
        facts.append(_error(lambda t=t: t.mul_(weight).tolist()))
    with torch.no_grad():
        for t in tensors:
            facts.append(_error(lambda t=t: t.add_(1).tolist()))
    return [*facts, x.tolist(), [t.tolist() for t in tensors]]


_PROGRAMS = [fn for name, fn in list(globals().items()) if callable(fn) and getattr(fn, "__module__", "") == __name__
             and not name.startswith("_")]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("made", [_leaf, _plain, _computed])
@pytest.mark.parametrize("fn", _PROGRAMS, ids=lambda fn: fn.__name__)
def test_like_eager(fn: Callable[..., Any], made: Callable[[], torch.Tensor], backend: str) -> None:
    def run(called: Callable[..., Any]) -> Facts:
        x = made()
        try:
            out = called(x)
        except RuntimeError as error:
            return [str(error)[:60]]
        return _facts(x, out)

    jitted = jitpy.jit(fn, backend=backend)
    for _ in range(2):
        assert run(jitted) == run(fn)


def test_a_value_made_without_grad_mode_is_no_view() -> None:
    def fn(g):
        part = g[1:]
        with torch.no_grad():
            chosen = torch.where(part > 0, part, part)
        g.fill_(0.5)
        chosen.fill_(0.25)
        return chosen

    for backend in ("eager", "codegen"):
        assert not jitpy.jit(fn, backend=backend)(_computed()).requires_grad


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_chunks_of_symbolic_sizes(backend: str) -> None:
    jitted = jitpy.jit(lambda x: [part * 2 for part in x.chunk(2)], backend=backend)
    for size in (4, 6, 5, 7, 9):
        x = torch.randn(size)
        for found, wanted in zip(jitted(x), x.chunk(2), strict=True):
            torch.testing.assert_close(found, wanted * 2)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_views_made_before_a_write_beside_other_views(backend: str) -> None:
    def fn(s):
        kept = torch.empty_like(s).copy_(s)
        shown, row = kept.detach(), s.unsqueeze(0)
        s.clamp_(-1, 1)
        return row, kept.view_as(kept), shown

    def run(called: Any) -> list[Any]:
        s = torch.tensor([2.0, -3.0, 0.5])
        return [(out.tolist(), out.is_leaf, out.data_ptr() == s.data_ptr()) for out in called(s)]

    jitted = jitpy.jit(fn, backend=backend)
    for _ in range(2):
        assert run(jitted) == run(fn)


_VIEWS_OF_LEAVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda w: w.t(), "view": lambda w: w.view(16), "slice": lambda w: w[1:3], "chunk": lambda w: w.chunk(2)[0],
    "data": lambda w: w.data, "detached": lambda w: w.detach().t(), "bytes": lambda w: w.view(torch.int32).view(16),
}


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", _VIEWS_OF_LEAVES)
def test_what_is_computed_of_views_made_under_no_grad(name: str, mode: Any, computed: bool) -> None:
    def fn(w):
        base = w * 3 if computed else w
        with mode():
            view = _VIEWS_OF_LEAVES[name](base)
        out = view * 2
        return out, out.requires_grad, view.requires_grad, view.is_leaf

    def run(called: Any, weight: torch.Tensor) -> list[Any]:
        out, *facts = called(weight)
        if out.requires_grad:
            out.sum().backward()
        return [out.tolist(), out.requires_grad, facts, weight.grad is None]

    jitted = jitpy.jit(fn, backend="eager")
    for weight in (torch.nn.Parameter(torch.randn(4, 4)), torch.randn(4, 4)):
        for _ in range(2):
            assert run(jitted, weight) == run(fn, weight)


def test_a_module_that_looks_at_its_parameter_under_no_grad() -> None:
    class Tied(torch.nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                weight = self.weight.t()
            return x @ weight + self.bias

    def run(module: Any) -> list[Any]:
        module.zero_grad()
        module(torch.ones(2, 4)).sum().backward()
        return [None if p.grad is None else p.grad.tolist() for p in module.parameters()]

    module = Tied(4, 4)
    wanted = run(module)
    jitted = jitpy.jit(module, backend="eager")
    for _ in range(2):
        jitted(torch.ones(2, 4)).sum().backward()
    assert [None if p.grad is None else (p.grad / 3).tolist() for p in module.parameters()] == wanted


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_views_with_another_dtype_twice(backend: str) -> None:
    def fn(x):
        return x.view(torch.int32).view(torch.float32) * 2, x.view(torch.int32).view(16) + 1

    x = torch.randn(4, 4)
    for found, wanted in zip(jitpy.jit(fn, backend=backend)(x), fn(x), strict=True):
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
