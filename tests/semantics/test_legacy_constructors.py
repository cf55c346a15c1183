"""`torch.Tensor(...)`, and batch norms that average over all batches. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import Variable

from tests.semantics.harness import case, make_test


def one():
    return (torch.arange(1.0, 7.0).reshape(2, 3),)


@case(one, lambda: (torch.ones(2, 3, requires_grad=True),), fullgraph=True)
def of_a_tensor(x):
    y = torch.Tensor(x * 1)
    z = torch.Tensor(y)
    return y, z, z.requires_grad, type(y)


@case(one)
def alias_is_written(x):
    y = x * 2
    z = torch.Tensor(y)
    z.add_(1)
    return y, z, torch.Tensor(x)


@case(one, lambda: (torch.ones(4, 2),), fullgraph=True)
def of_data_and_sizes(x):
    sizes = torch.Tensor(x.shape[0], 3).shape, torch.Tensor(x.shape).shape, torch.Tensor().shape
    return torch.Tensor([1, 2.5, True]) + torch.Tensor((x.shape[0], 3)).sum(), torch.Tensor([[1, 2], [3, 4]]), sizes


@case(one)
def refused(x):
    try:
        return torch.Tensor(x.long())
    except TypeError as error:
        return str(error)


@case(one)
def default_dtype(x):
    torch.set_default_dtype(torch.float64)
    y = torch.Tensor([1, 2])
    torch.set_default_dtype(torch.float32)
    return y, x


def _norm(**options):
    def made():
        norm = nn.BatchNorm1d(3, momentum=None, **options)

        def fn(x):
            return norm(x) * 2

        return fn, norm

    made.__name__, made.__module__ = "cumulative_" + ("_".join(options) or "norm"), __name__
    return made


for _options in ({}, {"affine": False}, {"track_running_stats": False}):
    case(*(lambda n=n: (torch.randn(n, 3, requires_grad=n > 3),) for n in (3, 4, 5)), factory=True, fullgraph=True,
         rounds=1)(_norm(**_options))


@case(lambda: (torch.randn(4, 3),), factory=True, fullgraph=True, rounds=4)
def cumulative_then_evaluated():
    norm = nn.BatchNorm1d(3, momentum=None)
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)

    def fn(x):
        optimizer.zero_grad()
        norm.train()
        (norm(x) * x).sum().backward()
        optimizer.step()
        with torch.no_grad():
            return norm.eval()(x), norm.num_batches_tracked.item()

    return fn, norm


@case(one, fullgraph=True)
def variables(x):
    made = Variable(torch.full_like(x, 2.0), requires_grad=True)
    other = Variable(x * 2)
    (made * other).sum().backward()
    other.add_(1)
    return made.grad, other, made.requires_grad, Variable(made).requires_grad, isinstance(x, Variable)


@case(one, lambda: (torch.arange(3),))
def variables_of_arguments(x):
    view = Variable(x[1:])
    view.add_(1)
    try:
        return Variable(x, requires_grad=True), view, Variable(data=x)
    except RuntimeError as error:
        return str(error)


test_constructors = make_test(__name__)
