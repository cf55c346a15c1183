"""Numbers that go through tensors and follow from constants or sizes: known while tracing."""

from __future__ import annotations

import torch

from .harness import case, make_test

X = lambda: (torch.arange(24.0).reshape(3, 8),)  # noqa: E731
LONGER = lambda: (torch.arange(48.0).reshape(3, 16),)  # noqa: E731
LONGEST = lambda: (torch.arange(72.0).reshape(3, 24),)  # noqa: E731
SIZES = (X, LONGER, LONGEST, X)


@case(*SIZES, fullgraph=True)
def size_divided_through_a_tensor(x):
    n = torch.div(x.shape[1], 4, rounding_mode="trunc") - 1
    return x[:, :n] * 2, torch.zeros(n), x.new_ones((2, n + 1)), int(n)


@case(*SIZES, fullgraph=True)
def size_floored_and_multiplied(x):
    n = torch.tensor(x.shape[1]) // 8 * 4
    return (x + 1).as_strided(size=(2, n), stride=(4, 1))


@case(*SIZES, fullgraph=True)
def negative_sizes_are_rounded_towards_zero(x):
    a = torch.div(3 - x.shape[1], 4, rounding_mode="trunc")
    b = torch.div(3 - x.shape[1], 4, rounding_mode="floor")
    return x + a.item() * 10 + b.item()


@case(X, fullgraph=True)
def shapes_from_a_literal(x):
    h, w = torch.tensor([[2, 3], [4, 6]])[1].tolist()
    return x.reshape(h, w)


@case(X, fullgraph=True)
def a_branch_on_a_literal(x):
    order = torch.arange(4).flip(0)
    if order[0] > order.sum() - 4:
        return x - 1
    return f"{order.max().item()}", bool(order.any()), float(order[1]), x + 1


@case(X, fullgraph=True)
def a_literal_that_is_changed(x):
    order = torch.zeros(3)
    order[1] = 2.5
    before = order[1].item()
    order += 1
    return x * before, order[1].item(), order


@case(X, fullgraph=True)
def literals_as_indices(x):
    i = torch.tensor(1)
    return x[i], x[i, torch.tensor(-1)], x[:, i:], torch.tensor([5, 6, 7]).tolist()[i]


@case(X)
def a_literal_that_fails(x):
    try:
        return x[torch.tensor(7)]
    except IndexError as error:
        return str(error), x + 1


@case(X)
def an_integer_of_nan(x):
    try:
        return x + int(torch.tensor(float("nan")))
    except ValueError as error:
        return str(error), x


@case(X)
def random_numbers_are_not_known(x):
    torch.manual_seed(3)
    if torch.rand(()).item() > 0.9:
        return x
    return x + torch.randint(5, (1,)).item()


@case(X, fullgraph=True)
def layers_that_are_never_skipped(x):
    """What a random number is compared with decides alone; the number is drawn all the same."""
    for probability in (0.0, -1, float("nan")):
        if torch.rand([]) < probability or torch.rand(1).item() < probability:
            return x
    if torch.rand([]) >= 0 and 1.5 > torch.rand(()) and torch.rand_like(x[0]).item() <= 1:
        x = x + 1
    return x, torch.rand(2)


@case(X, breaks=("data_dependent_branch",))
def layers_that_are_skipped_at_times(x):
    if torch.rand([]) < 0.5:
        return x
    return x * 2


@case(X, breaks=("data_dependent_branch",))
def the_end_of_the_range(x):
    if torch.rand([]) < 1.0:
        return x
    return x * 2


test_all = make_test(__name__)
