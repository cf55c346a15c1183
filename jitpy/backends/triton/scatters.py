"""Additions and writes at computed places: zeros first, or what the result starts from, unless it lies there; then a
program for each block of the source, which adds atomically, or writes where no two places are one.

Where several elements meet, the order of their additions is the hardware's, as in eager's kernels; where results must
repeat (`torch.use_deterministic_algorithms`), eager's sorting ones run instead.
"""

from __future__ import annotations

from ...ir.spec import prod
from ...schedule.expr import Expr
from ...schedule.index import Axis, Index
from ...schedule.loops import Kernel
from ...schedule.values import Value
from .emitter import Emitter, KernelText, Program, stem_of
from .printer import cast
from .tiles import Launch, Tile, map_launch

#: Elements that a program clears.
CLEARED = 2048


def print_scatter(kernel: Kernel, in_place: dict[Value, Value]) -> Program:
    """The kernel as two launches, or as one where the result lies where the sums start from."""
    vector = kernel.vector
    if vector is not None:  # neighbours in memory side by side; any order will do
        kernel.axes = [*(a for a in kernel.axes if a is not vector), vector]
    emitter = ScatterEmitter(kernel, map_launch(kernel), stem_of(kernel))
    emitter.begin_program()
    (store,) = kernel.stores
    emitter.emit(kernel.roots())
    emitter.store(store.value, store.index, store.expr)
    added = emitter.finish((prod(tuple(t.count for t in emitter.launch.tiles)),))
    if kernel.start is not None and in_place.get(store.value) is kernel.start:
        return Program([added])
    return Program([_filled(kernel, store.value), added])


def _filled(kernel: Kernel, value: Value) -> KernelText:
    """The launch that fills the result with zeros, or with what the sums start from, which lies in memory alike."""
    x = Tile("x", [Axis(value.numel)], CLEARED)
    emitter = Emitter(kernel, Launch([x], 4), stem_of(kernel))
    emitter.begin_program()
    masks, text = emitter.masks([x]), "0.0"
    if kernel.start is not None:
        text = f"tl.load({emitter.parameters[kernel.start]} + x{', mask=x_in' if masks else ''})"
    emitter.write(emitter.parameters[value], "x", text, masks)
    return emitter.finish((x.count,), "_clear" if kernel.start is None else "_start")


class ScatterEmitter(Emitter):
    """Stores at computed places."""

    def store(self, value: Value, index: Index, expr: Expr) -> None:
        """Add `expr`, named already, to `value[index]`, once for each point, or write it there."""
        masks = self.masks(self.blocks)
        text = self.printer.tensor(expr)
        at = self.index(index)
        if self.blocks and self.tiles_of(index.all_axes()) != self.blocks:
            at = f"tl.broadcast_to({at}, {self.shape})"
        if self.blocks and self.tiles_of(expr.axes) != self.blocks:
            text = f"tl.broadcast_to({text}, {self.shape})"
        if expr.dtype is not value.dtype:
            text = cast(text, expr.dtype, value.dtype)
        mask = f", mask={' & '.join(masks)}" if masks else ""
        call, order = ("atomic_add", ', sem="relaxed"') if self.kernel.adds else ("store", "")
        self.add(f"tl.{call}({self.parameters[value]} + ({at}), {text}{mask}{order})")
