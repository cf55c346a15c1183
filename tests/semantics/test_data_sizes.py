"""Sizes that depend on data: captured without a break, right for every number of elements, also none and one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .harness import CASES, case, check, make_test

X = lambda: (torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0], [7.0, 8.0, -9.0]]),)  # noqa: E731
NONE = lambda: (-torch.ones(3, 3),)  # noqa: E731
ONE = lambda: (torch.eye(3) - 0.5 + torch.diag(torch.tensor([0.0, -2.0, -2.0])),)  # noqa: E731
ALL = lambda: (torch.ones(3, 3),)  # noqa: E731
N = lambda *values: [(lambda v=v: (torch.tensor(v),)) for v in values]  # noqa: E731
XN = lambda *values: [(lambda v=v: (torch.arange(12.0).reshape(6, 2), torch.tensor(v))) for v in values]  # noqa: E731
DATA = (X, NONE, ONE, ALL)


# -- what masks and conditions select


@case(*DATA, fullgraph=True)
def nonzero(x):
    return (x > 0).nonzero()


@case(*DATA, fullgraph=True)
def nonzero_of_a_vector(x):
    return x[0].relu().nonzero() + 1


@case(*DATA, fullgraph=True)
def nonzero_as_tuple(x):
    rows, columns = torch.nonzero(x > 0, as_tuple=True)
    return rows * 10 + columns


@case(*DATA, fullgraph=True)
def where_with_one_argument(x):
    rows, columns = torch.where(x > 0)
    return x[rows, columns].sum(), rows


@case(*DATA, fullgraph=True)
def argwhere(x):
    return torch.argwhere(x > 0)


@case(*DATA, fullgraph=True)
def masked(x):
    return x[x > 0]


@case(*DATA, fullgraph=True)
def masked_sum(x):
    return x[x > 0].sum(), x[x > 0].relu().exp()


@case(*DATA, fullgraph=True)
def masked_mean(x):
    return x[x > 0].mean()


@case(*DATA)
def masked_maximum(x):
    return x[x > 0].max()


@case(*DATA, fullgraph=True)
def rows_by_mask(x):
    return x[x[:, 0] > 0] * 2 + x[0]


@case(*DATA, fullgraph=True)
def columns_by_mask(x):
    return x[:, x[0] > 0].cos()


@case(*DATA, fullgraph=True)
def mask_and_slice(x):
    return x[x[:, 0] > 0, 1:]


@case(*DATA, fullgraph=True)
def masked_select(x):
    return torch.masked_select(x, x > 0) + 1


@case(*DATA, fullgraph=True)
def masked_select_broadcast(x):
    return torch.masked_select(x, x[0] > 0)


@case(*DATA, fullgraph=True)
def two_masks(x):
    return x[x > 0].sum() + x[x < 0].sum()


@case(*DATA, fullgraph=True)
def one_mask_twice(x):
    keep = x > 0
    return x[keep] + (x * 2)[keep]


@case(*DATA, fullgraph=True)
def assign_by_mask(x):
    y = x.clone()
    y[y > 0] = 0
    y[y[:, 0] < 0] = torch.ones(3)
    return y


@case(*DATA, fullgraph=True)
def assign_selected(x):
    y = x.clone()
    y[x > 0] = x[x > 0] * 2
    return y


@case(*DATA, fullgraph=True)
def change_argument_by_mask(x):
    x[x > 0] = -1.0
    return x.sum()


@case(*DATA, fullgraph=True)
def add_to_selected(x):
    x[x > 0] += 1
    return x


# -- distinct values


@case(*DATA, fullgraph=True)
def unique(x):
    return torch.unique(x)


@case(*DATA, fullgraph=True)
def unique_with_everything(x):
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values, inverse, counts, values[inverse]


@case(*DATA, fullgraph=True)
def unique_rows(x):
    return torch.unique((x > 0).float(), dim=0, return_counts=True)


@case(*DATA, fullgraph=True)
def unique_columns(x):
    return torch.unique((x > 0).int(), dim=1) + 1


@case(*DATA, fullgraph=True)
def unique_consecutive(x):
    return torch.unique_consecutive((x > 0).int().flatten(), return_counts=True)


@case(*DATA, fullgraph=True)
def number_of_distinct(x):
    return len(torch.unique(x)), x.unique().shape[0] * 2


@case(lambda: (torch.tensor([0, 2, 2, 5]),), lambda: (torch.tensor([1]),), fullgraph=True)
def bincount(n):
    return torch.bincount(n), torch.bincount(n, minlength=4).float().softmax(0)


@case(lambda: (torch.tensor([1, 0, 2]),), lambda: (torch.tensor([0, 0, 0]),), lambda: (torch.tensor([0, 1, 0]),),
      fullgraph=True)
def repeat_interleave(repeats):
    return torch.repeat_interleave(torch.arange(3.0), repeats), torch.repeat_interleave(repeats)


# -- numbers as sizes


@case(*N(4, 0, 1, 7), fullgraph=True)
def arange(n):
    return torch.arange(n.item()) * 2


@case(*N(4, 0, 1, 7), fullgraph=True)
def arange_from(n):
    return torch.arange(1, n.item() + 2), torch.arange(0, n.item(), 2)


@case(*N(4, 0, 1, -3), fullgraph=True)
def zeros(n):
    return torch.zeros(n.item(), 3) + 1


@case(*N(4, 0, 1), fullgraph=True)
def shape_of_zeros(n):
    z = torch.zeros(n.item(), 3)
    return z.shape, z.numel(), z.size(0), len(z), z.shape[0] + 1


@case(*N(3, 1, 4, 6, 5, 0), fullgraph=False)
def view(n):
    return torch.arange(12).view(n.item(), -1)


@case(*XN(4, 0, 1, 6, 9, -2), fullgraph=True)
def slice_up_to(x, n):
    return x[:n.item()] + 1


@case(*XN(4, 0, 1, 6, 9, -2), fullgraph=True)
def slice_from(x, n):
    return x[n.item():].sum(0)


@case(*XN(4, 0, 1, 6, 9, -2), fullgraph=True)
def filled_slices(x, n):
    x, n = x.clone(), n.item()
    x[:n] = 0
    x[n:, 1:] = -2.5
    x.T[0, n:].fill_(7)
    filled = torch.fill(x[n:].T, True)
    return x, filled, filled.stride()


@case(*XN(4, 0, 1, 2), fullgraph=True)
def slice_of_fixed_length(x, n):
    return x[n.item():n.item() + 2] * 3


@case(*XN(4, 0, 1, 6), fullgraph=True)
def slice_by_tensor(x, n):
    return x[:n]


@case(*XN(4, 0, -1, 5), fullgraph=True)
def one_row(x, n):
    return x[n.item()] * 2, x[n.item(), 1]


@case(*XN(7), breaks=None)
def no_such_row(x, n):
    return x[n.item()]


@case(*XN(4, 0, 1, 6), fullgraph=True)
def slice_and_arange_agree(x, n):
    k = n.item()
    return x[:k, 0] + torch.arange(k)


@case(*XN(4, 0, 1, 6, 8), fullgraph=True)
def narrow(x, n):
    return x.narrow(0, 0, n.item())


@case(*XN(4, 0, 1, 3), fullgraph=True)
def pad_by_computed_zeros(x, n):
    return torch.cat([x, torch.zeros(n.item(), 2)])


@case(*XN(4, 2, 1), fullgraph=True)
def expand(x, n):
    return x[0].expand(n.item(), 2) + 1, x[:1].expand(n.item(), -1)


@case(lambda: (torch.arange(10.0), torch.tensor([3, 0, 7])), lambda: (torch.arange(10.0), torch.tensor([1, 8, 1])),
      lambda: (torch.arange(10.0), torch.tensor([1, 8, 2])), fullgraph=None)
def split_by_lengths(x, lengths):
    a, b, c = torch.split(x, lengths.tolist())
    return a.sum(), b + 1, c


@case(lambda: (torch.tensor([3, 0, 7]),), fullgraph=True)
def list_of_numbers(n):
    numbers = n.tolist()
    return numbers, sum(numbers), numbers[2] * 2


@case(*N(4, 0), fullgraph=True)
def numbers(n):
    return int(n), float(n), bool(n), n.item() / 2, max(1, n.item()), [n.item()], {"n": n.item()}


@case(*N(4, 0, 1), fullgraph=True)
def at_least_one(n):
    return torch.ones(max(1, n.item()))


@case(*N(4, 0, 1))
def text(n):
    return f"{n.item()} of {n}", str(n.item()), torch.ones(n.item()).sum()


@case(*N(4, 0, 1), fullgraph=True)
def printed(n):
    print(n.item())
    print(len(torch.zeros(n.item())))
    return n + 1


@case(*N(4, 0, 1), fullgraph=True)
def arithmetic_with_sizes(n):
    z = torch.zeros(n.item() * 2 + 1, 3)
    return z.shape[0] / 2, z.shape[0] // 2, z.shape[0] % 3, z.shape[0] ** 2, -z.shape[0], float(z.shape[0])


@case(*DATA, fullgraph=True)
def size_times_tensor(x):
    k = (x > 0).nonzero().shape[0]
    return x * k, x.sum() / max(k, 1)


@case(*DATA, fullgraph=True)
def reshape_selected(x):
    return x[x > 0].reshape(-1, 1), x[x > 0].unsqueeze(0).t(), x[x[:, 0] > 0].view(-1)


@case(*DATA, fullgraph=True)
def selected_through_linear(x):
    rows = x[x[:, 0] > 0]
    return torch.nn.functional.linear(rows, torch.arange(6.0).reshape(2, 3)) @ torch.ones(2, 2)


@case(*DATA, fullgraph=True)
def selected_norm(x):
    rows = x[x[:, 0] > 0]
    return torch.softmax(rows, -1), torch.nn.functional.layer_norm(rows, (3,)), rows.sum(0), rows.std(1)


@case(*DATA, fullgraph=True)
def concatenated_selections(x):
    return torch.cat([x[x > 0], x[x < 0]]).sort().values


@case(*DATA, fullgraph=True)
def scatter_back(x):
    index = (x.flatten() > 0).nonzero().squeeze(1)
    return torch.zeros(9).index_add(0, index, torch.ones_like(index, dtype=torch.float32))


@case(*DATA, fullgraph=True)
def slices_of_selection(x):
    rows = x[x > 0]
    return rows[1:] - rows[:-1], rows[:2], rows[-1:]


@case(*DATA)
def first_selected(x):
    return x[x > 0][0]


@case(*DATA, fullgraph=True)
def write_into_selection(x):
    rows = x[x > 0]
    rows += 1
    rows[:1] = 5
    return rows, x


@case(*DATA, fullgraph=True)
def random_of_computed_size(x):
    return torch.rand((x > 0).nonzero().shape[0]) + 1


@case(*DATA, fullgraph=True)
def broadcast_of_selections(x):
    keep = x[x > 0]
    return (keep[:, None] - keep[None, :]).abs().sum()


@case(*DATA)
def matched_lengths(x):
    return x[x > 0] + torch.ones(5)


@case(*DATA, fullgraph=True)
def top_of_rows(x):
    return x[x[:, 0] > 0].argmax(1), x[x[:, 0] > 0].cumsum(1)


# -- branches and facts


@case(*N(4, 2, 0), breaks=("data_dependent_branch",))
def branch_on_a_number(n):
    x = torch.ones(3) * n
    if (n + 1).item() > 4:
        return x + 1
    return x - 1


@case(*N(4, 2, 0), breaks=None)
def loop_over_a_number(n):
    total = torch.zeros(())
    for i in range(n.item()):
        total = total + i
    return total


@case(*DATA)
def branch_on_a_size(x):
    y = x[x > 0]
    if y.shape[0] == 0:
        return x - 1
    return y.max()


@case(*DATA)
def comparison_of_sizes(x):
    return x[x > 0].shape[0] > x[x < 0].shape[0]


@case(*N(4, 2, 12), fullgraph=None)
def checked(n):
    k = n.item()
    torch._check(k < 10)
    return torch.ones(10)[:k] * 2


@case(*N(4, 2), fullgraph=True)
def checked_facts_decide(n):
    k = n.item()
    torch._check(k >= 0)
    torch._check(k < 10)
    if k < 10:
        return torch.ones(k)
    return torch.zeros(3)


@case(*N(4, 0, -1), breaks=None)
def checked_is_size(n):
    k = n.item()
    torch._check_is_size(k)
    return torch.ones(k)


@case(*N(4, 12), breaks=None)
def check_with_message(n):
    torch._check(n.item() < 10, lambda: f"too large: {n.item()}")
    return n + 1


@case(lambda: (torch.tensor(0.5),), lambda: (torch.tensor(2.5),))
def check_of_a_float(x):
    torch._check_value(x.item() < 1.0)
    return x * 2


# -- gradients


@case(lambda: (torch.tensor([[1.0, -2.0], [3.0, 4.0]], requires_grad=True),),
      lambda: (-torch.ones(2, 2, requires_grad=True),), fullgraph=True)
def gradient_through_mask(x):
    return (x[x > 0] ** 2).sum()


@case(lambda: (torch.arange(12.0).reshape(6, 2).requires_grad_(), torch.tensor(4)),
      lambda: (torch.arange(12.0).reshape(6, 2).requires_grad_(), torch.tensor(0)), fullgraph=True)
def gradient_through_slice(x, n):
    return x[:n.item()].exp().sum(0)


@case(lambda: (torch.tensor([[1.0, -2.0], [3.0, 4.0]], requires_grad=True),), fullgraph=True)
def gradient_through_nonzero(x):
    rows = (x.sum(1) > 0).nonzero().squeeze(1)
    return x.index_select(0, rows).sigmoid()


# -- across breaks, in resumed code


@case(*DATA, breaks=("user",))
def sizes_live_across_a_break(x):
    import jitpy

    y = x[x > 0]
    k = y.shape[0]
    jitpy.graph_break()
    return y * k, k + 1


@case(*DATA, factory=True, fullgraph=True)
def appended():
    seen = []

    def fn(x):
        seen.append(x[x > 0].shape[0])
        return x.nonzero().shape[0]

    return fn, seen


@case(*XN(4, 0, 9), factory=True, fullgraph=True)
def effects_and_failed_checks():
    state = {"calls": 0}

    def fn(x, n):
        state["calls"] += 1
        x.add_(1)
        return x.narrow(0, 0, n.item())

    return fn, state


@case(*N(4, 6, 3, 0), breaks=None)
def failed_check_after_a_break(n):
    import jitpy

    total = n + 1
    jitpy.graph_break()
    return torch.arange(12).view(n.item() + 1, -1), total


@case(*N(4, 5), factory=True)
def failed_check_with_all_kinds_of_parameters():
    offset = [1]

    def inner(n, *rest, scale=2, **options):
        twice = lambda x: x * scale + len(rest)  # noqa: E731
        offset[0] += 1
        return torch.arange(12).view(n.item(), -1), twice(n), offset[0], sorted(options)

    def fn(n):
        return inner(n, 1, 2, scale=3, a=4)

    return fn, offset


@case(*N(5, 7, 4), factory=True)
def failed_check_in_a_method():
    class Base:
        def shaped(self, n):
            return torch.arange(12).view(n.item(), -1)

    class Derived(Base):
        def shaped(self, n):
            self.count += 1
            return super().shaped(n) + self.count

    made = Derived()
    made.count = 0
    return made.shaped, made.__dict__


@case(*DATA, fullgraph=True)
def comparisons_as_values(x):
    k = x[x > 0].shape[0]
    return k > 3, k == 0, k >= 0, k != 2


@case(*DATA)
def facts_about_selections(x):
    rows = x[x > 0]
    torch._check(rows.shape[0] < 10)
    torch._check(rows.shape[0] > 1)
    if rows.shape[0] < 11:
        return rows.max()
    return rows


@case(*DATA, breaks=("data_dependent_branch",))
def branch_on_a_selection(x):
    rows = x[x > 0]
    if rows.shape[0] > 3:
        return rows.sum()
    return rows.shape[0]


@case(*DATA, fullgraph=True)
def same_number_twice(x):
    n = (x > 0).sum()
    return torch.ones(n.item()) + torch.arange(n.item())


@case(*DATA, fullgraph=True)
def stacked_columns(x):
    rows = torch.stack([x, x * 2, x - 1], 1)[x > 0]
    last, first = rows[:, 2], rows[:, 0]
    return torch.stack([last, first], 1), torch.stack([last, first]), torch.stack([rows.t(), rows.t()])


GRAPHS = (torch.eye(3), torch.ones(3, 3), torch.zeros(3, 3), torch.eye(3, 1))
EDGES = tuple(lambda weights=weights: (weights,) for weights in GRAPHS)


@case(*EDGES, fullgraph=True)
def scattered_edges(weights):
    to, start = weights.nonzero().t()
    ones = torch.ones(to.shape[0])
    wide = to[:, None].expand(-1, 2)
    return (
        torch.zeros(3).scatter_add(0, to, ones),
        torch.zeros(3).scatter_reduce(0, to, ones * 2, "amax"),
        torch.zeros(3).scatter(0, start, ones),
        torch.zeros(3, 2).scatter_add(0, wide, torch.ones(wide.shape)),
        ones.gather(0, torch.arange(to.shape[0])),
    )


BOUNDS = tuple(lambda bounds=b: (torch.tensor(bounds),) for b in ([5.0, 1, 0.5], [7, 2, 0.25], [9, 1, 0.75, 3]))
INVERTIBLE = (lambda: (torch.eye(3),), lambda: (torch.eye(4) * 2,), lambda: (torch.eye(5) * 3,))


@case(*BOUNDS, fullgraph=True)
def ranges_of_floats(x):
    """How many numbers there are is known once the graph has run."""
    low, high, step = x[1], x[0].item(), float(x[2])
    backwards = torch.arange(x[0] * 2, low - 1, -1, dtype=torch.long)
    return (
        torch.arange(0, high, step).sum() + 1,
        torch.arange(high) * 2,
        torch.arange(low, x[0], x[2]).reshape(-1, 1).expand(-1, 3) + x[0],
        torch.arange(x.shape[0] - low, dtype=torch.float64) + 1,
        torch.arange(start=1.0, end=x.shape[0] + high),
        backwards[:, None].expand(backwards.size(0), 3) * 2,
    )


@case(*BOUNDS, lambda: (torch.tensor([1.0, 0, 1]),), lambda: (torch.tensor([0.0, 0, 1]),))
def products_of_as_many_as_there_are(x):
    """How the elements of a product lie is seen from there being more than one; else plain Python runs."""
    rows = torch.arange(0, x[0].item(), 1.0)[:, None] * torch.arange(4.0)
    spread = torch.einsum("td,dnh->tnh", rows, torch.ones(4, 2, 3))
    turned = (rows[:, :, None] * torch.ones(4, 3)).transpose(0, 2)
    return torch.einsum("inh,tnh->nit", torch.ones(5, 2, 3), spread), turned.reshape(3, -1), turned.reshape(3, 4, -1)


@case(lambda: (torch.tensor([1.0, 5.0]),), lambda: (torch.tensor([5.0, 1.0]),))
def ranges_of_floats_that_end_before_they_begin(x):
    return torch.arange(x[0], x[1]) + 1


@case(*INVERTIBLE, fullgraph=True)
def operations_that_only_check(x):
    """They return nothing."""
    return torch.linalg.inv(x) + 1, F.one_hot(x.long().argmax(0), 5) * 2, torch._assert_async((x > -1).all())


NUMBERS = tuple(lambda numbers=n: (torch.tensor(numbers),) for n in ([1.0, torch.nan, 3.0], [1.0], [torch.nan]))


@case(*NUMBERS)
def statistics_of_what_is_there(x):
    x = x[~x.isnan()]
    return x.std(), x.var(), x.var(correction=0), torch.var_mean(x, correction=2), x.mean(), x.sum()


WITH_HISTORY = (lambda: (torch.randn(3, 4, requires_grad=True),), lambda: (torch.randn(3, 4),))


@case(*WITH_HISTORY, fullgraph=True)
def distinct_values_require_grad(x):
    rows, places = x.round().unique(dim=0, return_inverse=True)
    return x.unique(), x.unique_consecutive(return_counts=True), rows, places, torch.bincount(torch.arange(4), x[0])


@case(*WITH_HISTORY)
def gradients_of_distinct_values(x):
    y = x * x.detach().unique().sum() + x.round().unique().numel()
    if not x.requires_grad:
        return y
    (grad,) = torch.autograd.grad(y.sum(), x)
    return grad, torch.autograd.grad((x * x.unique().sum()).sum(), x)  # there is no derivative


@pytest.mark.parametrize("fn", [statistics_of_what_is_there, ranges_of_floats, operations_that_only_check])
def test_in_kernels(fn):
    check(next(one for one in CASES[__name__] if one.fn is fn), "codegen")


test_all = make_test(__name__)
