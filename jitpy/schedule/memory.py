"""The memory plan: which buffers live in the call's scratch memory, where, and which kernels write in place."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir.sizes import SizeEnv
from .expr import Expr, walk
from .index import same
from .loops import Kernel
from .values import Value

ALIGNMENT = 64


@dataclass(slots=True)
class Region:
    """Scratch bytes `offset..offset+size`, in use between two units (inclusive)."""

    offset: int
    size: int
    first: int
    last: int


@dataclass(slots=True)
class Scratch:
    """Places buffers of static size so that those alive together do not overlap; `size` is the total."""

    size: int = 0
    regions: list[Region] = field(default_factory=list)

    def place(self, size: int, first: int, last: int) -> Region:
        """The lowest gap that is free from unit `first` to unit `last`."""
        size = (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        busy = sorted((r for r in self.regions if r.first <= last and first <= r.last), key=lambda r: r.offset)
        offset = 0
        for region in busy:
            if offset + size <= region.offset:
                break
            offset = max(offset, region.offset + region.size)
        found = Region(offset, size, first, last)
        self.regions.append(found)
        self.size = max(self.size, offset + size)
        return found


def can_write_over(kernel: Kernel, target: Value, source: Value, env: SizeEnv) -> bool:
    """Whether `kernel` may put `target` where `source` is: each element is read only before it is replaced."""
    if kernel.style == "flex":
        return False
    if kernel.style == "scatter":  # it fills its result first
        loads = any(e.op == "load" and e.attr[0] is source for e in walk(kernel.roots()))
        return source is kernel.start and not loads
    if kernel.parts:
        own = kernel.part_of(target)
        others = any(source in part.reads for part in kernel.parts if part is not own)
        return not others and can_write_over(own, target, source, env)
    if target.dtype.itemsize != source.dtype.itemsize or not same(target.numel, source.numel):
        return False
    stores = [s for s in kernel.all_stores if s.value is target]
    last = max((kernel.stage[root] for root in kernel.roots()), default=0)
    if len(stores) != 1 or kernel.stage[stores[0].expr] != last and _loads_late(kernel, source, stores[0].expr):
        return False
    position = stores[0].index
    return all(
        expr.attr[1] == position for expr in walk(kernel.roots()) if expr.op == "load" and expr.attr[0] is source
    )


def _loads_late(kernel: Kernel, source: Value, stored: Expr) -> bool:
    """Whether `source` is read by a later stage than that which stores."""
    stage = kernel.stage[stored]
    for root in kernel.roots():
        if kernel.stage[root] > stage and any(e.op == "load" and e.attr[0] is source for e in walk([root])):
            return True
    return False
