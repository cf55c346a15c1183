"""Reductions across the vector axis: neighbouring results are computed side by side."""

from __future__ import annotations

import torch

from ...ir.spec import Dim, prod
from ...schedule.expr import Expr, children, order
from ...schedule.index import Axis
from ...schedule.loops import Kernel, Reduce
from .emitter import KernelText, Text, Units
from .partials import CHUNK_ROWS, CHUNKS, Partials, PartialsPrinter, chunked
from .prelude import TYPES

#: Bytes of a block of columns that are worked on together, so that all stages find them in the second-level cache.
COLUMN_CACHE = 1 << 19
#: Rows after which a column's running float32 sum goes to one in float64: sums of equal numbers err in one direction.
SUM_ROWS = 32
#: Points from which that is done.
MANY_POINTS = 1 << 16


class ColumnPrinter(PartialsPrinter):
    """Blocks of columns, each from the first row to the last."""

    def print_loops(self) -> Units:
        kernel = self.kernel
        vector = kernel.vector
        assert vector is not None
        rows = prod(tuple(a.size for a in kernel.reduced))
        width = self._column_width(rows)
        if isinstance(vector.size, int):
            width = min(width, (vector.size + 15) // 16 * 16)
        others = [a for a in kernel.parallel if a is not vector]
        with self.units(others, (vector, width)) as units:
            self.columns_here(vector, width, declared=True)
            arrays: dict[Expr, str] = {}
            for stage in range(self.stages()):
                self._column_stage(stage, arrays, width)
            self.store_columns(vector, [s for s in kernel.stores if not self.is_inner(s)], arrays)
        return units

    def _column_width(self, rows: Dim) -> int:
        hint = self.kernel.hint
        vector = self.kernel.vector
        assert vector is not None
        others = hint(prod(tuple(a.size for a in self.kernel.parallel if a is not vector)))
        if self.stages() > 1:
            bytes_per_column = hint(rows) * max(
                1, sum(v.dtype.itemsize for v in (*self.kernel.reads, *self.kernel.writes))
            )
            width = 1024
            while width > 16 and width * bytes_per_column > COLUMN_CACHE:
                width //= 2
            return width
        width = 1024
        while width > 64 and others * hint(vector.size) < 8 * width:
            width //= 2
        return width

    def _column_stage(self, stage: int, arrays: dict[Expr, str], width: int) -> None:
        kernel = self.kernel
        vector = kernel.vector
        assert vector is not None
        reductions = [r for r in kernel.reductions if kernel.stage[r.expr] == stage]
        stores = [s for s in kernel.stores if kernel.stage[s.expr] == stage and self.is_inner(s)]
        if not reductions and not stores:
            return
        roots = [r.expr for r in reductions] + [s.expr for s in stores]
        # values per column that this stage needs and that are costly: computed once per column
        needed = order(roots, {e: "" for e in arrays})
        inner = {e for e in needed if self.depends(e)}
        once = [
            e for e in needed if e not in inner and e.cost >= 4 and (e in roots or any(e in children(i) for i in inner))
        ]
        if once:
            for expr in once:
                name = self.fresh("c")
                self.text.add(f"{TYPES[expr.dtype]} {name}[{width}];")
                arrays[expr] = name
            self.simd()
            with self.lane_loop(vector):
                names = {e: f"{n}[l]" for e, n in arrays.items() if e not in once}
                self.emit(once, names)
                for expr in once:
                    self.text.add(f"{arrays[expr]}[l] = {names[expr]};")
        names = {e: f"{n}[l]" for e, n in arrays.items()}
        rows = prod(tuple(a.size for a in kernel.reduced))
        accumulators = [self.declare_lanes(r, self.accumulator(r), str(width), rows) for r in reductions]
        totals: dict[Reduce, str] = {}
        for reduction in reductions:
            if self._sums_in_blocks(reduction, rows):
                totals[reduction] = self.fresh("a")
                self.text.add(f"double {totals[reduction]}[{width}];")
                self.text.add(f"for (int64_t l = 0; l < {width}; ++l) {totals[reduction]}[l] = 0;")
        axes = kernel.reduced

        def column(inner_names: dict[Expr, str]) -> None:
            self.emit(roots, inner_names)
            for reduction, lanes in zip(reductions, accumulators, strict=True):
                self.combine(reduction, lanes, "l", self.printer.ref(reduction.expr, inner_names), inner_names)
            for store in stores:
                self.store(store.value, store.index, store.expr, inner_names)

        def body() -> None:
            self.in_columns(vector, roots, stores, names, column)

        def flush() -> None:
            with self.text.block("for (int64_t l = 0; l < lanes; ++l)"):
                for reduction, lanes in zip(reductions, accumulators, strict=True):
                    if reduction in totals:
                        self.text.add(f"{totals[reduction]}[l] += {lanes.name}[l];")
                        self.text.add(f"{lanes.name}[l] = 0;")

        if not totals:
            with self.loops(axes):
                body()
        else:
            last = axes[-1]
            with self.loops(axes[:-1]):
                block, n = f"{last.name}_block", self.size(last.size)
                with self.text.block(f"for (int64_t {block} = 0; {block} < {n}; {block} += {SUM_ROWS})"):
                    self.text.add(
                        f"const int64_t {block}_end = {block} + {SUM_ROWS} < {n} ? {block} + {SUM_ROWS} : {n};"
                    )
                    with self.text.block(
                        f"for (int64_t {last.name} = {block}; {last.name} < {block}_end; ++{last.name})"
                    ):
                        body()
                    flush()
        for reduction, lanes in zip(reductions, accumulators, strict=True):
            if reduction.kind.startswith("arg"):
                arrays[reduction.result] = f"{lanes.name}p"
                self.text.add(
                    f"for (int64_t l = 0; l < lanes; ++l) if ({lanes.name}p[l] == {lanes.none}) {lanes.name}p[l] = 0;"
                )
            else:
                if reduction in totals:
                    self.text.add(f"for (int64_t l = 0; l < lanes; ++l) {lanes.name}[l] = {totals[reduction]}[l];")
                arrays[reduction.result] = lanes.name

    def _sums_in_blocks(self, reduction: Reduce, rows: Dim) -> bool:
        return reduction.kind == "sum" and reduction.dtype is torch.float32 and self.kernel.hint(rows) > CHUNK_ROWS


class ChunkedColumnPrinter(ColumnPrinter):
    """Many rows and one stage: chunks of rows are reduced to partial rows in parallel, then combined in order. Values
    with one element per point are written on the way."""

    @staticmethod
    def fits(kernel: Kernel, printer: ColumnPrinter) -> bool:
        """Whether the kernel is of this kind."""
        if printer.stages() > 1:
            return False
        if any(r.kind.startswith("arg") for r in kernel.reductions):
            return False
        return kernel.hint(kernel.reduced[0].size) >= 2 * CHUNKS and kernel.hint(kernel.points) >= MANY_POINTS

    def print(self) -> KernelText:
        kernel = self.kernel
        vector = kernel.vector
        assert vector is not None
        first, inner_axes = kernel.reduced[0], kernel.reduced[1:]
        others = [a for a in kernel.parallel if a is not vector]
        lines = kernel.hint(prod(tuple(a.size for a in inner_axes)))
        chunk, chunks = chunked(first.size, kernel.hint(first.size), most=max(CHUNK_ROWS // lines, 1))
        chunk_axis = Axis(chunks)
        chunk_axis.name = f"{first.name}_chunk"
        dtypes = [self.partial_dtype(r) for r in kernel.reductions]
        partials = Partials(kernel.reductions, dtypes, chunk_axis.name, chunks, others, vector)
        v, f = vector.name, first.name
        n, m = self.size(vector.size), self.size(first.size)
        width = min(2048, (vector.size + 15) // 16 * 16) if isinstance(vector.size, int) else 2048
        inner_stores = [s for s in kernel.stores if self.is_inner(s)]

        roots = [r.expr for r in kernel.reductions] + [s.expr for s in inner_stores]

        def column(names: dict[Expr, str]) -> None:
            self.emit(roots, names)
            for reduction, lane in zip(kernel.reductions, lanes, strict=True):
                self.combine(reduction, lane, "l", self.printer.ref(reduction.expr, names), names)
            for store in inner_stores:
                self.store(store.value, store.index, store.expr, names)

        # the part that reduces one chunk
        self.text = Text(depth=1)
        self.begin_checks()
        self.begin_partials(partials)
        with self.units([chunk_axis, *others]) as units:
            c = self.size(chunk)
            self.text.add(f"const int64_t {f}_first = {f}_chunk * {c};")
            self.text.add(f"const int64_t {f}_last = {f}_first + {c} < {m} ? {f}_first + {c} : {m};")
            with self.text.block(f"for (int64_t {v}_begin = 0; {v}_begin < {n}; {v}_begin += {width})"):
                self.columns_here(vector, width)
                lanes = [self.declare_lanes(r, self.accumulator(r), str(width), 0) for r in kernel.reductions]
                with self.text.block(f"for (int64_t {f} = {f}_first; {f} < {f}_last; ++{f})"):
                    with self.loops(inner_axes):
                        self.in_columns(vector, roots, inner_stores, {}, column)
                for number, lane in enumerate(lanes):
                    line = f"{self.line(partials, number)} + {v}_begin"
                    self.text.add(f"{TYPES[dtypes[number]]}* const {lane.name}_row = {line};")
                    self.text.add(f"for (int64_t l = 0; l < lanes; ++l) {lane.name}_row[l] = {lane.name}[l];")
        self.end_checks()
        reduce_lines = self.text.lines

        # the part that combines the partial rows
        self.text = Text(depth=1)
        combine_units = self.print_combination(partials, [s for s in kernel.stores if not self.is_inner(s)])
        combine_lines = self.text.lines

        head = Text()
        self.comment(head)
        self.function(head, "part", {*kernel.reads, *(s.value for s in inner_stores)}, reduce_lines)
        self.function(head, "combine", set(self.operands), combine_lines)
        self.finish_partials(head, partials, units, combine_units)
        return self.finished(head)
