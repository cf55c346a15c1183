"""Horizontal fusion: many small kernels that do the same to different tensors become one launch.

An optimizer's update, a step counter per parameter, running statistics: kernels whose bodies are equal but for the
tensors, and of which none needs another's result. Vertical fusion would glue each to whatever made its operand, which
saves few bytes and prints the same code again and again; so fusion recognises such values first (`alike.py`), and
what became of them is gathered here when all kernels are there.

On GPUs small kernels that do different things run side by side, too: a launch more takes longer than they do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from ..ir.spec import prod
from .alike import body_key
from .fuse import Fusion, Group
from .index import Index
from .loops import Kernel
from .values import Product, Value

#: Bytes of operands made in the graph from which a kernel runs where they are made: in the cache, and freed soon.
OPERANDS = 1 << 20
#: Bytes of operands that may wait for a batch all together.
WAITING = 1 << 24
#: Points of a kernel that a launch takes longer than, and how many such kernels run side by side at most.
SMALL, BESIDE = 1 << 16, 8


@dataclass(eq=False, slots=True)
class Batch:
    """Groups whose kernels run as one, as a unit of the schedule."""

    groups: list[Group]
    style: str
    before: set[Any] = field(default_factory=set)
    after: set[Any] = field(default_factory=set)

    @property
    def members(self) -> list[Value]:
        return [value for group in self.groups for value in group.members]

    @property
    def last(self) -> int:
        """Where it stands in the program: where the first result is needed, at the end where nothing reads any."""
        return (min if self.after else max)(group.last for group in self.groups)


def kernel_key(kernel: Kernel) -> tuple[Hashable, ...] | None:
    """Equal for kernels that differ in their tensors and their number of elements only; None for what no batch takes:
    kernels with reductions, or with more than one axis."""
    if kernel.style != "map" or len(kernel.axes) > 1:
        return None
    axis = kernel.axes[0] if kernel.axes else None

    def place(index: Index) -> Hashable | None:
        if type(index.const) is not int or len(index.terms) > 1:
            return None
        if not index.terms:
            return 0, index.const
        atom, step = index.terms[0]
        return (step, index.const) if atom is axis and type(step) is int else None

    stores = [(place(store.index), store.value.dtype) for store in kernel.stores]
    body = body_key([store.expr for store in kernel.stores], place)
    if body is None or any(where is None for where, _ in stores):
        return None
    return (axis is None, *stores, *body)


def beside_key(kernel: Kernel) -> tuple[Hashable, ...] | None:
    """Equal for kernels that can run side by side, whatever they do: small ones, and products of a row with matrices of
    the same depth."""
    if any(type(axis.size) is not int for axis in kernel.axes):
        return None
    if kernel.style in ("map", "scatter"):
        return (kernel.style == "map" or kernel.start is not None,) if kernel.hint(kernel.points) <= SMALL else None
    products = [one.value for one in kernel.reductions if isinstance(one.value, Product) and one.value.sizes.is_row]
    few = kernel.hint(prod(tuple(axis.size for axis in kernel.parallel))) < 64  # then programs share a long row
    if few or not products or len(products) < len(kernel.reductions):
        return None
    return products[0].sizes.dtype, tuple(axis.size for axis in kernel.reduced)


def gather(fusion: Fusion, kernels: dict[Group, Kernel]) -> list[Any]:
    """The units of the schedule, groups of equal kernels that do not depend on each other replaced by batches."""
    units: list[Any] = [*fusion.groups, *fusion.calls]
    limit = fusion.limits.batch_operands
    for style in ("batch",) if limit is None else ("batch", "beside"):
        classes: dict[tuple[Hashable, ...], list[Group]] = {}
        for group in (unit for unit in units if isinstance(unit, Group)):
            kernel = kernels[group]
            if _waiting(fusion, kernel) > OPERANDS or _awaited(fusion, group, kernel) > fusion.limits.batch_result:
                continue
            known = limit is None or all(type(axis.size) is int for axis in kernel.axes)
            key = beside_key(kernel) if style == "beside" else kernel_key(kernel) if known else None
            if key is not None:
                classes.setdefault(key, []).append(group)
        for alike in classes.values():
            below = _below(units) if len(alike) > 1 else {}
            while len(alike) > 1:
                taken = _independent(alike, below, lambda g: max(_waiting(fusion, kernels[g]),
                                                                 _awaited(fusion, g, kernels[g])))
                if style == "beside":
                    taken = taken[:BESIDE]
                elif limit is not None:
                    taken = taken[: limit // len((*kernels[alike[0]].reads, *kernels[alike[0]].writes))]
                if len(taken) > 1:
                    units = _contract(Batch(taken, style), units)
                    below = _below(units)
                alike = [group for group in alike if group not in set(taken)]
    return units


def _waiting(fusion: Fusion, kernel: Kernel) -> int:
    """Bytes of operands that are made in this graph."""
    return sum(fusion.bytes(value) for value in kernel.reads if fusion.unit_of(value) is not None)


def _awaited(fusion: Fusion, group: Group, kernel: Kernel) -> int:
    """Bytes of results that are read in this graph."""
    return sum(fusion.bytes(value) for value in kernel.writes) if group.after and kernel.style != "scatter" else 0


def _independent(groups: list[Group], below: dict[Any, int], waiting: Callable[[Group], int]) -> list[Group]:
    """The first of `groups`, and those others that neither depend on one taken before nor are needed for it."""
    number = {unit: k for k, unit in enumerate(below)}
    taken: list[Group] = []
    bits = reached = bytes_waiting = 0
    for group in groups:
        bit = 1 << number[group]
        more = bytes_waiting + waiting(group)
        if not taken or not (reached & bit or below[group] & bits) and more <= WAITING:
            taken.append(group)
            bytes_waiting = more
            bits |= bit
            reached |= below[group]
    return taken


def _below(units: list[Any]) -> dict[Any, int]:
    """For each unit, in order, those that depend on it, directly or not, as the bits of a number."""
    left = {unit: len(unit.after) for unit in units}
    number = {unit: k for k, unit in enumerate(units)}
    ready = [unit for unit, count in left.items() if not count]
    found: dict[Any, int] = {}
    while ready:
        unit = ready.pop()
        bits = 0
        for following in unit.after:
            bits |= found[following] | 1 << number[following]
        found[unit] = bits
        for earlier in unit.before:
            left[earlier] -= 1
            if not left[earlier]:
                ready.append(earlier)
    return {unit: found[unit] for unit in units}


def _contract(batch: Batch, units: list[Any]) -> list[Any]:
    """The units with a batch in place of its groups."""
    for group in batch.groups:
        batch.before |= group.before
        batch.after |= group.after
        for unit in group.before:
            unit.after.discard(group)
            unit.after.add(batch)
        for unit in group.after:
            unit.before.discard(group)
            unit.before.add(batch)
    gone = set(batch.groups)
    return [unit for unit in units if unit not in gone] + [batch]


def batch_kernel(kernels: list[Kernel], style: str) -> Kernel:
    """One kernel that runs all of `kernels`, which have equal keys of a style."""
    first = kernels[0]
    made = Kernel(first.name, style, [], None, [s for k in kernels for s in k.stores], [], first.env,
                  [m for k in kernels for m in k.members], parts=kernels)
    made.reads = list(dict.fromkeys(value for k in kernels for value in k.reads))
    made.writes = [value for k in kernels for value in k.writes]
    made.nodes = list(dict.fromkeys(node for k in kernels for node in k.nodes))
    return made

