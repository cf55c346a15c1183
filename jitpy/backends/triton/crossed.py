"""Kernels that reduce the rows of a matrix and its columns: programs take rows in turn, hold each in registers while
the next one is on its way, and add it to sums of their own, one for each column; a second launch combines these, in
order."""

from __future__ import annotations

from ...schedule.expr import Expr, children, walk
from ...schedule.loops import Kernel
from ...schedule.values import HostScalar
from .emitter import KernelText, Program, stem_of
from .reductions import ReductionEmitter, combine, combine_name
from .tiles import Tile, crossed_launch, power_of_two


def print_crossed(kernel: Kernel) -> Program:
    """The kernel as two launches. The number of columns is known."""
    launch = crossed_launch(kernel)
    scratch: list[int] = []
    first = CrossedEmitter(kernel, launch, stem_of(kernel)).crossed(scratch)
    second = combine(kernel, kernel.reduced, launch.splits, kernel.columns, kernel.column_stores,
                     narrowest=max(16, min(128, 4096 // power_of_two(launch.splits))))
    return Program([first, second], scratch)


class CrossedEmitter(ReductionEmitter):
    """Rows as `x`, columns as `r`."""

    #: while loads of rows that may not exist are printed
    beyond = False

    def crossed(self, scratch: list[int]) -> KernelText:
        """The first launch; adds the scratch memory that it needs, `[program, column]` for each column's reduction."""
        kernel, r, programs = self.kernel, self.r, self.launch.splits
        (x,) = self.launch.tiles
        step = programs * x.block
        self.add("part = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        self.define(r, "0")
        self.emit(self._loads(of_rows=False))
        running = [self.begin(column) for column in kernel.columns]
        loads = self._loads(of_rows=True)
        held = {expr: self.fresh("kept") for expr in loads}
        self._read_ahead(held, f"part * {x.block}")
        outer = dict(self.names)
        with self.block(f"for x_start in range(part * {x.block}, {self.size(x.size)}, {step}):"):
            for name in held.values():
                self.add(f"{name} = {name}_later")
            self._read_ahead(held, f"x_start + {step}")
            self._at(x, "x_start")
            self.names_held = {(expr, self.start): name for expr, name in held.items()}
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

    def _at(self, x: Tile, start: str) -> None:
        """The indices of the rows that begin there."""
        self.add(f"x = {start}" + ("" if x.block == 1 else f" + tl.arange(0, {x.block}){self.shape_suffix(x)}"))
        self.split_axes(x)

    def _read_ahead(self, held: dict[Expr, str], start: str) -> None:
        """Have the rows that begin there on their way into registers, if there are any."""
        (x,) = self.launch.tiles
        if held:
            self._at(x, start)
            self.add(f"x_in = x < {self.size(x.size)}")
            self.beyond, self.names_held = True, {}
            for expr, name in held.items():
                self.add(f"{name}_later = {self.loaded(expr)}")
            self.beyond = False

    def masks(self, tiles: list[Tile]) -> list[str]:
        found = super().masks(tiles)
        return ["x_in", *found] if self.beyond and "x_in" not in found else found

    def _loads(self, of_rows: bool) -> list[Expr]:
        """Loads at places that are known without loads, which differ by row or which all rows have in common."""
        kernel, parallel = self.kernel, set(self.kernel.parallel)
        roots = [r.expr for r in kernel.all_reductions] + [s.expr for s in kernel.stores]
        return [e for e in walk(roots) if e.op == "load" and not children(e) and e.axes
                and bool(e.axes & parallel) is of_rows and not isinstance(e.attr[0], HostScalar)]
