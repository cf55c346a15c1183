"""Custom operators that write to their arguments. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import torch
from torch import nn

from tests.semantics.harness import case, make_test

LAYOUTS: list[tuple[int, ...]] = []


@torch.library.custom_op("jitpywrites::scale_into", mutates_args={"out"})
def scale_into(x: torch.Tensor, out: torch.Tensor, scale: float) -> None:
    out.copy_(x * scale)


@torch.library.custom_op("jitpywrites::add_to", mutates_args={"out"})
def add_to(x: torch.Tensor, out: torch.Tensor) -> None:
    LAYOUTS.append(out.stride())
    out.add_(x)


@torch.library.custom_op("jitpywrites::two", mutates_args={"a", "b"})
def two(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(x)
    b.mul_(x)
    return a + b


@two.register_fake
def _(a, x, b):
    return torch.empty_like(a)


@torch.library.custom_op("jitpywrites::anything", mutates_args="unknown")
def anything(x: torch.Tensor, y: torch.Tensor) -> None:
    y.add_(x)


@torch.library.custom_op("jitpywrites::to_each", mutates_args={"outs"})
def to_each(x: torch.Tensor, outs: list[torch.Tensor]) -> None:
    for out in outs:
        out.add_(x)


@torch.library.custom_op("jitpywrites::fails", mutates_args={"out"})
def fails(x: torch.Tensor, out: torch.Tensor) -> None:
    out.add_(x)
    raise ValueError("after it has written")


_LIB = torch.library.Library("jitpywriteslib", "DEF")
_LIB.define("increase_(Tensor(a!) x, Scalar by=2) -> Tensor(a!)")
_LIB.impl("increase_", lambda x, by=2: x.add_(by), "CompositeExplicitAutograd")
_LIB.define("doubled_(Tensor(a!) x) -> Tensor(a!)")
_LIB.impl("doubled_", lambda x: x.mul_(2), "CompositeExplicitAutograd")
_LIB.define("doubled(Tensor x) -> Tensor")
_LIB.impl("doubled", lambda x: x * 2 + 100, "CompositeExplicitAutograd")


def rows(count: int):
    return lambda: (torch.randn(count, 3),)


@case(rows(4), rows(6), fullgraph=True)
def into_empty(x):
    out = torch.empty_like(x)
    scale_into(x * 2, out, 2.5)
    return out + 1


@case(rows(4), rows(6), fullgraph=True)
def into_result(x):
    out = torch.zeros_like(x)
    scale_into(x, out, 2.5)
    return out


@case(rows(4), rows(6), fullgraph=True)
def into_view(x):
    out = torch.zeros(x.shape[0], 6)
    scale_into(x, out[:, 3:], 2.5)
    out.mul_(2)
    return out


@case(rows(4), rows(6), fullgraph=True)
def old_values_are_read(x):
    out = x * 2
    old, before = out.clone(), out + 0
    scale_into(x, out, 2.5)
    return out, old, before


@case(rows(4), fullgraph=True)
def again_and_again(x):
    out = torch.zeros(4, 3)
    for step in range(4):
        add_to(x * step, out)
    return out


@case(rows(4), fullgraph=True)
def one_into_the_next(x):
    first, second = torch.empty_like(x), torch.empty_like(x)
    scale_into(x, first, 2.0)
    scale_into(first, second, 3.0)
    return second


@case(rows(4), fullgraph=True)
def writes_to_two(x):
    a, b = x + 1, x + 2
    return two(a, x, b), a, b


@case(rows(4), breaks=("unsupported_op",))
def writes_to_one_as_two(x):
    a = x + 1
    return two(a, x, a), a


@case(rows(4), breaks=("unsupported_op",))
def reads_what_it_writes(x):
    a = x + 1
    scale_into(a, a, 3.0)
    return a


@case(rows(4), fullgraph=True)
def declared_to_write_to_anything(x):
    a, b = x + 1, x + 2
    anything(a, b)
    return a, b


@case(rows(4), breaks=("unsupported_op",))
def writes_to_a_list(x):
    a = x + 1
    to_each(x, [a])
    return a


@case(rows(4))
def fails_in_try(x):
    a = x + 1
    try:
        fails(x, a)
    except ValueError as error:
        return str(error), a


@case(rows(4))
def fails_when_it_has_written(x):
    a = x + 1
    fails(x, a)
    return a


@case(rows(4), factory=True, fullgraph=True)
def layouts_are_kept():
    LAYOUTS.clear()

    def fn(x):
        across = (x + 1).t()
        add_to(x.t(), across)
        apart = torch.zeros(3, 8)[:, ::2]
        add_to(x.t(), apart)
        return across, apart

    return fn, LAYOUTS


@case(rows(4), factory=True, fullgraph=True)
def runs_though_nobody_reads_it():
    LAYOUTS.clear()

    def fn(x):
        add_to(x, x + 1)
        return x * 2

    return fn, LAYOUTS


@case(rows(4), breaks=("unsupported_op",))
def writes_to_argument(x):
    scale_into(x * 2, x, 2.0)
    return x


@case(rows(4), breaks=("unsupported_op",))
def writes_to_view_of_argument(x):
    add_to(torch.ones(3), x[0])
    return x * 2


@case(rows(4), factory=True, breaks=("unsupported_op",))
def writes_to_buffer():
    norm = nn.BatchNorm1d(3)

    def fn(x):
        add_to(x[0], norm.running_mean)
        return norm.running_mean + 1

    return fn, norm


@case(lambda: (torch.randn(4, 3, requires_grad=True),), breaks=("unsupported_op",))
def takes_what_requires_grad(x):
    out = torch.zeros(4, 3)
    scale_into(x, out, 2.0)
    return out, out.requires_grad


@case(lambda: (torch.randn(4, 3, requires_grad=True),), fullgraph=True)
def takes_it_under_no_grad(x):
    out = torch.zeros(4, 3)
    with torch.no_grad():
        scale_into(x, out, 2.0)
    return out, out.requires_grad, x * 2


@case(rows(4), rows(6), fullgraph=True)
def returns_what_it_writes(x):
    y = x * 2
    z = torch.ops.jitpywriteslib.increase_(y)
    return y, z, z is y, torch.ops.jitpywriteslib.increase_(x + 1, 5)


@case(rows(4), fullgraph=True)
def has_a_namesake_that_does_something_else(x):
    y = x + 1
    torch.ops.jitpywriteslib.doubled_(y)
    return y


@case(rows(4), fullgraph=True)
def writes_through_detached(x):
    y = x * 2
    add_to(x, y.detach())
    add_to(x, y.data)
    return y


@case(rows(4))
def writes_under_vmap(x):  # which has no rule for it
    def one(row):
        out = torch.empty_like(row)
        scale_into(row, out, 2.0)
        return out

    return torch.vmap(one)(x)


@case(lambda: (torch.randn(4, 3, requires_grad=True),), fullgraph=True)
def writes_between_gradients(x):
    y = (x * 2).sin()
    with torch.no_grad():
        out = torch.empty_like(y)
        scale_into(y, out, 0.5)
    return (y * out).sum()


@case(rows(4), fullgraph=True)
def writes_in_a_branch(x):
    def halved(row):
        out = torch.empty_like(row)
        scale_into(row, out, 0.5)
        return out

    return torch.cond(x.sum() > 0, halved, lambda row: row * 3, (x,))


@case(rows(4))
def writes_to_expanded(x):
    y = torch.zeros(1, 3).expand(4, 3)
    add_to(x, y)
    return y


test_all = make_test(__name__)


def test_no_copy_where_the_memory_dies() -> None:
    import jitpy
    from jitpy.backends import planner

    asked: list[str] = []
    plain = planner.without_copies
    planner.without_copies = lambda op: asked.append(op.name) or plain(op)
    try:
        jitpy.jit(into_empty, fullgraph=True)(torch.randn(5, 3))
    finally:
        planner.without_copies = plain
    assert asked == ["jitpy_copying.jitpywrites_scale_into_default.default"]
