"""Kernels that reduce the rows of a matrix and its columns: programs take rows in turn, hold each in registers, and add
it to sums of their own, one for each column; a second launch combines these, in order."""

from __future__ import annotations

from ...schedule.expr import Expr, walk
from ...schedule.loops import Kernel
from ...schedule.values import HostScalar
from .emitter import KernelText, Program, stem_of
from .reductions import ReductionEmitter, combine, combine_name
from .tiles import crossed_launch


def print_crossed(kernel: Kernel) -> Program:
    """The kernel as two launches. The number of columns is known."""
    launch = crossed_launch(kernel)
    scratch: list[int] = []
    first = CrossedEmitter(kernel, launch, stem_of(kernel)).crossed(scratch)
    second = combine(kernel, kernel.reduced, launch.splits, kernel.columns, kernel.column_stores, narrowest=16)
    return Program([first, second], scratch)


class CrossedEmitter(ReductionEmitter):
    """Rows as `x`, columns as `r`."""

    def crossed(self, scratch: list[int]) -> KernelText:
        """The first launch; adds the scratch memory that it needs, `[program, column]` for each column's reduction."""
        kernel, r, programs = self.kernel, self.r, self.launch.splits
        (x,) = self.launch.tiles
        self.add("let_next_begin()")
        self.add("part = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        self.define(r, "0")
        self.emit(self._shared())
        running = [self.begin(column) for column in kernel.columns]
        outer = dict(self.names)
        with self.block(f"for x_start in range(part * {x.block}, {self.size(x.size)}, {programs * x.block}):"):
            self.add("x = x_start" + ("" if x.block == 1 else f" + tl.arange(0, {x.block}){self.shape_suffix(x)}"))
            self.split_axes(x)
            self.row()
            for column, names in zip(kernel.columns, running, strict=True):
                self.emit([column.expr])
                self.step(column, names, [self.operand_of(column, x)])
        self.names = outer
        for column, (name,) in zip(kernel.columns, running, strict=True):
            if x.block > 1:
                total = self.fresh(column.kind)
                self.add(f"{total} = tl.reduce({name}, {x.place}, {combine_name(column.kind)}, keep_dims=True)")
                name = total
            (dtype,) = self.kept(column)
            self.write(self.scratch(len(scratch), dtype), f"part * {r.size} + r", name, self.masks([r]))
            scratch.append(programs * self.kernel.hint(r.size) * dtype.itemsize)
        return self.finish((programs,))

    def _shared(self) -> list[Expr]:
        """Loads that all rows have in common."""
        kernel, parallel = self.kernel, set(self.kernel.parallel)
        roots = [r.expr for r in kernel.all_reductions] + [s.expr for s in kernel.stores]
        return [e for e in walk(roots) if e.op == "load" and not e.args and e.axes and not e.axes & parallel
                and not isinstance(e.attr[0], HostScalar)]
