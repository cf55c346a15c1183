"""Calls that torch refuses for some values: captured where they are taken, eager's error where they are not."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .harness import case, make_test

CLASSES = tuple(
    (lambda values=values: (torch.tensor(values, dtype=torch.int64),))
    for values in ([0, 1, 2], [[1, 0], [2, 1]], [0, 1, 3], [2, -1, 0], [5], [])
)


@case(*CLASSES, fullgraph=True)
def one_hot_of_so_many(x):
    return F.one_hot(x, 3) * 2


@case(*CLASSES, fullgraph=True)
def one_hot_of_as_many_as_there_are(x):
    return F.one_hot(x).float().sum(0)


@case(*CLASSES, fullgraph=True)
def one_hot_of_a_computed_number(x):
    return F.one_hot(x, num_classes=x.max().item() + 2)


@case(*CLASSES)
def one_hot_error_is_caught(x):
    y = x + 1
    try:
        return F.one_hot(y, 3), "taken"
    except RuntimeError as error:
        return y, str(error)


@case(*CLASSES, fullgraph=True)
def one_hot_under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.one_hot(x, 3)


@case(lambda: (torch.tensor([0, 1]),), lambda: (torch.tensor([1, 2]),), factory=True)
def one_hot_behind_effects():
    seen = []

    def fn(x):
        seen.append(1)
        x.add_(1)
        y = F.one_hot(x, 3)
        seen.append(2)
        return y

    return fn, seen


@case(lambda: (torch.randn(3, 3, requires_grad=True), torch.tensor([0, 1, 2])),
      lambda: (torch.randn(3, 3, requires_grad=True), torch.tensor([0, 1, 3])), fullgraph=True)
def one_hot_in_a_loss(x, y):
    return -(x.log_softmax(1) * F.one_hot(y, 3)).sum()


@case(lambda: (torch.arange(12.0).view(3, 4), torch.tensor([0.2, 0.7])),
      lambda: (torch.randn(3, 5), torch.tensor([0.2, 1.0])),
      lambda: (torch.randn(3, 4), torch.tensor([0.2, 1.7])), fullgraph=True)
def quantiles(x, q):
    return torch.quantile(x, q, 1) * 2, x.nanquantile(q, dim=0)


@case(lambda: (torch.ones(3),), lambda: (-torch.ones(3),), fullgraph=True)
def assertion_under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch._assert_async((x > 0).all())
        return x * 2


@case(lambda: (torch.ones(3),), lambda: (-torch.ones(3),),
      lambda: (torch.full((3,), 2.0),), fullgraph=True)
def all_elements_checked(x):
    torch._check_tensor_all(x > 0, lambda: f"not positive: {x}")
    y = x * 2
    torch._check_tensor_all_with(ValueError, cond=y < 3)
    return y


test_cases = make_test(__name__)
