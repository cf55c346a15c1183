"""Inference mode that begins and ends in a jitted function, or around it. PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitpy
from tests.semantics.harness import case, make_test

MODE = torch.inference_mode()


def leaf():
    return (torch.randn(4, requires_grad=True),)


def plain():
    return (torch.randn(4),)


def made_inside():
    with torch.inference_mode():
        return (torch.randn(4),)


BEGINS = "skipped"  # a break where the block begins, one where it ends


# -- one graph


@case(leaf, plain, fullgraph=True)
def block_and_facts(x):
    with torch.inference_mode():
        y = x * 2
        modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return y, modes, y.is_inference(), y.requires_grad, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@case(leaf, fullgraph=True)
@torch.inference_mode()
def decorated(x):
    return x * 2 + 1


@case(plain, factory=True, fullgraph=True)
def model_in_evaluation():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2)).eval()

    @torch.inference_mode()
    def fn(x):
        return model(x).softmax(-1)

    return fn, model


@case(plain, factory=True, fullgraph=True)
def method_with_state():
    class Cache:
        def __init__(self) -> None:
            self.keys: Any = None
            self.scale = nn.Parameter(torch.ones(4))

        @torch.inference_mode()
        def step(self, x):
            x = x * self.scale
            self.keys = x[None] if self.keys is None else torch.cat([self.keys, x[None]])
            return self.keys.sum(0)

    cache = Cache()
    return (lambda x: cache.step(x) + cache.step(x)), cache


@case(leaf, plain, fullgraph=True)
def mode_made_outside(x):
    with MODE:
        y = x * 2
    with MODE:
        z = y + 1
    return y, z


@case(lambda: (torch.randn(4), False), lambda: (torch.randn(4), True), fullgraph=True)
def mode_by_flag(x, on):
    with torch.inference_mode(on):
        y = x * 2
    return y, y.is_inference()


@case(plain, fullgraph=True)
def off_turns_gradients_on(x):
    with torch.no_grad():
        with torch.inference_mode(False):
            inside = torch.is_grad_enabled()
        after = torch.is_grad_enabled()
    return x * 2, inside, after


@case(leaf)
def exception_leaves_the_block(x):
    try:
        with torch.inference_mode():
            y = x * 2
            raise ValueError("a")
    except ValueError:
        return y, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@case(plain)
def break_in_a_nested_block(x):
    """The blocks are open as the graph ends, also those that change nothing."""
    import jitpy

    with torch.inference_mode(False):
        with torch.inference_mode():
            with torch.inference_mode():
                jitpy.graph_break()
                y = x * 2
            inner = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        outer = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return y + 1, inner, outer, y.is_inference()


@case(plain)
def exception_behind_a_break_leaves_nested_blocks(x):
    import jitpy

    try:
        with torch.inference_mode():
            with torch.inference_mode():
                jitpy.graph_break()
                torch.mm(x, torch.ones(3, dtype=torch.float64))
    except RuntimeError as error:
        return str(error), torch.is_inference_mode_enabled(), torch.is_grad_enabled(), x + 1


@case(leaf)
def exception_behind_the_block(x):
    with torch.inference_mode():
        x.mul_(2)
    raise ValueError("b")


@case(plain, fullgraph=True)
def views_made_behind(x):
    with torch.inference_mode():
        y = x * 2
    a, b = y.chunk(2)
    return y, a, b, a.is_inference(), y.clone().is_inference()


@case(plain)
def detached_behind(x):
    with torch.inference_mode():
        y = x * 2
    return y.detach().is_inference(), y.data.is_inference(), y


@case(plain, fullgraph=True)
def constants_and_factories(x):
    with torch.inference_mode():
        return torch.tensor([1.0, 2.0]), torch.zeros(3), torch.arange(3), torch.rand(2), F.dropout(x, 0.5)


@case(plain, fullgraph=True)
def values_used_behind(x):
    with torch.inference_mode():
        y = x * 2
    return y + 1, (y * x).is_inference()


@case(leaf, fullgraph=True)
def targets_of_a_teacher(x):
    with torch.inference_mode():
        target = torch.tanh(x)
    loss = (x * target.clone()).sum()
    loss.backward()
    return loss.detach(), x.grad


@case(leaf, fullgraph=True)
def argument_is_written(x):
    with torch.inference_mode():
        x.mul_(2)


@case(plain, fullgraph=True)
def own_tensor_is_written_inside_and_behind(x):
    y = x * 2
    with torch.inference_mode():
        y.add_(1)
    y.mul_(2)
    return y


@case(made_inside, fullgraph=True)
def inference_argument_is_written(x):
    with torch.inference_mode():
        x.add_(1)
    return x.is_inference()


@case(made_inside, plain, fullgraph=True)
def inference_argument(x):
    return x * 2, x[1:], x[1:].is_inference(), (x * 2).is_inference(), x.is_inference()


@case(plain, fullgraph=True)
def generator_under_the_decorator(x):
    @torch.inference_mode()
    def rows():
        for i in range(3):
            yield x * i, torch.is_inference_mode_enabled()

    return [(row, flag, torch.is_inference_mode_enabled()) for row, flag in rows()]


@case(plain, leaf, fullgraph=True)
def mixed_results(x):
    with torch.inference_mode():
        y = x * 2
        z = torch.arange(4)[::2]
    return y, x * 2, y[1:], z, y.sum().item()


@case(leaf, fullgraph=True)
def accuracy_beside_a_step(x):
    loss = (x * x).sum()
    loss.backward()
    with torch.inference_mode():
        accuracy = (x > 0).float().mean()
    return accuracy, loss.detach(), x.grad


# -- breaks


@case(leaf, breaks=(BEGINS, BEGINS, "unsupported_tensor"))
def sum_with_a_history(x):
    with torch.inference_mode():
        y = torch.tanh(x)
    return x + y


@case(leaf)
def product_with_a_history(x):
    with torch.inference_mode():
        y = torch.tanh(x)
    return x * y


@case(leaf)
def branch_inside(x):
    with torch.inference_mode():
        y = x * 2
        if y.sum() > 0:
            return y + 1
    return y


@case(leaf)
def view_of_an_argument(x):
    with torch.inference_mode():
        v = x[1:]
    return v, v.requires_grad


@case(leaf)
def view_of_an_argument_is_used_behind(x):
    with torch.inference_mode():
        v = x[1:]
    return v * 2


@case(leaf)
def gradients_on_inside(x):
    with torch.inference_mode():
        with torch.enable_grad():
            y = x * 2
            inside = torch.is_grad_enabled()
    return y, inside, torch.is_grad_enabled()


@case(plain)
def mode_off_inside(x):
    with torch.inference_mode():
        with torch.inference_mode(False):
            w = torch.ones(4, requires_grad=True)
            (w * x).sum().backward()
    return w.grad


@case(leaf)
def backward_inside(x):
    loss = (x * x).sum()
    with torch.inference_mode():
        loss.backward()
    return x.grad.is_inference()


@case(plain)
def derivative_inside(x):
    with torch.inference_mode():
        y = torch.func.grad(lambda t: (t * t).sum())(x)
    return y, y.is_inference()


@case(plain)
def written_behind(x):
    with torch.inference_mode():
        y = x * 2
    y.add_(1)


@case(plain)
def part_written_behind(x):
    with torch.inference_mode():
        y = x * 2
    y[1:].add_(1)


@case(plain)
def resized_behind(x):
    with torch.inference_mode():
        y = (x * 2)[None]
    y.squeeze_()


@case(plain)
def out_behind(x):
    with torch.inference_mode():
        y = x * 2
    torch.add(x, 1, out=y)


@case(plain)
def required_behind(x):
    with torch.inference_mode():
        y = x * 2
    y.requires_grad_()


@case(plain)
def parameter_behind(x):
    with torch.inference_mode():
        y = x * 2
    return nn.Parameter(y)


@case(plain)
def version_asked_for(x):
    with torch.inference_mode():
        y = x * 2
    return y._version


@case(made_inside)
def inference_argument_is_written_behind(x):
    x.add_(1)


def _seen(kind: str, hooks: str) -> torch.Tensor:
    base = torch.ones(4, requires_grad=True)
    owner = base * 2 if "computed" in kind else torch.ones(4) if "told" in kind else base
    with torch.set_grad_enabled("no_grad" not in kind):
        view = owner[:2]
    if "told" in kind:
        owner.requires_grad_()
    if "written" in kind:
        owner.mul_(2)
    elif hooks == "view" and view.requires_grad:
        view.register_hook(lambda g: g * 2)
    if hooks == "base":
        base.register_hook(lambda g: g * 3)
    return view


@pytest.mark.parametrize("hooks", ["none", "view", "base"])
@pytest.mark.parametrize("kind", ["no_grad", "no_grad computed", "no_grad told", "no_grad computed written", "computed",
                                  "computed written"])
def test_views_from_outside(kind: str, hooks: str) -> None:
    def asks(x: torch.Tensor) -> Any:
        return x * 2, x.is_leaf, x.requires_grad, x.retains_grad, x[:1].is_leaf

    jitted = jitpy.jit(asks, backend="eager")
    for mode in (torch.enable_grad, torch.inference_mode, torch.no_grad, torch.inference_mode):
        found = []
        for fn in (asks, jitted):
            try:
                with mode():
                    result, *answers = fn(_seen(kind, hooks))
                found.append((result.tolist(), result.requires_grad, result.is_inference(), answers))
            except RuntimeError as error:
                found.append(str(error))
        assert found[0] == found[1], mode


test_all = make_test(__name__)


def test_called_in_inference_mode():
    """The same function, called in the mode and outside of it: results are what eager's are each time."""
    import jitpy

    weight = torch.randn(4, requires_grad=True)

    def fn(x):
        y = x * weight
        with torch.inference_mode():
            z = x + 1
        with torch.no_grad():
            mode = torch.is_inference_mode_enabled()
        return y.is_inference(), y.requires_grad, z.is_inference(), mode

    jitted = jitpy.jit(fn, backend="eager")
    x = torch.randn(4)
    for _ in range(2):
        assert jitted(x) == fn(x)
        with torch.inference_mode():
            assert jitted(x) == fn(x)
            with torch.inference_mode(False):
                assert jitted(x) == fn(x)


def test_gradients_on_in_inference_mode():
    """Grad mode that is turned on in inference mode gives nothing a history, and keeps results inference tensors."""
    import jitpy

    x = torch.randn(4, requires_grad=True)

    def fn(x):
        with torch.enable_grad():
            y = x * 2
        return y

    with torch.inference_mode():
        expected, found = fn(x), jitpy.jit(fn)(x)
    assert (found.is_inference(), found.requires_grad) == (expected.is_inference(), expected.requires_grad)


def test_derivatives_in_inference_mode():
    """torch.func's derivatives are ordinary tensors there; what vmap alone computes is not."""
    import jitpy

    x = torch.randn(4)

    def fn(x):
        return torch.func.grad(lambda t: (t * t).sum())(x), torch.vmap(lambda t: t * 2)(x)

    with torch.inference_mode():
        expected, found = fn(x), jitpy.jit(fn, backend="eager")(x)
    assert [t.is_inference() for t in found] == [t.is_inference() for t in expected]
