"""Values inside the arguments of calls, and views as strides over memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.spec import Dim
from ..ir.trees import tree_leaves
from ..schedule.index import Axis, Index, flatten, of
from ..schedule.values import Value, View


@dataclass(frozen=True, eq=False, slots=True)
class Argument:
    """A value inside the arguments of a call."""

    value: Any


def visit(arguments: Any, fn: Any) -> None:
    """Call `fn` on every Value inside call arguments."""
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, Argument):
            visit(leaf.value, fn)
        elif isinstance(leaf, Value):
            fn(leaf)


def flat(values: list[Any]) -> list[Any]:
    return list(tree_leaves(values))


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
