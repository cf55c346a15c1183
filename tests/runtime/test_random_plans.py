"""Random plans: the native executable and the Python one agree in everything that a caller can see."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitpy.runtime.executable import PythonExecutable, make_executable, plan_text
from jitpy.runtime.plan import CopyStep, FreeStep, KernelStep, Plan, SlotRef, ViewStep

from .plans import alloc, call

aten = torch.ops.aten


def random_plan(chooser: random.Random, kernel: Callable[..., KernelStep]) -> Plan:
    """A program over 16-element float tensors: operators, views of everything, kernels, copies, frees."""
    steps: list[Any] = []
    live = [0, 1, 2]  # slots with 4 x 4 tensors; the first three are inputs
    count = 3
    pure = [aten.relu.default, aten.neg.default, aten.clone.default, aten.t.default, aten.abs.default]
    for _ in range(chooser.randrange(1, 14)):
        a, b, kind = chooser.choice(live), chooser.choice(live), chooser.randrange(8)
        new = [count]
        if kind == 0:
            steps.append(call(chooser.choice(pure), SlotRef(a), to=count))
        elif kind == 1:
            steps.append(call(aten.add.Tensor, SlotRef(a), SlotRef(b), alpha=2, to=count))
        elif kind == 2:
            step = call(aten.linear.default, SlotRef(a), SlotRef(b), to=count)
            steps.append(chooser.choice([step, call(torch.mul, SlotRef(a), SlotRef(b), to=count)]))
        elif kind == 3:
            stride = chooser.choice([(4, 1), (1, 4), (4, 0), (0, 0)])
            steps.append(ViewStep(count, a, (4, 4), stride, 0, relative=True))
        elif kind in (4, 5):
            contiguous = call(aten.contiguous.default, SlotRef(a), to=count)
            new = [count, count + 1]
            steps += [contiguous, alloc(count + 1, 4, 4), kernel("sine16", count, count + 1)]
        elif kind == 6:
            steps.append(CopyStep(chooser.randrange(3), a))
            new = []
        elif len(live) > 4:
            gone = chooser.choice(live[3:])
            live.remove(gone)
            steps.append(FreeStep((gone,)))
            new = []
        else:
            new = []
        live += new
        count += len(new)
    outputs = tuple(chooser.choices(live, k=chooser.randrange(1, 5)))
    return Plan(3, count, outputs, steps)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(kernel, seed):
    """Native and Python agree in values, strides, shared memory and version counters."""
    plan = random_plan(random.Random(seed), kernel)
    seen = []
    for run in (make_executable(plan), PythonExecutable(plan)):
        generator = torch.Generator().manual_seed(seed)
        inputs = [torch.randn(4, 4, generator=generator) for _ in range(3)]
        outputs = run(*inputs)
        everything = [*inputs, *outputs]
        owners = [[x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() for y in inputs] for x in outputs]
        bases = [[x._base is y for y in inputs] for x in outputs]
        facts = [(x.stride(), x.storage_offset(), x.requires_grad) for x in everything]
        seen.append(([x.clone() for x in everything], owners, bases, facts, [x._version for x in inputs]))
        for x in outputs:  # views of inputs share their counters
            if x.stride() in ((4, 1), (1, 4)):
                x.add_(1)
        seen[-1] += ([x._version for x in inputs],)
    native, python = seen
    assert native[1:] == python[1:], plan_text(plan)
    for got, expected in zip(native[0], python[0], strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)
