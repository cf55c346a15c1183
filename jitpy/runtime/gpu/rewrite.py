"""Plans rewritten: outputs that a plan allocates become memory that the caller brings, or are told to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from ...ir.trees import tree_map
from ..plan import (
    AllocStep,
    BindStep,
    CallStep,
    CopyStep,
    FreeStep,
    KernelStep,
    LaunchStep,
    Plan,
    SlotRef,
    Step,
    ViewStep,
    slots_read,
)

Number = Callable[[int], int]


def with_given_outputs(plan: Plan) -> tuple[Plan, list[AllocStep]]:
    """The plan with the allocations that outputs live in taken away: it takes these tensors behind its inputs, in the
    order of the AllocSteps that are returned. Outputs that operators allocate stay as they are."""
    home: dict[int, AllocStep] = {}  # slot -> the allocation that it shows
    for step in plan.steps:
        if isinstance(step, AllocStep):
            home[step.slot] = step
        elif isinstance(step, ViewStep) and step.base in home:
            home[step.slot] = home[step.base]
    given: list[AllocStep] = []
    for slot in plan.outputs:
        found = home.get(slot)
        if found is not None and all(found is not one for one in given):
            given.append(found)
    position = {step.slot: plan.n_inputs + number for number, step in enumerate(given)}

    def number(slot: int) -> int:
        if slot in position:
            return position[slot]
        return slot if slot < plan.n_inputs else slot + len(given)

    steps = [renumbered(step, number) for step in plan.steps if all(step is not one for one in given)]
    dropped = set(position.values())  # the caller keeps what it brings
    steps = [FreeStep(tuple(slot for slot in step.slots if slot not in dropped)) if isinstance(step, FreeStep) else step
             for step in steps]
    outputs = tuple(number(slot) for slot in plan.outputs)
    changed = dataclasses.replace(plan, n_inputs=plan.n_inputs + len(given), n_slots=plan.n_slots + len(given),
                                  outputs=outputs, steps=steps)
    return changed, given


def with_results_enclosed(plan: Plan, enter: Callable[[], None], leave: Callable[[Any, Any, Any], None]) -> Plan:
    """The plan with a call of `enter` in front of each operator that may allocate an output, and one of `leave` behind
    it, with the operator's args, kwargs and results."""
    shown = set(plan.outputs)  # slots whose memory an output may be in
    steps: list[Step] = []
    for step in reversed(plan.steps):
        if isinstance(step, ViewStep) and step.slot in shown:
            shown.add(step.base)
        if not isinstance(step, CallStep) or not shown.intersection(step.slots):
            steps.append(step)
            continue
        results = tuple(SlotRef(slot) for slot in step.slots if slot is not None)
        if _may_alias(step.function):
            shown.update(slots_read(step))
        steps += [CallStep(leave, (step.args, step.kwargs, results), {}, ()), step, CallStep(enter, (), {}, ())]
    return dataclasses.replace(plan, steps=steps[::-1])


def _may_alias(function: Any) -> bool:
    """May a call show memory of its arguments?"""
    if isinstance(function, torch._ops.OpOverload):
        return any(result.alias_info is not None for result in function._schema.returns)
    return True


def renumbered(step: Step, number: Number) -> Step:
    """The step with other slot numbers."""
    def refs(value: Any) -> Any:
        return tree_map(lambda leaf: SlotRef(number(leaf.slot)) if isinstance(leaf, SlotRef) else leaf, value)

    if isinstance(step, AllocStep):
        return dataclasses.replace(step, slot=number(step.slot))
    if isinstance(step, KernelStep):
        return dataclasses.replace(step, pointers=refs(step.pointers), writes=tuple(map(number, step.writes)))
    if isinstance(step, LaunchStep):
        return dataclasses.replace(step, arguments=refs(step.arguments), writes=tuple(map(number, step.writes)))
    if isinstance(step, CallStep):
        slots = tuple(None if slot is None else number(slot) for slot in step.slots)
        return dataclasses.replace(step, args=refs(step.args), kwargs=refs(step.kwargs), slots=slots,
                                   writes=tuple(map(number, step.writes)))
    if isinstance(step, ViewStep):
        return dataclasses.replace(step, slot=number(step.slot), base=number(step.base))
    if isinstance(step, CopyStep):
        return CopyStep(number(step.target), number(step.source))
    if isinstance(step, FreeStep):
        return FreeStep(tuple(map(number, step.slots)))
    assert isinstance(step, BindStep)
    symbols = tuple(
        dataclasses.replace(symbol, place=dataclasses.replace(symbol.place, slot=number(symbol.place.slot)))
        for symbol in step.symbols)
    return dataclasses.replace(step, symbols=symbols)
