"""Copies of tensors by `copy`, and tensors made of the numbers in others. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.semantics.harness import case, make_test


def one():
    return (torch.randn(4),)


def leaf():
    return (torch.randn(4, requires_grad=True),)


def numbers():
    return torch.randn(3), torch.arange(4), torch.tensor([True, False])


@case(one, lambda: (torch.randn(3, 4).t(),), fullgraph=True)
def deep_copy_of_a_tensor(x):
    y = copy.deepcopy(x)
    x.add_(1)
    return y, y is x, copy.deepcopy({"a": [x * 2], "b": y})


@case(one, fullgraph=True)
def deep_copy_of_one_tensor_twice(x):
    first, second = copy.deepcopy([x, x])
    first.add_(1)
    return first, second, first is second


@case(one)
def deep_copy_of_views(x):
    y = x * 2
    first, second = copy.deepcopy([y, y[1:]])
    first.add_(1)
    return first, second


@case(one)
def deep_copy_of_an_alias(x):
    first, second = copy.deepcopy([x, x.detach()])
    first.add_(1)
    return first, second


@case(lambda: (torch.randn(4), torch.randn(3)), lambda: ((x := torch.randn(4)), x[1:]))
def deep_copy_of_arguments_that_share_memory(x, y):
    first, second = copy.deepcopy((x, y))
    first.add_(1)
    return first, second


@case(lambda: (torch.randn(4, 1).expand(4, 3),), lambda: (torch.randn(4, 6)[:, ::2],))
def deep_copy_of_a_tensor_with_gaps(x):
    return copy.deepcopy(x)


def _named():
    x = torch.randn(4)
    x.title = "x"
    return (x,)


def _with_grad():
    x = torch.randn(4)
    x.grad = torch.ones(4)
    return (x,)


@case(one, _named, _with_grad)
def deep_copy_of_a_tensor_with_attributes(x):
    return copy.deepcopy(x)


@case(one, lambda: (torch.randn(9)[5:],), lambda: (torch.randn(9)[:4],), lambda: (torch.randn(4, 2)[:, 0],))
def deep_copy_of_a_part_of_memory(x):
    y = copy.deepcopy(x)
    return y, y.untyped_storage().nbytes(), y.storage_offset(), copy.deepcopy([x])


@case(leaf, one)
def deep_copy_of_a_leaf(x):
    y = copy.deepcopy(x)
    return y, y.requires_grad, y.is_leaf, y * 2


@case(leaf)
def deep_copy_of_a_result(x):
    try:
        return copy.deepcopy(x * 2)
    except RuntimeError as error:
        return str(error)[:40]


@case(one, factory=True)
def deep_copy_of_a_parameter():
    parameter = nn.Parameter(torch.ones(4))

    def fn(x):
        return copy.deepcopy(parameter), copy.deepcopy(parameter) * x

    return fn, parameter


@case(one, leaf)
def shallow_copy_of_a_tensor(x):
    y = copy.copy(x)
    y.data.add_(1)
    return y, x * 2


@case(numbers, fullgraph=True)
def numbers_in_lists(x, n, b):
    floats = torch.tensor([x[0], x[1]]), torch.tensor([x.sum(), 2.0]), torch.tensor([[x[0]], [1]])
    ints = torch.tensor([n[0], n[1]]), torch.tensor([n[1], 2]), torch.tensor([n[0], True]), torch.tensor((n[2], 2.5))
    mixed = torch.tensor([x[0].double(), 1.0]), torch.tensor([n[1], x[0]]), torch.tensor([b[0], b[1]])
    cast = torch.tensor([x[0], x[1]], dtype=torch.float64), torch.tensor([n[0], n[1]], dtype=torch.bool)
    half = torch.tensor([x[0].half(), 1.0]), torch.tensor([x[0].half(), x[1].half()])
    return floats, ints, mixed, cast, half, torch.tensor([n[3] + (1 << 24), x[0]])


@case(numbers)
def numbers_that_torch_refuses(x, n, b):
    found = []
    for data, dtype in (([x[0], n[0]], torch.int64), ([x[:2], x[:2]], None), ([x], None), ([x[:1], 1.0], None)):
        try:
            found.append(torch.tensor(data, dtype=dtype))
        except (TypeError, ValueError, RuntimeError) as error:
            found.append(str(error)[:30])
    return found


@case(lambda: (torch.randn(4, requires_grad=True),))
def numbers_of_what_requires_grad(x):
    return torch.tensor([x[0], x[1]]), torch.tensor([x.detach()[0], 1.0])


test_cases = make_test(__name__)
