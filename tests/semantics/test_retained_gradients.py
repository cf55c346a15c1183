"""`retain_grad()` of what a jitted function computes. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from tests.semantics.harness import case, make_test


def graph_break() -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    import jitpy

    graph_break = jitpy.graph_break  # type: ignore[assignment]


def leaf():
    return (torch.randn(4, requires_grad=True),)


@case(leaf, fullgraph=True)
def read_behind_the_pass(x):
    y = x * 2
    y.retain_grad()
    before = y.grad
    (y * y).sum().backward()
    return before, y.grad, x.grad


@case(leaf, fullgraph=True)
def two_passes_add_up(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    first = y.grad
    (y * 3).sum().backward()
    return first, y.grad, first is y.grad, x.grad


@case(leaf, factory=True, fullgraph=True)
def hooks_come_first():
    log = []

    def fn(x):
        y = x * 2
        y.retain_grad()
        y.register_hook(lambda g: log.append("hook") or g * 3)
        y.retain_grad()
        (y * y).sum().backward()
        return y.grad, x.grad

    return fn, log


@case(leaf, fullgraph=True)
def views_and_their_bases(x):
    y = x * 2
    y.retain_grad()
    v = y[1:]
    v.retain_grad()
    z = v.sum().expand(3)
    z.retain_grad()
    (z * torch.arange(3.0)).sum().backward()
    return y.grad, v.grad, z.grad


@case(leaf, fullgraph=True)
def no_pass_comes(x):
    y = x * 2
    y.retain_grad()
    (y.detach() * x).sum().backward()
    return y.grad, x.grad


@case(leaf, fullgraph=True)
def other_kinds_of_passes(x):
    y = x * 2
    y.retain_grad()
    (grad,) = torch.autograd.grad((y * y).sum(), x, retain_graph=True)
    y.grad.zero_()
    (y * 3).sum().backward()
    return y.grad, grad


@case(lambda: (torch.randn(4),), factory=True, fullgraph=True)
def activations_of_layers():
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))

    def fn(x):
        kept = []
        for layer in layers:
            x = layer(x)
            x.retain_grad()
            kept.append(x)
        x[0].backward()
        return [y.grad.abs().sum() for y in kept]

    return fn, layers


@case(leaf)
def written_to_since(x):
    y = x * 2
    y.retain_grad()
    y.add_(1)
    (y * y).sum().backward()
    return y.grad


@case(leaf)
def beside_a_hook(x):
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    return y, y * 2


@case(leaf)
def written_to_and_returned(x):
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    return y


@case(leaf, fullgraph=True)
def gradient_with_a_history(x):
    y = x * 2
    y.retain_grad()
    (y**3).sum().backward(create_graph=True)
    grad = y.grad
    x.grad = None
    return grad


@case(leaf)
def break_before_the_pass(x):
    y = x * 2
    y.retain_grad()
    graph_break()
    (y * y).sum().backward()
    return y.grad


@case(leaf, fullgraph=True)
def gradient_is_taken_away(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    y.grad = None
    (y * y).sum().backward()
    return y.grad


@case(leaf)
def refused_without_a_history(x):
    with torch.no_grad():
        (x * 2).retain_grad()


@case(leaf, fullgraph=True)
def asked_about(x):
    y = x * 2
    before = y.retains_grad
    y.retain_grad()
    x.retain_grad()
    return before, y.retains_grad, x.retains_grad, x.detach().retains_grad


test_all = make_test(__name__)


def no_pass_inside(x):
    y = x * 2
    y.retain_grad()
    h = y.sin()
    h.retain_grad()
    return (h * y).sum(), y, h


def one_inside_one_outside(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    return (y**3).sum(), y


def nothing_left(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    return (y * 1).sum(), y


def given_another(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    y.grad = torch.ones(4)
    return (y**3).sum(), y


def nothing_left_of_it(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    return (y,)


def not_returned(x):
    y = x * 2
    y.retain_grad()
    return ((y * y).sum(),)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize(
    "fn", [no_pass_inside, one_inside_one_outside, given_another, nothing_left_of_it, not_returned]
)
def test_passes_outside(fn, backend):
    """Results that retain their gradients get those of passes outside, too."""
    import jitpy

    def outcome(called, seed):
        torch.manual_seed(seed)
        x = torch.randn(4, requires_grad=True)
        total, *kept = called(x)
        error = None
        try:
            total.sum().backward()
        except RuntimeError as raised:
            error = str(raised)
        return error, x.grad, [(y.retains_grad, y.grad) for y in (total, *kept)]

    jitted = jitpy.jit(fn, backend=backend, fullgraph=True)
    for seed in range(2):
        (error, *found), (expected_error, *expected) = outcome(jitted, seed), outcome(fn, seed)
        assert error == expected_error
        torch.testing.assert_close(found, expected)


def test_passes_that_fail_outside():
    """A pass that raises behind a result has brought a gradient to that before."""
    import jitpy

    grads = []
    for called in (nothing_left, jitpy.jit(nothing_left, backend="eager")):
        total, y = called(torch.ones(4, requires_grad=True))
        with pytest.raises(RuntimeError, match="second time"):
            total.backward()
        grads.append(y.grad)
    torch.testing.assert_close(*grads)


def test_layers_whose_outputs_retain_gradients():
    """A forward hook that retains gradients, as maps of what a network looks at are made with."""
    import jitpy

    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    kept = {}

    def keep(module, args, out):
        out.retain_grad()
        kept["out"] = out

    layers[1].register_forward_hook(keep)

    def fn(x):
        layers(x)[:, 0].sum().backward()
        return (kept["out"] * kept["out"].grad).sum(1).detach()

    x = torch.randn(3, 4)
    expected, grad = fn(x), kept["out"].grad
    torch.testing.assert_close(jitpy.jit(fn, backend="eager", fullgraph=True)(x), expected)
    assert kept["out"].retains_grad
    torch.testing.assert_close(kept["out"].grad, grad)


def _retained(w, v, u):
    u.mul_(w.sum())
    v.retain_grad()
    return (v * v).sum() + u.sum()


def _retained_in_front(w, v, u):
    if v.requires_grad:
        v.retain_grad()
    u.mul_(w.sum())
    return (v * v).sum()


def _written_next(w, v, u):
    u.mul_(w.sum())
    v.mul_(2)
    return (v * v).sum()


def _written_behind_both(w, v, u):
    u.mul_(w.sum())
    v.retain_grad()
    v.copy_(w[:2])
    return (v * v).sum()


@pytest.mark.parametrize("fn", [_retained, _retained_in_front, _written_next, _written_behind_both])
def test_views_that_are_written_through_another_view(fn):
    """Until its history is asked for, torch takes a view that is older than that for a leaf."""
    import jitpy

    def outcome(called, has_history):
        w = torch.arange(4.0, requires_grad=True)
        base = w * 2 if has_history else torch.ones(4)
        v, u = base[:2], base[1:]
        try:
            called(w, v, u).backward()
        except RuntimeError as error:
            return str(error)
        return w.grad.tolist(), v.retains_grad, v.grad if v.grad is None else v.grad.tolist()

    jitted = jitpy.jit(fn, backend="eager")
    for has_history in (False, False, True, False):
        assert outcome(jitted, has_history) == outcome(fn, has_history)
