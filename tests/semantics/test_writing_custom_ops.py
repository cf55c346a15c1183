"""Custom operators that write to their arguments. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import jitpy
from jitpy.ir.ops.functional import copied
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


@torch.library.custom_op("jitpywrites::into_optional", mutates_args={"total"})
def into_optional(x: torch.Tensor, total: torch.Tensor | None) -> None:
    if total is not None:
        total.add_(x.sum(0))


@torch.library.custom_op("jitpywrites::picky", mutates_args=())
def picky(x: torch.Tensor) -> torch.Tensor:
    if bool(x.sum() > -1000):
        raise ValueError("not this one")
    return x * 2


@picky.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("jitpywrites::fails", mutates_args={"out"})
def fails(x: torch.Tensor, out: torch.Tensor) -> None:
    out.add_(x)
    raise ValueError("after it has written")


_LIB = torch.library.Library("jitpywriteslib", "DEF")
_LIB.define("increase_(Tensor(a!) x, Scalar by=2) -> Tensor(a!)")
_LIB.impl("increase_", lambda x, by=2: x.add_(by), "CompositeExplicitAutograd")
_LIB.define("plain_write(Tensor(a!) x, Tensor y) -> ()")
_LIB.impl("plain_write", lambda x, y: (x.add_(y), None)[1], "CPU")
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


@case(rows(4), fullgraph=True)
def writes_to_a_list(x):
    a, b = x + 1, x + 2
    to_each(x, [a, b])
    to_each(x, [a])
    to_each(x, [])
    return a, b


@case(lambda: (torch.randn(4, 3), torch.randn(4, 3)), fullgraph=True)
def writes_to_a_list_of_arguments(x, y):
    to_each(torch.ones(3), [x, y])
    return x + y


@case(lambda: (torch.randn(4, 3), torch.randn(3)), lambda: (torch.randn(4, 3), None), fullgraph=True)
def writes_to_what_may_be_none(x, out):
    total = torch.zeros(3)
    into_optional(x, total)
    into_optional(x, None)
    into_optional(x, out)
    return total if out is None else total + out


@case(lambda: (torch.randn(4, 3), torch.randn(3)), fullgraph=True)
def named_arguments(x, out):
    into_optional(total=out, x=x)
    scale_into(scale=2.0, out=x, x=x + 1)
    return x


@case(lambda: (torch.randn(4, 3), torch.randn(4, 3)), fullgraph=True)
def no_rule_for_shapes(x, y):
    torch.ops.jitpywriteslib.plain_write(x, y)
    return x * 2


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


@case(rows(4), fullgraph=True)
def writes_to_argument_again_and_again(x):
    for step in range(3):
        add_to(torch.full((4, 3), float(step)), x)
        y = x * 2
    return y


@case(rows(4), fullgraph=True)
def other_writes_in_between(x):
    x.mul_(2)
    add_to(torch.ones(3), x)
    y = x + 0
    x.mul_(3)
    add_to(torch.ones(3), x)
    return y


@case(rows(4), fullgraph=True)
def old_values_of_argument(x):
    before = x * 2
    view = x[1:]
    add_to(torch.ones(3), x)
    return before, view, view + 1, x.sum()


@case(lambda: (torch.randn(4, 3), []))
def argument_is_written_in_a_graph_with_handlers(x, seen):
    try:
        y = picky(x)
    except ValueError as error:
        y = str(error)
    add_to(torch.ones(3), x)
    try:
        z = picky(x)
    except ValueError as error:
        z = str(error)
    return x, y, z


@case(lambda: (torch.randn(4, 3), torch.randn(4, 3)), lambda: (x := torch.randn(4, 3), x[:]))
def arguments_that_may_share_memory(x, y):
    add_to(x, y)
    return x + y


@case(lambda: (torch.randn(4, 3),), lambda: (torch.randn(3, 4).t(),), fullgraph=True)
def argument_of_another_layout(x):
    add_to(torch.ones(3), x)
    return x


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


@case(rows(4), fullgraph=True)
def writes_to_argument(x):
    scale_into(x * 2, x, 2.0)
    return x


@case(rows(4), fullgraph=True)
def writes_to_view_of_argument(x):
    add_to(torch.ones(3), x[0])
    return x * 2


@case(lambda: (torch.randn(3, 4, 6), torch.randn(4, 3)), lambda: (torch.randn(3, 5, 6), torch.randn(5, 3)),
      lambda: (torch.randn(3, 6, 6), torch.randn(6, 3)), fullgraph=True)
def writes_to_a_cache_line_by_line(cache, x):
    total = torch.zeros(())
    for line in range(3):
        add_to(x * line, cache[line, :, 3:])
        scale_into(x=x, out=cache[line].t()[:3].t(), scale=2.0)
        total = total + cache[line].sum()
    return total, cache[1]


@case(rows(4), fullgraph=True)
def view_and_whole_are_written(x):
    part = x[1:3]
    add_to(torch.ones(3), part)
    before = x * 1.0
    add_to(torch.ones(3), x)
    add_to(torch.ones(3), part)
    return before, part + 1


@case(rows(4), fullgraph=True)
def two_views_are_written_together(x):
    to_each(torch.ones(3), [x[:2], x[2:]])
    return x.sum()


@case(rows(4), fullgraph=True)
def returns_beside_a_view_that_it_writes(x):
    b = x * 2
    return two(x[:2], torch.ones(3), b[:2]), b


@case(lambda: (torch.randn(8, 3)[2:6],), lambda: (torch.randn(8, 3)[1:6],), fullgraph=True)
def argument_that_is_a_part(x):
    add_to(torch.ones(3), x[1])
    return x + 1


@case(rows(4), factory=True, fullgraph=True)
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


def argument_is_written_and_the_program_fails(x, seen):
    add_to(torch.ones(3), x)
    return picky(x)


def argument_is_written_beside_changes_and_the_program_fails(x, seen):
    seen.append(1)
    add_to(torch.ones(3), x)
    seen.append(2)
    return picky(x)


def argument_is_written_and_half_of_it_fails(x, seen):
    fails(torch.ones(3), x)
    return x


@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("fn", [
    argument_is_written_and_the_program_fails, argument_is_written_beside_changes_and_the_program_fails,
    argument_is_written_and_half_of_it_fails])
def test_failures_behind_writes(fn: Any, backend: str) -> None:
    """Nothing is written twice, and the error is eager's."""
    jitted = jitpy.jit(fn, fullgraph=True, backend=backend)
    for _ in range(3):
        found = []
        for run in (fn, jitted):
            x, seen = torch.zeros(4, 3), list[int]()
            with pytest.raises(ValueError) as error:
                run(x, seen)
            found.append((x.tolist(), seen, str(error.value)))
        assert found[0] == found[1]


def _copies(run: Any) -> int:
    """How many copies an operator that writes is given."""
    from jitpy.backends import planner

    made: list[Any] = []
    planner.copied = lambda tensor: made.append(tensor) or copied(tensor)
    try:
        run()
    finally:
        planner.copied = copied
    return len(made)


def test_no_copy_where_the_memory_dies() -> None:
    assert _copies(lambda: jitpy.jit(into_empty, fullgraph=True)(torch.randn(4, 3))) == 0


def test_arguments_are_written_at_once() -> None:
    x = torch.randn(4, 3)
    expected, jitted = x.clone(), jitpy.jit(writes_to_argument_again_and_again, fullgraph=True)
    writes_to_argument_again_and_again(expected)
    assert _copies(lambda: jitted(x)) == 0
    torch.testing.assert_close(x, expected)
    jitted(x)
    writes_to_argument_again_and_again(expected)
    torch.testing.assert_close(x, expected)


def test_views_of_arguments_are_written_at_once() -> None:
    def fn(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for line in range(3):
            add_to(x * line, cache[line, :, 3:])
            scale_into(x=x, out=cache[line].t()[:3].t(), scale=2.0)
        return cache.sum()

    cache, x = torch.randn(3, 4, 6), torch.randn(4, 3)
    expected = cache.clone()
    fn(expected, x)
    jitted = jitpy.jit(fn, fullgraph=True)
    assert _copies(lambda: jitted(cache, x)) == 0
    torch.testing.assert_close(cache, expected)


def test_large_arguments_are_written_at_once_beside_other_changes() -> None:
    def fn(x: torch.Tensor, seen: list[int]) -> None:
        seen.append(1)
        add_to(torch.ones(()), x)

    for size, copies in ((5, 1), (1 << 20, 0)):
        x, seen = torch.zeros(size), list[int]()
        assert _copies(lambda x=x, seen=seen: jitpy.jit(fn, fullgraph=True)(x, seen)) == copies
        assert seen == [1] and x.sum() == size


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_values_between_writes_are_read_before_the_next_write(writes: int) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        a, between = x * 2, []
        for _ in range(writes):
            two(a, x, y)
            between.append(a + y)
        return between

    x, y = torch.rand(5) + 1, torch.rand(5)
    expected = y.clone()
    torch.testing.assert_close(jitpy.jit(fn, fullgraph=True)(x, y), fn(x, expected))
    torch.testing.assert_close(y, expected)


@torch.library.custom_op("jitpywrites::refuses", mutates_args=())
def refuses(flag: torch.Tensor) -> None:
    if bool(flag > 0):
        raise ValueError("refused")


@refuses.register_fake
def _(flag):
    return None


@torch.library.custom_op("jitpywrites::adds_or_refuses", mutates_args={"out"})
def adds_or_refuses(flag: torch.Tensor, out: torch.Tensor) -> None:
    if bool(flag > 0):
        raise ValueError("refused")
    out.add_(1)


def _changes_before(flag: torch.Tensor, x: torch.Tensor, seen: list[int]) -> None:
    seen.append(1)
    adds_or_refuses(flag, x)


def _changes_between(flag: torch.Tensor, x: torch.Tensor, seen: list[int]) -> None:
    adds_or_refuses(flag - 2, x)
    seen.append(1)
    adds_or_refuses(flag, x)


def _changes_behind(flag: torch.Tensor, x: torch.Tensor, seen: list[int]) -> None:
    adds_or_refuses(flag, x)
    seen.append(1)


def _changes_before_torchs_error(flag: torch.Tensor, x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    adds_or_refuses(flag - 2, x)
    seen.append(1)
    return x[:3].gather(0, flag.long().view(1) * 5)


def _changes_before_effect(flag: torch.Tensor, x: torch.Tensor, seen: list[int]) -> None:
    seen.append(1)
    x.add_(1)
    refuses(flag)


def _writes_again_before_effect(flag: torch.Tensor, x: torch.Tensor, seen: list[int]) -> torch.Tensor:
    x.t_().add_(1)
    y = x + 1
    refuses(flag)
    x.mul_(2)
    return y


@pytest.mark.parametrize("size", [4, 1 << 20])
@pytest.mark.parametrize("fn", [_changes_before, _changes_between, _changes_behind, _changes_before_torchs_error,
                                _changes_before_effect, _writes_again_before_effect])
def test_changes_in_front_of_an_error_are_made(fn: Any, size: int) -> None:
    jitted, outcomes = jitpy.jit(fn), []
    for flag in (0.0, 1.0, 1.0, 0.0):
        for called in (fn, jitted):
            x, seen, error = torch.zeros(size), list[int](), ""
            try:
                called(torch.tensor(flag), x, seen)
            except (RuntimeError, ValueError) as raised:
                error = str(raised)
            outcomes.append((x.sum().item(), seen, error))
    assert outcomes[::2] == outcomes[1::2]
