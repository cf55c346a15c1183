"""Running combinations along one axis: blocks scanned side by side, the last value carried on to the next block."""

from __future__ import annotations

import torch

from ...ir.spec import prod
from ...schedule.loops import Kernel
from .emitter import Program, stem_of
from .printer import TYPES, cast
from .reductions import ReductionEmitter, accumulator, combine_name, initial
from .tiles import Launch, Tile, power_of_two


def print_scan(kernel: Kernel) -> Program:
    """The kernel as one launch."""
    along, reduction, store = kernel.reduced, kernel.reductions[0], kernel.stores[0]
    length = kernel.hint(prod(tuple(a.size for a in along)))
    # an axis of one element has no place in an index
    single = all(type(a.size) is int and a.size == 1 for a in along)
    contiguous = kernel.vector is None
    others = kernel.parallel
    width = 1 if contiguous or not others else min(32, power_of_two(kernel.hint(others[-1].size)))
    block = 1 if single else max(2, min(power_of_two(length), 2048 // width))
    r = Tile("r", list(along), block, reduced=True)
    x = Tile("x", others, width)
    emitter = ReductionEmitter(kernel, Launch([x], max(1, min(8, block * width // 256)), r), stem_of(kernel))
    dtype = accumulator(reduction)
    combine, start = combine_name(reduction.kind), initial(reduction.kind, dtype)

    def body(carried: str) -> str:
        emitter.emit([reduction.expr])
        value = emitter.operand_of(reduction)
        emitter.add(f"value = {value}")
        emitter.add("running = value" if single else f"running = tl.associative_scan(value, {r.place}, {combine})")
        if carried:
            emitter.add(f"running = {combine}({carried}, running)")
        target = reduction.result.dtype
        text = "running" if target is dtype else cast("running", dtype, target)
        emitter.names[reduction.result] = "running != 0" if target is torch.bool else text
        emitter.emit([store.expr])
        emitter.store(store.value, store.index, store.expr)
        return "value"

    emitter.begin_program()
    if type(r.size) is int and r.size <= r.block:
        emitter.define(r, "0")
        body("")
    else:
        keep = ", keep_dims=True)" if len(emitter.blocks) > 1 else ")"
        shape = "[" + ", ".join("1" if t is r else str(t.block) for t in emitter.blocks) + "]"
        carried = f"tl.full({shape if len(emitter.blocks) > 1 else '[]'}, {start}, {TYPES[dtype]})"
        emitter.add(f"carried = {carried}")
        outer = dict(emitter.names)
        with emitter.block(f"for r_start in {emitter.range('0', emitter.size(r.size), r.block)}:"):
            emitter.add(f"r = r_start + {emitter.lanes(r)}")
            emitter.split_axes(r)
            body("carried")
            emitter.add(f"carried = {combine}(carried, tl.reduce(value, {r.place}, {combine}{keep})")
        emitter.names = outer
    return Program([emitter.finish((x.count,))])
