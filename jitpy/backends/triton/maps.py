"""Kernels without reductions: each program computes one block of elements, square where operands lie across."""

from __future__ import annotations

from ...ir.spec import prod
from ...schedule.loops import Kernel
from .emitter import Emitter, KernelText, Program, stem_of
from .tiles import Launch, map_launch, variations


def print_map(kernel: Kernel, tune: bool = False) -> Program:
    """The kernel as one launch."""
    launch = map_launch(kernel)
    program = Program([_print(kernel, launch)])
    if tune:
        program.variations.append([_print(kernel, other) for other in variations(launch, kernel)])
    return program


def _print(kernel: Kernel, launch: Launch) -> KernelText:
    emitter = Emitter(kernel, launch, stem_of(kernel))
    emitter.begin_program()
    emitter.emit([s.expr for s in kernel.stores])
    for store in kernel.stores:
        emitter.store(store.value, store.index, store.expr)
    return emitter.finish((prod(tuple(t.count for t in launch.tiles)),))
