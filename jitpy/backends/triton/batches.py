"""Kernels that do the same to many tensors, as one launch: an optimizer's updates, conversions of parameters.

All operands are parameters of the kernel. A program's number says which tensors are its own: it chooses their pointers,
and then does what the kernel for them alone does.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from ...ir.spec import Dim
from ...schedule.loops import Kernel
from .emitter import Emitter, KernelText, Parameter, Program, stem_of
from .tiles import ENOUGH_PROGRAMS, Launch, Tile, block_of, ceil_div, power_of_two

#: The number of elements of the tensors that a program works on: a size that is only ever named.
COUNT: Any = object()


class _BatchEmitter(Emitter):
    """Prints the body of one part, for tensors of `count` elements."""

    def size(self, size: Dim) -> str:
        return "count" if size is COUNT else super().size(size)


def print_batch(batch: Kernel) -> Program:
    """The kernels of a batch as one launch. Their sizes are known, and their bodies are equal."""
    counts = [int(part.points) for part in batch.parts]
    total = sum(counts)
    block = min(block_of(batch.parts[0]), power_of_two(max(total // ENOUGH_PROGRAMS, 128)))
    return Program([_print(batch, counts, block if batch.parts[0].axes else 1)])


def _print(batch: Kernel, counts: list[int], block: int) -> KernelText:
    first = batch.parts[0]
    tile = Tile("x", list(first.axes), block)
    tile.size = COUNT
    emitter = _BatchEmitter(first, Launch([tile], max(1, min(4, block // 128))), stem_of(batch))
    emitter.wide = False
    names = dict(emitter.parameters)
    parameters: dict[Parameter, str] = {}
    for part in batch.parts:
        for value in (*part.reads, *part.writes):
            parameters.setdefault(value, f"p{len(parameters)}")
    grid = _choose_part(emitter, batch, names, parameters, counts, block)
    emitter.define(tile, "pid - start")
    emitter.emit([s.expr for s in first.stores])
    for store in first.stores:
        emitter.store(store.value, store.index, store.expr)
    emitter.parameters = parameters
    return emitter.finish((grid,))


def _choose_part(emitter: Emitter, batch: Kernel, names: dict[Parameter, str], parameters: dict[Parameter, str],
                 counts: list[int], block: int) -> int:
    """Give a program's operands the names that the body uses; returns how many programs there are."""
    operands = [[*part.reads, *part.writes] for part in batch.parts]
    starts = list(accumulate((int(ceil_div(count, block)) for count in counts), initial=0))
    emitter.add("pid = tl.program_id(0)")

    def choose(first: int, last: int) -> None:
        """Halve the parts until one is left: there may be hundreds."""
        middle = (first + last) // 2
        if middle > first:
            for head, part in ((f"if pid < {starts[middle]}:", (first, middle)), ("else:", (middle, last))):
                with emitter.block(head):
                    choose(*part)
            return
        emitter.add(f"start = {starts[first]}")
        emitter.add(f"count = {counts[first]}")
        for name, value in zip(names.values(), operands[first], strict=True):
            emitter.add(f"{name} = {parameters[value]}")

    choose(0, len(counts))
    return starts[-1]
