"""Reductions across the vector axis: neighbouring results are computed side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ...ir.spec import Dim, prod
from ...schedule.expr import Expr, children, order
from ...schedule.index import Axis
from ...schedule.loops import Kernel, Reduce
from .emitter import KernelText, Text, Units, ceil_div
from .prelude import TYPES
from .reductions import ReductionPrinter, combine_text

#: Bytes of a block of columns that are worked on together, so that all stages find them in the second-level cache.
COLUMN_CACHE = 1 << 19
#: Rows after which a column's running float32 sum is put aside.
SUM_ROWS = 256
#: Into how many chunks the rows of a large column reduction are divided.
ROW_CHUNKS = 32
#: Points from which that is done.
MANY_POINTS = 1 << 16


class ColumnPrinter(ReductionPrinter):
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
            self._lane_count(vector, width, declared=True)
            arrays: dict[Expr, str] = {}
            for stage in range(self.stages()):
                self._column_stage(stage, arrays, width)
            self._column_outer_stores(arrays)
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
        blocked = any(self._sums_in_blocks(r, rows) for r in reductions)
        totals: dict[Reduce, str] = {}
        for reduction, lanes in zip(reductions, accumulators, strict=True):
            if blocked and self._sums_in_blocks(reduction, rows):
                totals[reduction] = self.fresh("a")
                self.text.add(f"{TYPES[lanes.dtype]} {totals[reduction]}[{width}];")
                self.text.add(f"for (int64_t l = 0; l < {width}; ++l) {totals[reduction]}[l] = 0;")
        axes = kernel.reduced

        def body() -> None:
            self.simd()
            with self.lane_loop(vector):
                inner_names = dict(names)
                self.emit(roots, inner_names)
                for reduction, lanes in zip(reductions, accumulators, strict=True):
                    self.combine(reduction, lanes, "l", self.printer.ref(reduction.expr, inner_names), inner_names)
                for store in stores:
                    self.store(store.value, store.index, store.expr, inner_names)

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
                arrays[reduction.result] = totals.get(reduction, lanes.name)

    def _sums_in_blocks(self, reduction: Reduce, rows: Dim) -> bool:
        return reduction.kind == "sum" and reduction.dtype.is_floating_point and self.kernel.hint(rows) > SUM_ROWS

    @contextlib.contextmanager
    def lane_loop(self, vector: Axis) -> Iterator[None]:
        with self.text.block("for (int64_t l = 0; l < lanes; ++l)"):
            self.text.add(f"const int64_t {vector.name} = {vector.name}_begin + l;")
            yield

    def _column_outer_stores(self, arrays: dict[Expr, str]) -> None:
        kernel = self.kernel
        stores = [s for s in kernel.stores if not self.is_inner(s)]
        if not stores:
            return
        assert kernel.vector is not None
        self.simd()
        with self.lane_loop(kernel.vector):
            names: dict[Expr, str] = {}
            for expr, name in arrays.items():
                kind = TYPES[expr.dtype]
                names[expr] = (
                    f"({kind}){name}[l]" if expr.dtype is torch.bool or expr.dtype is torch.int64 else f"{name}[l]"
                )
            self.emit([s.expr for s in stores], names)
            for store in stores:
                self.store(store.value, store.index, store.expr, names)

    def _lane_count(self, vector: Axis, width: int, declared: bool = False) -> None:
        """Declare `lanes`, the number of columns from `{vector}_begin` on."""
        v, n = vector.name, self.size(vector.size)
        if isinstance(vector.size, int) and vector.size % width == 0:
            self.text.add(f"const int64_t lanes = {width};")
        elif declared:
            self.text.add(f"const int64_t lanes = {v}_end - {v}_begin;")
        else:
            self.text.add(f"const int64_t lanes = {v}_begin + {width} < {n} ? {width} : {n} - {v}_begin;")


class ChunkedColumnPrinter(ColumnPrinter):
    """Many rows and one stage: chunks of rows are reduced to partial rows in parallel, then combined in order. What has
    one element per point is written on the way."""

    @staticmethod
    def fits(kernel: Kernel, printer: ColumnPrinter) -> bool:
        """Whether the kernel is of this kind."""
        if printer.stages() > 1:
            return False
        if any(r.kind.startswith("arg") for r in kernel.reductions):
            return False
        return kernel.hint(kernel.reduced[0].size) >= 2 * ROW_CHUNKS and kernel.hint(kernel.points) >= MANY_POINTS

    def print(self) -> KernelText:
        kernel = self.kernel
        vector = kernel.vector
        assert vector is not None
        first, inner_axes = kernel.reduced[0], kernel.reduced[1:]
        others = [a for a in kernel.parallel if a is not vector]
        other_count = prod(tuple(a.size for a in others))
        chunk = ceil_div(first.size, ROW_CHUNKS)
        chunks = ceil_div(first.size, chunk) if isinstance(chunk, int) else ROW_CHUNKS
        dtypes = [self.accumulator(r) for r in kernel.reductions]
        v, f = vector.name, first.name
        n, m = self.size(vector.size), self.size(first.size)
        width = min(2048, (vector.size + 15) // 16 * 16) if isinstance(vector.size, int) else 2048
        pointer = len(self.operands)
        row_bytes = sum(d.itemsize for d in dtypes)
        inner_stores = [s for s in kernel.stores if self.is_inner(s)]

        def offsets() -> list[str]:
            """Where each reduction's partial rows start: element 0 of row 0."""
            found, before = [], 0
            for dtype in dtypes:
                found.append(f"partial + rows * {n} * {before}" if before else "partial")
                before += dtype.itemsize
            return found

        def row_text() -> str:
            text = f"{f}_chunk"
            for axis in others:
                text = f"({text}) * {self.size(axis.size)} + {axis.name}"
            return text

        # the part that reduces one chunk
        self.text = Text(depth=1)
        chunk_axis = Axis(chunks)
        chunk_axis.name = f"{f}_chunk"
        self.begin_checks()
        self.text.add(f"char* const partial = (char*)ptr[{pointer}];")
        rows = self.size(chunks * other_count)
        self.text.add(f"const int64_t rows = {rows};")
        with self.units([chunk_axis, *others]) as units:
            c = self.size(chunk)
            self.text.add(f"const int64_t {f}_first = {f}_chunk * {c};")
            self.text.add(f"const int64_t {f}_last = {f}_first + {c} < {m} ? {f}_first + {c} : {m};")
            with self.text.block(f"for (int64_t {v}_begin = 0; {v}_begin < {n}; {v}_begin += {width})"):
                self._lane_count(vector, width)
                lanes = [
                    self.declare_lanes(r, d, str(width), 0) for r, d in zip(kernel.reductions, dtypes, strict=True)
                ]
                with self.text.block(f"for (int64_t {f} = {f}_first; {f} < {f}_last; ++{f})"):
                    with self.loops(inner_axes):
                        self.simd()
                        with self.lane_loop(vector):
                            names: dict[Expr, str] = {}
                            self.emit([r.expr for r in kernel.reductions] + [s.expr for s in inner_stores], names)
                            for reduction, lane in zip(kernel.reductions, lanes, strict=True):
                                self.combine(reduction, lane, "l", self.printer.ref(reduction.expr, names), names)
                            for store in inner_stores:
                                self.store(store.value, store.index, store.expr, names)
                for lane, place in zip(lanes, offsets(), strict=True):
                    kind = TYPES[lane.dtype]
                    self.text.add(
                        f"{kind}* const {lane.name}_row = ({kind}*)({place}) + ({row_text()}) * {n} + {v}_begin;"
                    )
                    self.text.add(f"for (int64_t l = 0; l < lanes; ++l) {lane.name}_row[l] = {lane.name}[l];")
        self.end_checks()
        reduce_lines = self.text.lines

        # the part that combines the partial rows
        self.text = Text(depth=1)
        self.text.add(f"char* const partial = (char*)ptr[{pointer}];")
        self.text.add(f"const int64_t rows = {rows};")
        with self.units(others, (vector, 256)) as combine_units:
            self._lane_count(vector, 256, declared=True)
            arrays: dict[Expr, str] = {}
            for reduction, dtype, place in zip(kernel.reductions, dtypes, offsets(), strict=True):
                wide = torch.float64 if dtype is torch.float32 and reduction.kind in ("sum", "prod") else dtype
                lane = self.declare_lanes(reduction, wide, "256", 0)
                kind = TYPES[dtype]
                with self.text.block(f"for (int64_t {f}_chunk = 0; {f}_chunk < {self.size(chunks)}; ++{f}_chunk)"):
                    self.text.add(
                        f"const {kind}* const row = (const {kind}*)({place}) + ({row_text()}) * {n} + {v}_begin;"
                    )
                    self.text.add("#pragma omp simd")
                    step = combine_text(reduction.kind, lane.name + "[l]", "row[l]")
                    self.text.add(f"for (int64_t l = 0; l < lanes; ++l) {step}")
                arrays[reduction.result] = lane.name
            self._column_outer_stores(arrays)
        combine_lines = self.text.lines

        head = Text()
        self.comment(head)
        self.function(head, "part", {*kernel.reads, *(s.value for s in inner_stores)}, reduce_lines)
        self.function(head, "combine", set(self.operands), combine_lines)
        condition, unit_count, column_count = self.condition(), self.size(units.count), self.size(combine_units.count)
        with head.block('extern "C" void {name}(void* const* args, const int64_t* sz)'):
            self.unpack(head, set())
            self.extend_pointers(head, f"{rows} * {n} * {row_bytes}")
            head.add(f"run_parts({unit_count}, 1, {condition}, {{name}}_part, ptr, sz);")
            head.add(f"run_parts({column_count}, 1, {n} * {rows} >= {self.least_points()}, {{name}}_combine, ptr, sz);")
        return self.finished(head)
