"""Gradients of gradients: `create_graph=True` in jitted code and around it. PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import jitpy
from tests.semantics.harness import case, make_test


def leaf(*shape: int) -> Any:
    return lambda: (torch.randn(*shape, requires_grad=True),)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum_to_size(w.shape)


class HalfDetached(torch.autograd.Function):
    """Its gradient has a part without a history."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            square = x * x
        return grad * square + grad * (2 * x) * x


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.exp()


# -- the gradient is used inside ------------------------------------------------------------------------------------


@case(leaf(3), fullgraph=True)
def used_inside(x):
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (g * g).sum().backward()
    return x.grad, g


@case(leaf(3), fullgraph=True)
def returned(x):
    (g,) = torch.autograd.grad((x**3 + x.sin()).sum(), x, create_graph=True)
    return g, g.requires_grad, g.is_leaf


@case(leaf(3), fullgraph=True)
def without_history(x):
    (g,) = torch.autograd.grad((x * 2).sum(), x, create_graph=True)
    return g, g.requires_grad


@case(leaf(3), fullgraph=True)
def four_times(x):
    y = (x**5).sum()
    for _ in range(4):
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        y = g.sum()
    return g


@case(leaf(4), fullgraph=True)
def hessian_vector_product(x):
    y = (x.sin() * x.prod()).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g, x, grad_outputs=torch.ones_like(x))
    return h, h.requires_grad


@case(leaf(4), fullgraph=True)
def gradient_given_with_history(x):
    v = x.exp()
    (g,) = torch.autograd.grad(x.sin(), x, grad_outputs=v, create_graph=True)
    return g


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)), fullgraph=True)
def unused_ones(x, y):
    return torch.autograd.grad((x**2).sum(), [x, y], create_graph=True, allow_unused=True)


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)))
def unused_ones_made_zeros(x, y):
    zx, zy = torch.autograd.grad((x**2).sum(), [x, y], create_graph=True, materialize_grads=True)
    return zx, zy, zy.requires_grad


@case(lambda: (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)))
def unused_refused(x, y):
    return torch.autograd.grad((x**2).sum(), [x, y], create_graph=True)


@case(leaf(3), fullgraph=True)
def under_no_grad(x):
    y = (x**3).sum()
    with torch.no_grad():
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        doubled = g * 2
    return g * g, doubled, doubled.requires_grad


@case(leaf(3), fullgraph=True)
def of_a_value_on_the_way(x):
    h = x.tanh()
    (g,) = torch.autograd.grad((h**3 * x).sum(), h, create_graph=True)
    return (g * x).sum()


@case(leaf(3), fullgraph=True)
def graph_used_again(x):
    y = (x**3).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(y, x)
    return first, second


@case(leaf(3))
def freed_by_request(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True, retain_graph=False)
    return torch.autograd.grad(g.sum(), x)


@case(leaf(3))
def gradient_is_written_to(x):
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    g.mul_(2)
    (g.sum() * x).sum().backward()
    return g, x.grad


@case(lambda: (torch.randn(2, 3, requires_grad=True), torch.randn(3, requires_grad=True)), fullgraph=True)
def autograd_function(x, w):
    y = Scaled.apply(x, w)
    g, h = torch.autograd.grad((y**2).sum(), [x, w], create_graph=True)
    return (g**2).sum() + (h**2).sum()


@case(leaf(3), fullgraph=True)
def autograd_function_with_a_detached_part(x):
    (g,) = torch.autograd.grad(HalfDetached.apply(x).sum(), x, create_graph=True)
    return (g * x).sum(), g.requires_grad


@case(leaf(3))
def autograd_function_for_once(x):
    (g,) = torch.autograd.grad(Once.apply(x).sum(), x, create_graph=True)
    (g * x).sum().backward()
    return x.grad


@case(leaf(4, 4), fullgraph=True)
def checkpointed(x):
    y = checkpoint(lambda v: (v @ v).tanh(), x, use_reentrant=False)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return (g**2).sum()


@case(lambda: (torch.randn(1, 2, 4, 4, requires_grad=True),))
def attention_has_one_derivative(q):
    y = F.scaled_dot_product_attention(q, q, q)
    (g,) = torch.autograd.grad(y.sum(), q, create_graph=True)
    (g**2).sum().backward()
    return q.grad


@case(lambda: (torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, 1, 1])), fullgraph=True)
def cross_entropy(x, t):
    (g,) = torch.autograd.grad(F.cross_entropy(x, t), x, create_graph=True)
    return (g.norm(2, dim=1) - 1).square().mean()


@case(lambda: (torch.tensor([0.5, -1.0, 2.0], requires_grad=True),), lambda: (torch.zeros(3, requires_grad=True),),
      rounds=1)
def determinant(x):
    """Of a matrix with singular values that are equal; and of a singular one, for which torch has another formula."""
    y = torch.linalg.det(torch.diag(x.abs() + 1) - (x == 0).diag_embed() * torch.tensor([1.0, 0.0, 0.0]))
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return (g * g).sum()


@case(lambda: (torch.tensor([[1.0, 2.0], [2.0, 4.0]], requires_grad=True),),
      lambda: (torch.tensor([[1.0, 2.0], [2.0, 5.0]], requires_grad=True),), rounds=1)
def logarithm_of_a_determinant(x):
    """The formula for second derivatives solves a system of equations, and raises where there is no solution."""
    (g,) = torch.autograd.grad(torch.linalg.slogdet(x)[1], x, create_graph=True)
    return (g * g).sum()


@case(lambda: (torch.eye(3).requires_grad_(),), rounds=1)
def determinant_of_a_rotation(x):
    (g,) = torch.autograd.grad(torch.linalg.det(x), x, create_graph=True)
    (g * torch.arange(9.0).view(3, 3)).sum().backward()
    return x.grad


@case(leaf(3))
def saved_value_is_overwritten(x):
    y = x * 1
    (g,) = torch.autograd.grad((y.exp() * x).sum(), y, create_graph=True)
    with torch.no_grad():
        x.add_(1)
    g.sum().backward()
    return x.grad


@case(leaf(3))
def backward_with_create_graph(x):
    (x**3).sum().backward(create_graph=True)
    g = x.grad
    x.grad = None
    return g, torch.autograd.grad((g * g).sum(), x)


@case(leaf(3))
def gradients_with_a_history_stay(x):
    (x**3).sum().backward(create_graph=True)
    return x.grad.requires_grad, x.grad.is_leaf, torch.autograd.grad(x.grad.sum(), x, retain_graph=True)


@case(leaf(3))
def gradients_with_a_history_add_up(x):
    (x**3).sum().backward(create_graph=True)
    first = x.grad
    x.sin().sum().backward(create_graph=True)
    second = torch.autograd.grad((x.grad * first).sum(), x)
    found = first is x.grad, first.detach(), x.grad.detach(), second
    x.grad = None
    return found


@case(leaf(3))
def a_history_is_added_to_a_plain_gradient(x):
    (x**2).sum().backward()
    first = x.grad
    (x**3).sum().backward(create_graph=True)
    found = first is x.grad, first, x.grad.detach(), torch.autograd.grad((x.grad**2).sum(), x)
    x.grad = None
    return found


@case(leaf(3))
def a_plain_gradient_is_added_to_a_history(x):
    (x**3).sum().backward(create_graph=True)
    (x.grad**2).sum().backward()
    return x.grad.requires_grad


@case(leaf(3))
def gradients_without_anything_to_differentiate(x):
    (2 * x).sum().backward(create_graph=True)
    return x.grad.requires_grad, x.grad.is_leaf


@case(leaf(3), leaf(3))
def some_gradients_with_a_history(x, w):
    (x**3 * w).sum().backward(create_graph=True, inputs=[x])
    found = w.grad, torch.autograd.grad(x.grad.sum(), w)
    x.grad = None
    return found


@case(leaf(3))
def gradients_with_a_history_under_no_grad(x):
    y = (x**3).sum()
    with torch.no_grad():
        y.backward(create_graph=True)
    found = torch.autograd.grad(x.grad.sum(), x)
    x.grad = None
    return found


@case(leaf(3))
def a_step_along_a_history(x):
    """What optimizers of second order do."""
    (x**4).sum().backward(create_graph=True)
    (curvature,) = torch.autograd.grad((x.grad * torch.ones_like(x)).sum(), x)
    with torch.no_grad():
        x -= 0.1 * x.grad / (curvature.abs() + 0.1)
    x.grad = None
    return curvature


@case(leaf(3))
def a_jitted_result_is_differentiated_twice(x):
    return (x.sin() * x).sum()


test_all = make_test(__name__)


# -- models that train with it --------------------------------------------------------------------------------------


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4),
                         nn.LeakyReLU(0.2), nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Softplus(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))


def penalized(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.square().mean() + 10 * ((grad.norm(2, dim=1) - 1) ** 2).mean()


def train(make: Callable[[], nn.Module], how: str, dtype: torch.dtype, steps: int = 20) -> tuple[list[float], Any]:
    """Losses of the steps, and what the model holds after them."""
    torch.manual_seed(0)
    model = make().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(forward, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    forward = jitpy.jit(model) if how == "model" else model
    loss_of = jitpy.jit(penalized, fullgraph=True) if how == "loss" else penalized
    run = jitpy.jit(step, fullgraph=True) if how == "step" else step
    torch.manual_seed(1)
    losses = [run(torch.randn(8, 6, dtype=dtype, requires_grad=True)).item() for _ in range(steps)]
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("how", ["model", "loss", "step"])
@pytest.mark.parametrize("make", [dense, convolutional])
def test_gradient_penalty_trains(make: Callable[[], nn.Module], how: str) -> None:
    """A jitted model whose gradients eager takes; a jitted loss with its gradient; the whole step as one graph."""
    losses, state = train(make, how, torch.float64)
    want, want_state = train(make, "plainly", torch.float64)
    assert losses == pytest.approx(want, rel=1e-9)
    torch.testing.assert_close(state, want_state, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("how", ["model", "loss", "step"])
def test_gradient_penalty_trains_in_float32(how: str) -> None:
    losses, _ = train(dense, how, torch.float32)
    want, _ = train(dense, "plainly", torch.float32)
    assert losses == pytest.approx(want, rel=1e-3)


def test_inner_steps_are_differentiated() -> None:
    """A model's update by its gradient, with a gradient through the update."""

    def outer(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        fast = w
        for _ in range(3):
            (g,) = torch.autograd.grad((x @ fast).tanh().square().mean(), fast, create_graph=True)
            fast = fast - 0.1 * g
        return (x @ fast).square().mean()

    x, found = torch.randn(5, 4, dtype=torch.float64), []
    start = torch.randn(4, 2, dtype=torch.float64)
    for run in (outer, jitpy.jit(outer, fullgraph=True)):
        w = start.clone().requires_grad_()
        run(w, x).backward()
        found.append(w.grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_model_that_changes_what_it_reads(backend: str) -> None:
    """A jitted model's buffer is read, then changed; the model is differentiated twice."""

    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean: torch.Tensor
            self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
            self.weight = nn.Parameter(torch.linspace(1, 2, 4, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x - self.mean).exp() * self.weight
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.5)
            return y * self.mean

    found = []
    for jitted in (False, True):
        model = Averaging()
        run = jitpy.jit(model, backend=backend) if jitted else model
        torch.manual_seed(0)
        grads = []
        for _ in range(2):
            x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
            y = run(x)
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            grads.append(torch.autograd.grad(g.square().sum(), [x, model.weight]))
        found.append((grads, model.mean))
    torch.testing.assert_close(found[1], found[0])
