"""Branches on data where one way only raises: no break, and eager's exception when it comes to that.

PYTEST_DONT_REWRITE: the assertions are what is tested, as Python compiles them.
"""

from __future__ import annotations

import torch

from .harness import case, make_test

ONES = (lambda: (torch.ones(3),), lambda: (-torch.ones(3),), lambda: (torch.full((3,), 50.0),),
        lambda: (torch.ones(5),))


@case(*ONES, fullgraph=True)
def assertion(x):
    assert (x > 0).all()
    return x * 2


@case(*ONES, fullgraph=True)
def assertion_with_message(x):
    y = x * 2
    assert not y.min() < 0, f"negative: {y} of {x.shape}"
    return y + 1


@case(*ONES, fullgraph=True)
def checks_in_a_row(x):
    if x.sum() < 0:
        raise ValueError("sum", float(x.sum()))
    if x.max() > 10 or x.isnan().any():
        raise RuntimeError("too big" if x.max() < 100 else "much too big") from KeyError(3)
    return x.log()


@case(*ONES, fullgraph=True, factory=True)
def effects_before_and_after():
    seen = []

    def fn(x):
        seen.append(len(seen))
        x.add_(1)
        if x.sum() < 1:
            seen.append("raising")
            raise ValueError(seen[-1])
        seen.append(x.shape)
        return x * len(seen)

    return fn, seen


def positive(x):
    if (x <= 0).any():
        raise ValueError("not positive")
    return x.log()


@case(*ONES, fullgraph=True)
def in_a_callee(x):
    return positive(x + 0.5) + 1


@case(*ONES, fullgraph=True)
def in_a_loop(x):
    for row in x:
        assert row > -0.5, row
        x = x + row
    return x


@case(*ONES, fullgraph=True)
def under_no_grad(x):
    with torch.no_grad():
        if bool(x.sum() < 0):
            raise ValueError("no")
    return x + 1


@case(*ONES, fullgraph=True)
def callers_handler(x):
    try:
        return positive(x)
    except ValueError as error:
        return x, str(error)


@case(*ONES, breaks=("data_dependent_branch",))
def own_handler_is_a_way_like_any_other(x):
    try:
        if x.sum() < 0:
            raise ValueError("negative")
        y = x + 1
    except ValueError:
        y = x - 1
    return y * 2


@case(*ONES)
def both_ways_raise(x):
    if x.sum() < 0:
        raise ValueError("a")
    else:
        raise KeyError("b")


@case(*ONES, breaks=("data_dependent_branch",))
def a_loop_before_the_exception(x):
    if x.sum() < 0:
        for k in range(3):
            if k == 5:
                return x
        raise ValueError("after a loop")
    return x + 1


@case(lambda: (torch.ones(3, requires_grad=True),), lambda: (torch.full((3,), -1.0, requires_grad=True),),
      fullgraph=True)
def with_gradients(x):
    y = (x * x * x).sum()
    assert y > 0, "negative"
    return y * x


@case(lambda: (torch.tensor([1.0, 2.0]),), lambda: (torch.tensor([1.0, -2.0]),), fullgraph=True)
def random_numbers_are_drawn_once(x):
    noise = torch.randn(2)
    if (x + 0.0 * noise).min() < 0:
        raise ValueError(torch.rand(1).item())
    return x + noise


test_assumed_branches = make_test(__name__)
