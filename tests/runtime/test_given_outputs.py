"""Plans whose outputs are in memory that the caller brings: the same values, in that memory."""

from __future__ import annotations

import random

import pytest
import torch

from jitpy.runtime.executable import make_executable
from jitpy.runtime.gpu.rewrite import with_given_outputs, with_results_enclosed
from jitpy.runtime.plan import AllocStep, CallStep, FreeStep, Plan, SlotRef, ViewStep

from .plans import alloc, call
from .test_random_plans import random_plan

aten = torch.ops.aten


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(kernel, seed: int) -> None:
    plan = random_plan(random.Random(seed), kernel)
    changed, given = with_given_outputs(plan)
    inputs = [torch.randn(4, 4) for _ in range(3)]
    brought = [torch.full(step.shape, float("nan"), dtype=step.dtype) for step in given]
    others = [value.clone() for value in inputs]
    expected = make_executable(plan)(*inputs)
    found = make_executable(changed)(*others, *brought)
    for one, other in zip([*found, *others], [*expected, *inputs], strict=True):
        assert one.stride() == other.stride() and torch.equal(one, other)
    for number in range(len(expected)):  # what shared memory still does
        for second in range(number):
            shared = storage(expected[number]) == storage(expected[second])
            assert (storage(found[number]) == storage(found[second])) == shared
    assert sum(isinstance(step, AllocStep) for step in changed.steps) + len(given) == sum(
        isinstance(step, AllocStep) for step in plan.steps)


def test_outputs_are_written_in_place(kernel) -> None:
    """An allocation, a view of one, an operator's result, an input, and the same twice."""
    steps = [alloc(1, 16), kernel("sine16", 0, 1), alloc(2, 16), kernel("sine16", 1, 2),
             ViewStep(3, 2, (4, 4), (1, 4), 0), call(aten.neg.default, SlotRef(1), to=4), FreeStep((2,))]
    changed, given = with_given_outputs(Plan(1, 5, (3, 4, 1, 0, 1), steps))
    x, view, first = torch.randn(16), torch.empty(16), torch.empty(16)
    assert [step.shape for step in given] == [(16,), (16,)]
    found = make_executable(changed)(x, view, first)
    expected = ((x + 1).sin() * 2)
    assert [storage(found[n]) for n in (0, 2, 4)] == [storage(view), storage(first), storage(first)]
    assert storage(found[3]) == storage(x)
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(found[0], ((expected + 1).sin() * 2).view(4, 4).t())
    torch.testing.assert_close(found[1], -expected)

def test_operators_that_may_allocate_outputs_are_enclosed() -> None:
    seen: list[object] = []

    def enter() -> None:
        seen.append("enter")

    def leave(args: object, kwargs: object, results: object) -> None:
        seen.append((args, kwargs, results))

    steps = [
        CallStep(aten.mm.default, (SlotRef(0), SlotRef(0)), {}, (1,)),  # shown by the output's view of a view
        CallStep(aten.t.default, (SlotRef(1),), {}, (2,)),
        ViewStep(3, 2, (2,), (1,), 0, relative=True),
        CallStep(aten.add.Tensor, (SlotRef(0), 1), {}, (4,)),  # in between
        CallStep(aten.var_mean.default, (SlotRef(4),), {}, (None, 5), multiple=True),
        CallStep(aten.exp.default, (SlotRef(5),), {}, (7,)),
        CallStep(lambda x: x, (SlotRef(7),), {}, (6,)),  # may be the same
    ]
    plan = Plan(1, 8, (3, 5, 6), steps)
    x = torch.rand(2, 2)
    found = make_executable(with_results_enclosed(plan, enter, leave))(x)
    expected = make_executable(plan)(x)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert [item == "enter" for item in seen] == [True, False] * 5
    product, transposed, mean, exponential, same = (item for item in seen if item != "enter")
    assert product[0][0] is x and product[2][0]._base is None
    assert transposed[0][0].data_ptr() == transposed[2][0].data_ptr() == product[2][0].data_ptr()
    assert len(mean[2]) == 1 and torch.equal(mean[2][0], expected[1])
    assert torch.equal(exponential[2][0], expected[2]) and same[0][0].data_ptr() == same[2][0].data_ptr()
