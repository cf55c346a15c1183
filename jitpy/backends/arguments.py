"""Values inside the arguments of calls, and views as strides over memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.spec import Dim
from ..schedule.index import Axis, Index, flatten, of
from ..schedule.values import Value, View


@dataclass(frozen=True, eq=False, slots=True)
class Argument:
    """A value inside the arguments of a call."""

    value: Any


def visit(arguments: Any, fn: Any) -> None:
    """Call `fn` on every Value inside call arguments."""
    if isinstance(arguments, Argument):
        visit(arguments.value, fn)
    elif isinstance(arguments, Value):
        fn(arguments)
    elif isinstance(arguments, (tuple, list)):
        for item in arguments:
            visit(item, fn)
    elif isinstance(arguments, dict):
        for item in arguments.values():
            visit(item, fn)


def flat(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found.extend(flat(list(value)) if isinstance(value, tuple) else [value])
    return found


def strided(value: View) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Dim] | None:
    """`(shape, stride, offset)` of a view over its base's memory, None where no strides describe it."""
    axes = [Axis(size) for size in value.shape]
    index: tuple[Index, ...] = tuple(of(a) if not (type(a.size) is int and a.size == 1) else Index() for a in axes)
    current: Value = value
    while isinstance(current, View):
        index = current.remap(index)
        current = current.base
    position = flatten(index, current.stride)
    steps = []
    known = set(axes)
    if any(not isinstance(atom, Axis) or atom not in known for atom, _ in position.terms):
        return None
    for k, axis in enumerate(axes):
        step = position.coefficient(axis)
        assert step is not None
        if type(axis.size) is int and axis.size == 1 and value.spec is not None:
            step = value.spec.stride[k]  # any will do: eager's
        steps.append(step)
    return value.shape, tuple(steps), position.const


__all__ = ["Argument", "flat", "strided", "visit"]
