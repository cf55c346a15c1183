"""The order in which kernels and calls run: what each needs comes first; else as in the program, or so that less memory
is in use at the peak.

A gradient of a weight reads what the forward pass kept and is itself small: run before the gradient that goes on to
the next layer, it frees the one before the other is made. Such units are run as soon as they can, where that lowers the
peak of the whole graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ir.failures import may_fail
from .expr import walk
from .fuse import Call, Fusion
from .values import Value


@dataclass(slots=True)
class Memory:
    """The memory that units read and write, as far as it counts.

    touched   by unit: the values read, and those written
    size      bytes of a value; 0 for one that takes no memory of its own (inputs, small ones)
    kept      values that are alive when the graph ends
    in_input  values that are written into the memory of an input at once, if nobody else is to read that any more
    at_start  bytes of inputs that the call owns: they are freed when they have been read
    """

    touched: dict[Any, tuple[Sequence[Value], Sequence[Value]]]
    size: Callable[[Value], int]
    kept: set[Value]
    in_input: dict[Value, Value] = field(default_factory=dict)
    at_start: int = 0


def in_order(fusion: Fusion, units: list[Any], memory: Memory) -> list[Any]:
    """All units, in an order that respects who reads whom. Where inputs change, what may fail is first."""
    urgent = _before_failures(fusion, units)
    order, peak = _run(units, urgent, memory, relieving=False)
    if peak:
        other, lower = _run(units, urgent, memory, relieving=True)
        if lower < peak:
            return other
    return order


def _run(units: list[Any], urgent: set[Any], memory: Memory, relieving: bool) -> tuple[list[Any], int]:
    """An order and the bytes in use at its peak. With `relieving`, units that free more than they take come as soon as
    they can; else the order is that of the program."""
    state = _Usage(units, memory)
    waiting = {unit: len(unit.before) for unit in units}
    number = {unit: k for k, unit in enumerate(units)}
    ready: list[tuple[bool, int, int, Any]] = []
    relief: list[tuple[bool, int, int, Any]] = []
    done: set[Any] = set()

    def offer(unit: Any) -> None:
        if relieving and state.growth[unit] < 0:
            heapq.heappush(relief, (unit not in urgent, state.growth[unit], number[unit], unit))

    def make_ready(unit: Any, count: int) -> None:
        heapq.heappush(ready, (unit not in urgent, unit.last, count, unit))
        offer(unit)

    for k, unit in enumerate(units):
        if not waiting[unit]:
            make_ready(unit, k)
    result: list[Any] = []
    count = len(units)
    while ready:
        unit = ready[0][-1]
        if relief and (unit in done or relief[0][0] <= ready[0][0]):
            unit = heapq.heappop(relief)[-1]
        else:
            heapq.heappop(ready)
        if unit in done:
            continue
        done.add(unit)
        result.append(unit)
        for other in state.run(unit):
            if other not in done and not waiting[other]:
                offer(other)
        for following in unit.after:
            waiting[following] -= 1
            if not waiting[following]:
                count += 1
                make_ready(following, count)
    assert len(result) == len(units), "kernels depend on each other in a circle"
    return result, state.peak


class _Usage:
    """Bytes in use while units run one after the other. `growth` of a unit is what it would add to them if it ran
    next."""

    def __init__(self, units: list[Any], memory: Memory) -> None:
        self.memory = memory
        self.now = self.peak = memory.at_start
        self.readers: dict[Value, set[Any]] = {}
        for unit in units:
            for value in memory.touched[unit][0]:
                self.readers.setdefault(value, set()).add(unit)
        self.growth = {unit: self._taken(unit) - self._freed(unit) for unit in units}

    def _frees(self, value: Value) -> bool:
        return value not in self.memory.kept

    def _taken(self, unit: Any) -> int:
        total = 0
        for value in self.memory.touched[unit][1]:
            home = self.memory.in_input.get(value)
            if home is None or self.readers.get(home, set()) - {unit}:
                total += self.memory.size(value)
        return total

    def _freed(self, unit: Any) -> int:
        reads, writes = self.memory.touched[unit]
        dying = [value for value in reads if len(self.readers[value]) == 1 and self._frees(value)]
        dying += [value for value in writes if not self.readers.get(value) and self._frees(value)]
        return sum(map(self.memory.size, dying))

    def run(self, unit: Any) -> Iterable[Any]:
        """Count a unit; the units whose growth is another from now on."""
        taken = self._taken(unit)
        reused = 0 if isinstance(unit, Call) else min(taken, self._freed(unit))  # kernels write over what they read
        self.peak = max(self.peak, self.now + taken - reused)
        self.now += taken - self._freed(unit)
        changed: set[Any] = set()
        for value in self.memory.touched[unit][0]:
            left = self.readers[value]
            left.discard(unit)
            if len(left) == 1:
                changed |= left
        for other in changed:
            self.growth[other] = self._taken(other) - self._freed(other)
        return changed


def _before_failures(fusion: Fusion, units: list[Any]) -> set[Any]:
    """Units that may fail, with all that it depends on. No input may be changed before it has run: kernels that come
    after it can write into inputs at once."""
    if not fusion.low.graph.mutations:
        return set()
    stack = [unit for unit in units if _may_fail(fusion, unit)]
    found = set(stack)
    while stack:
        for unit in stack.pop().before:
            if unit not in found:
                found.add(unit)
                stack.append(unit)
    return found


def _may_fail(fusion: Fusion, unit: Any) -> bool:
    if isinstance(unit, Call):
        return may_fail(unit.node)
    return any(expr.op == "check" for value in unit.members for expr in walk([fusion.probe(value).result]))


__all__ = ["Memory", "in_order"]
