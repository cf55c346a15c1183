"""Kernels without reductions: each program computes one block of elements, square where operands lie across."""

from __future__ import annotations

from ...ir.spec import prod
from ...schedule.loops import Kernel
from .emitter import Emitter, Program, stem_of
from .tiles import map_launch


def print_map(kernel: Kernel) -> Program:
    """The kernel as one launch."""
    launch = map_launch(kernel)
    emitter = Emitter(kernel, launch, stem_of(kernel))
    emitter.begin_program()
    emitter.emit([s.expr for s in kernel.stores])
    for store in kernel.stores:
        emitter.store(store.value, store.index, store.expr)
    return Program([emitter.finish((prod(tuple(t.count for t in launch.tiles)),))])
