"""torch.autograd.functional: gradients by functions of functions. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import torch
import torch.autograd.functional as functional
from torch import nn

from tests.semantics.harness import case, make_test


def plain():
    return (torch.randn(4),)


def leaf():
    return (torch.randn(4, requires_grad=True),)


def two():
    return torch.randn(3, requires_grad=True), torch.randn(3)


def scalar(x):
    return (x.sin() * x).sum()


def vector(x):
    return x.sin() * x.flip(0)


@case(plain, leaf, fullgraph=True)
def jacobian(x):
    return functional.jacobian(vector, x)


@case(leaf, fullgraph=True)
def jacobian_with_a_history(x):
    return functional.jacobian(vector, x, create_graph=True)


@case(two, fullgraph=True)
def jacobian_of_several(x, y):
    return functional.jacobian(lambda a, b: (a * b, (a - b).sum()), (x, y))


@case(plain, leaf, fullgraph=True)
def hessian(x):
    return functional.hessian(scalar, x)


@case(two, fullgraph=True)
def hessian_of_several(x, y):
    return functional.hessian(lambda a, b: (a * b * a).sum(), (x, y))


@case(leaf, fullgraph=True)
def hessian_with_a_history(x):
    return functional.hessian(scalar, x, create_graph=True).sin()


@case(plain, leaf, fullgraph=True)
def products(x):
    v = torch.ones_like(x)
    return (functional.vjp(vector, x, v), functional.jvp(vector, x, v), functional.hvp(scalar, x, v),
            functional.vhp(scalar, x, v))


@case(plain, leaf)
def products_with_a_history(x):
    v = torch.ones_like(x)
    return (functional.vjp(vector, x, v, create_graph=True), functional.jvp(vector, x, v, create_graph=True),
            functional.hvp(scalar, x, v, create_graph=True), functional.vhp(scalar, x, v, create_graph=True))


@case(plain, fullgraph=True, factory=True)
def penalty_on_a_jacobian():
    layer = nn.Linear(4, 3)

    def fn(x):
        # the point that it differentiates at is a leaf of its own, which nobody sees
        return (functional.jacobian(lambda p: layer(p).tanh(), x, create_graph=True) ** 2).sum()

    return fn, layer


@case(plain, fullgraph=True, factory=True)
def step_on_a_penalty():
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def fn(x):
        optimizer.zero_grad()
        loss = functional.hessian(lambda p: layer(p).tanh().sum(), x, create_graph=True).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return fn, layer


@case(plain)
def history_by_a_leaf_of_its_own(x):
    return functional.jacobian(vector, x, create_graph=True)


@case(plain)
def leaf_that_is_kept(x):
    p = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad(scalar(p), p, create_graph=True)
    return grad.sum(), p


@case(leaf)
def view_of_a_leaf_that_is_kept(x):
    p = x.detach().requires_grad_()
    part = p[:2]
    (grad,) = torch.autograd.grad(scalar(p), p, create_graph=True)
    return (grad * x).sum(), part


@case(plain, leaf, fullgraph=True)
def jacobian_of_a_batch(x):
    return functional.jacobian(vector, x, vectorize=True)


@case(plain, fullgraph=True)
def hessian_of_a_batch(x):
    return functional.hessian(scalar, x, vectorize=True) + 1


@case(plain)
def forward_mode(x):
    return functional.jacobian(vector, x, vectorize=True, strategy="forward-mode")


@case(lambda: (torch.randn(70),), breaks=("autograd",))
def jacobian_of_many(x):
    return functional.jacobian(torch.sin, x) + 1


@case(two)
def strict(x, y):
    return functional.jacobian(lambda a, b: a * 2, (x, y), strict=True)


@case(plain)
def batch_of_gradients(x):
    x.requires_grad_()
    y = x.sin() * 2
    return torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)[0]


test_cases = make_test(__name__)
