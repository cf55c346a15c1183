"""Which backward passes of autograd functions are known to be linear, and what happens with those that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function

import jitpy
from jitpy.ir import autograd_function
from jitpy.ir.interpret import interpret

Backward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def function(backward: Backward) -> Any:
    class Doubled(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return backward(*ctx.saved_tensors, grad)

    return Doubled


def zeros_by_mask(x, g):
    g = g.clone()
    g[x < 0] = 0
    return g


def zeros_in_place(x, g):
    return g.clone().masked_fill_(x < 0, 0)


def part_written(x, g):
    made = torch.zeros_like(x)
    made[1:] = g[1:] * 3
    return made


def added_at_places(x, g):
    return torch.zeros_like(x).index_add_(0, torch.tensor([0, 3, 3, 1]), g)


def sums_in_place(x, g):
    made = g * 2
    made += g * x
    made.mul_(2)
    return made.sub_(g)


PLACES = torch.tensor([3, 2, 1, 0])
LINEAR: dict[str, Backward] = {
    "zeros_by_mask": zeros_by_mask,
    "zeros_in_place": zeros_in_place,
    "part_written": part_written,
    "added_at_places": added_at_places,
    "sums_in_place": sums_in_place,
    "where_number": lambda x, g: torch.where(x > 0, g, 0.0),
    "where_zeros": lambda x, g: torch.where(x > 0, torch.zeros_like(g), g),
    "masked": lambda x, g: g.masked_fill(x < 0, 0),
    "mask": lambda x, g: g * ((x > -1) & (x < 1)),
    "padded": lambda x, g: F.pad(g[1:], (1, 0)),
    "joined": lambda x, g: torch.cat([g[2:], g.new_zeros(1), g[:1] * 2]),
    "stacked": lambda x, g: torch.stack([g[0], g[1] * x[0], g[3], g[2]]),
    "softmax": lambda x, g: torch.softmax(x, 0) * (g - (g * torch.softmax(x, 0)).sum()),
    "scattered": lambda x, g: torch.zeros_like(g).scatter(0, PLACES, g),
    "scattered_sum": lambda x, g: torch.zeros_like(g).scatter_add(0, PLACES, g),
    "product": lambda x, g: F.linear(g, torch.outer(x, x)),
    "product_and_sum": lambda x, g: torch.addmv(g, torch.outer(x, x), g),
    "summed_product": lambda x, g: torch.addcmul(g, g, x),
    "between": lambda x, g: torch.lerp(g, g * 2, 0.3),
    "negative": lambda x, g: 0 - g,
    "convolution": lambda x, g: F.conv1d(g[None, None], torch.ones(1, 1, 3), padding=1)[0, 0],
    "einsum": lambda x, g: torch.einsum("i,ij->j", g, torch.outer(x, x)),
    "diagonal": lambda x, g: torch.diag(g) @ x,
    "order": lambda x, g: g[torch.argsort(x)],
    "of_activation": lambda x, g: torch.ops.aten.gelu_backward(g, x),
    "ones": lambda x, g: torch.ones_like(g) * g,
    "zeros": lambda x, g: torch.zeros_like(g),
}
OTHERS: dict[str, Backward] = {
    "clamped": lambda x, g: g.clamp(-1, 1),
    "normalised": lambda x, g: g / g.norm(),
    "constant": lambda x, g: torch.ones_like(g),
    "shifted": lambda x, g: g + 1,
    "square": lambda x, g: g * g,
    "filled": lambda x, g: g.masked_fill(x < 0, 1),
    "chosen": lambda x, g: torch.where(x > 0, g, 1.0),
    "chosen_by_itself": lambda x, g: torch.where(g > 0, g, 0.0),
    "rounded": lambda x, g: torch.div(g, 0.1, rounding_mode="floor"),
    "whole": lambda x, g: g.to(torch.int32).float(),
    "padded": lambda x, g: F.pad(g[1:], (1, 0), value=1.0),
    "mixed": lambda x, g: torch.lerp(x, g, g),
    "bias": lambda x, g: F.linear(g, torch.outer(x, x), x),
}


def leaf() -> torch.Tensor:
    return torch.tensor([0.3, -0.7, 1.2, -0.1], requires_grad=True)


@pytest.mark.parametrize("name", [*LINEAR, *(f"not {name}" for name in OTHERS)])
def test_what_is_linear(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, int, bool]] = []

    def ask(graph: Any, n_inputs: int) -> bool:
        asked.append((graph, n_inputs, answer(graph, n_inputs)))
        return asked[-1][-1]

    answer = autograd_function.is_linear
    monkeypatch.setattr(autograd_function, "is_linear", ask)
    backward = LINEAR.get(name) or OTHERS[name.removeprefix("not ")]
    found = []
    for run in (lambda fn: fn, jitpy.jit):
        x, doubled = leaf(), function(backward)
        run(lambda x, doubled: doubled.apply(x).sin())(x, doubled).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])
    graph, count, linear = asked[0]
    assert count == 1 and linear == (name in LINEAR)
    rest = [leaf().detach() if node.spec.dtype.is_floating_point else PLACES for node in graph.inputs[1:]]
    a, b = torch.randn(2, 4)
    parts = [interpret(graph, (grad, *rest), False)[0] for grad in (a, b, a + b)]
    assert not linear or torch.allclose(parts[0] + parts[1], parts[2], atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", OTHERS)
def test_captured_passes_bring_all_at_once(name: str, backend: str) -> None:
    doubled = function(OTHERS[name])

    def once(x: torch.Tensor) -> Any:
        (doubled.apply(x) * x).sum().backward()
        return x.grad

    def twice(x: torch.Tensor) -> Any:
        y = doubled.apply(x)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        (first.pow(2).sum() + y.sum()).backward()
        return first.detach(), x.grad

    def half(x: torch.Tensor) -> Any:
        y = doubled.apply(x)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        return first, y

    def whole(x: torch.Tensor, run: Any) -> Any:
        first, y = run(x)
        (first.pow(2).sum() + y.sum()).backward()
        return first.detach(), x.grad

    jitpy.reset()
    torch.testing.assert_close(jitpy.jit(once, backend=backend, fullgraph=True)(leaf()), once(leaf()))
    try:
        expected = twice(leaf())
    except RuntimeError:  # what `backward` returns has no derivative
        return
    torch.testing.assert_close(jitpy.jit(twice, backend=backend, fullgraph=True)(leaf()), expected)
    torch.testing.assert_close(whole(leaf(), jitpy.jit(half, backend=backend)), whole(leaf(), half))
