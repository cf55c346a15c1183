"""Reductions along the vector axis: for each point of the parallel axes a row, one loop over it per stage.

Where columns are reduced as well, rows are worked on in chunks: each adds its rows up element by element, as they pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from ...ir.algebra import sympy
from ...ir.spec import Dim, prod
from ...schedule.expr import Expr, children, order
from ...schedule.index import Axis
from ...schedule.loops import Kernel, Reduce
from ...schedule.values import Value
from .emitter import KernelText, Text, Units
from .halves import loads_in_order
from .partials import Partials, PartialsPrinter, chunked
from .prelude import TYPES
from .reductions import ReductionPrinter, combine_text, initial

#: Length of a row from which float32 sums are kept in float64 lanes.
LONG_ROW = 1 << 15
#: Bytes of the widest vectors.
VECTOR_BYTES = 64
#: Length of a line of a row from which its float32 sum is made before it is added to the row's.
LINE = 256
#: Bytes of a row's buffer that may lie on the stack.
STACK = 1 << 17
#: Rows at least in a chunk of those whose columns are reduced as well.
CHUNK_ROWS = 16


class RowPrinter(ReductionPrinter):
    """Rows in registers and first-level cache."""

    def _lanes_of_narrow(self, exprs: set[Expr], vector: Axis) -> int:
        """Lanes that fill a vector of the narrowest elements, where some have 16 bits or all 8, if rows are as long:
        these are read faster as they are than widened ahead. Where all are converted by blocks, few lanes will do."""
        loads = [e for e in exprs if e.op == "load"]
        if len(loads_in_order(loads, vector, {})) == len(loads):
            return 0
        sizes = {e.attr[0].dtype.itemsize for e in loads}
        if 2 not in sizes and sizes != {1}:
            return 0
        return max((VECTOR_BYTES // n for n in sizes if self.kernel.hint(vector.size) >= VECTOR_BYTES // n), default=0)

    def _row_accumulator(self, reduction: Reduce, length: Dim) -> torch.dtype:
        if (
            reduction.kind in ("sum", "prod")
            and reduction.dtype is torch.float32
            and self.kernel.hint(length) >= LONG_ROW
        ):
            return torch.float64
        return self.accumulator(reduction)

    def _sums_lines(self, reduction: Reduce) -> bool:
        """Whether a long row has lines short enough to be summed in float32, and long enough for that to pay."""
        reduced = self.kernel.reduced
        return reduction.kind == "sum" and len(reduced) > 1 and LINE <= self.kernel.hint(reduced[-1].size) < LONG_ROW

    #: arrays with an element per column, to which rows are added
    column_arrays: dict[Reduce, str] = {}

    @contextlib.contextmanager
    def rows(self) -> Iterator[Units]:
        """The loop over all rows."""
        with self.units(self.kernel.parallel) as units:
            yield units

    def print_loops(self) -> Units:
        caches = self._plan_row_caches()
        for _, name, dtype, length in caches.values():
            if isinstance(length, int) and length * dtype.itemsize <= STACK:
                self.text.add(f"alignas(64) {TYPES[dtype]} {name}[{length}];")
            else:
                self.text.add(f"static thread_local Scratch {name}_memory;")
                self.text.add(
                    f"{TYPES[dtype]}* const __restrict {name} = ({TYPES[dtype]}*){name}_memory.get("
                    f"{self.size(length)} * {dtype.itemsize});"
                )
        with self.rows() as units:
            outer: dict[Expr, str] = {}
            for stage in range(self.stages()):
                self._row_stage(stage, outer, caches)
            self.outer_stores(outer)
        return units

    def _row_position(self) -> str:
        """The number of an element within its row."""
        text = ""
        for axis in self.kernel.reduced:
            text = f"({text}) * {self.size(axis.size)} + {axis.name}" if text else axis.name
        return text

    def _plan_row_caches(self) -> dict[Expr, tuple[int, str, torch.dtype, Dim]]:
        """Costly values of one stage that a later one needs again, kept for the length of a row."""
        kernel = self.kernel
        stage = kernel.stage
        length = prod(tuple(a.size for a in kernel.reduced))
        found: dict[Expr, tuple[int, str, torch.dtype, Dim]] = {}
        used: dict[int, list[Expr]] = {}
        for reduction in kernel.all_reductions:
            used.setdefault(stage[reduction.expr], []).append(reduction.expr)
        for store in kernel.stores:
            if self.depends(store.expr):
                used.setdefault(stage[store.expr], []).append(store.expr)
        made: dict[Expr, int] = {}
        for number in sorted(used):
            stack = list(used[number])
            seen: set[Expr] = set()
            while stack:
                expr = stack.pop()
                if expr in seen or not self.depends(expr):
                    continue
                seen.add(expr)
                if expr in made and made[expr] < number and expr.cost >= 10 and expr.op not in ("load", "cast"):
                    found.setdefault(expr, (made[expr], f"row{len(found)}", expr.dtype, length))
                    continue
                stack.extend(children(expr))
            for expr in seen:
                made.setdefault(expr, number)
        return found

    def _row_stage(
        self, stage: int, outer: dict[Expr, str], caches: dict[Expr, tuple[int, str, torch.dtype, Dim]]
    ) -> None:
        kernel = self.kernel
        reductions = [r for r in kernel.reductions if kernel.stage[r.expr] == stage]
        columns = [r for r in kernel.columns if kernel.stage[r.expr] == stage]
        stores = [s for s in kernel.stores if kernel.stage[s.expr] == stage and self.is_inner(s)]
        if not reductions and not stores and not columns:
            return
        names: dict[Expr, str] = dict(outer)
        fresh_caches = []
        position = self._row_position()
        for expr, (made, name, _, _) in caches.items():
            if made < stage:
                names[expr] = f"{name}[{position}]"
            elif made == stage:
                fresh_caches.append((expr, name))
        roots = [r.expr for r in (*reductions, *columns)] + [s.expr for s in stores]
        needed = order(roots, names)
        inner = {e for e in needed if self.depends(e)}
        hoisted = [e for e in needed if e not in inner and (e in roots or any(e in children(i) for i in inner))]
        self.emit(hoisted, outer)
        for expr in hoisted:
            names[expr] = self.printer.ref(expr, outer)
        names.update({e: n for e, n in outer.items() if e not in names})

        length = prod(tuple(a.size for a in kernel.reduced))
        vector, others = kernel.reduced[-1], kernel.reduced[:-1]

        def finish(inner_names: dict[Expr, str]) -> None:
            for column in columns:
                place = f"{self.column_arrays[column]}[{position}]"
                self.text.add(combine_text(column.kind, place, self.printer.ref(column.expr, inner_names)))
            for store in stores:
                self.store(store.value, store.index, store.expr, inner_names)

        if not reductions:
            def write(inner_names: dict[Expr, str]) -> None:
                self.emit(roots, inner_names)
                finish(inner_names)

            with self.loops(others):
                bounds = "0", self.size(vector.size)
                self.in_lanes(vector, vector.name, bounds, lambda lane: [], roots, stores, names, write)
            return
        dtypes = [self._row_accumulator(r, length) for r in reductions]
        in_lines = {r for r, d in zip(reductions, dtypes, strict=True) if d is not r.dtype and self._sums_lines(r)}
        lanes = self.lane_count(vector.size, [r.dtype if r in in_lines else d
                                              for r, d in zip(reductions, dtypes, strict=True)])
        lanes = max(lanes, self._lanes_of_narrow(inner, vector))
        totals = [self.declare_lanes(r, d, str(lanes), length) for r, d in zip(reductions, dtypes, strict=True)]
        with self.loops(others):
            v, n = vector.name, self.size(vector.size)
            accumulators = [self.declare_lanes(r, r.dtype, str(lanes), length) if r in in_lines else total
                            for r, total in zip(reductions, totals, strict=True)]

            narrow = {e: self.fresh("w") for e in needed if e in inner and _is_narrow(e, vector, lanes)}
            for name in narrow.values():
                self.text.add(f"int32_t {name}[{lanes}];")

            def lane_loop(count: str, start: str) -> None:
                for expr, name in narrow.items():
                    value, index = expr.attr
                    with self.text.block(f"for (int64_t l = 0; l < {count}; ++l)"):
                        self.text.add(f"const int64_t {v} = {f'{start} + l' if start else 'l'};")
                        self.text.add(f"{name}[l] = {self.parameters[value]}[{self.printer.index(index, names)}];")

                def lane_place(lane: str) -> list[str]:
                    return [f"const int64_t {v} = {f'{start} + {lane}' if start else lane};"]

                with self.lanes(vector, "l", lane_place, count, lanes, roots, stores, names) as inner_names:
                    body(inner_names)

            def body(inner_names: dict[Expr, str]) -> None:
                for expr, wide in narrow.items():
                    name = inner_names[expr] = self.fresh()
                    self.text.add(f"const {TYPES[expr.dtype]} {name} = {self.loaded(expr.attr[0], f'{wide}[l]')};")
                self.emit(roots, inner_names)
                for expr, name in fresh_caches:
                    if expr in inner_names:
                        self.text.add(f"{name}[{position}] = {inner_names[expr]};")
                for reduction, accumulator in zip(reductions, accumulators, strict=True):
                    self.combine(
                        reduction, accumulator, "l", self.printer.ref(reduction.expr, inner_names), inner_names
                    )
                finish(inner_names)

            block = self.fresh(f"{v}_block")
            whole = isinstance(vector.size, int) and vector.size % lanes == 0
            short = isinstance(vector.size, int) and vector.size < lanes
            if not short:
                bound = n if whole else f"{n} - {lanes - 1}"
                self.text.add(f"int64_t {block} = 0;")
                with self.text.block(f"for (; {block} < {bound}; {block} += {lanes})"):
                    lane_loop(str(lanes), block)
            if not whole:
                left = str(vector.size % lanes) if isinstance(vector.size, int) else f"{n} - {block}"
                lane_loop(left, "" if short else block)
            for accumulator, total in zip(accumulators, totals, strict=True):
                if accumulator is not total:
                    self.text.add(f"for (int64_t l = 0; l < {lanes}; ++l) {total.name}[l] += {accumulator.name}[l];")
        for reduction, total in zip(reductions, totals, strict=True):
            outer[reduction.result] = self.fold(reduction, total, lanes)


def _is_narrow(expr: Expr, vector: Axis, lanes: int) -> bool:
    """Whether a load along the row takes elements of which a vector holds more than there are lanes. GCC makes no
    vectors of such loops, or tiny ones: the elements are widened in a loop ahead."""
    if expr.op != "load" or expr.args or loads_in_order([expr], vector, {}):
        return False
    value, index = expr.attr
    size = value.dtype.itemsize
    return (size <= 2 and size * lanes < VECTOR_BYTES and index.coefficient(vector) == 1
            and all(isinstance(atom, Axis) for atom, _ in index.terms))


class CrossedPrinter(RowPrinter, PartialsPrinter):
    """Rows and columns of one matrix: chunks of rows are reduced as ever, and leave partial results of the columns."""

    def __init__(
        self,
        kernel: Kernel,
        size_index: Callable[[sympy.Expr], int],
        grain: int,
        in_place: dict[Value, Value] | None = None,
    ) -> None:
        super().__init__(kernel, size_index, grain, in_place)
        self.row_count = prod(tuple(axis.size for axis in kernel.parallel))
        self.chunk, chunks = chunked(self.row_count, kernel.hint(self.row_count), CHUNK_ROWS)
        dtypes = [self.partial_dtype(r) for r in kernel.columns]
        self.partials = Partials(kernel.columns, dtypes, "chunk", chunks, kernel.reduced[:-1], kernel.reduced[-1])

    def print(self) -> KernelText:
        """The kernel's text: a function for chunks of rows, and one that combines what they left of the columns."""
        kernel = self.kernel
        self.text = Text(depth=1)
        self.begin_checks()
        self.begin_partials(self.partials)
        units = self.print_loops()
        self.end_checks()
        row_lines = self.text.lines
        self.text = Text(depth=1)
        combine_units = self.print_combination(self.partials, kernel.column_stores)
        combine_lines = self.text.lines
        head = Text()
        self.comment(head)
        self.function(head, "part", {*kernel.reads, *(s.value for s in kernel.stores)}, row_lines)
        self.function(head, "combine", set(self.operands), combine_lines)
        self.finish_partials(head, self.partials, units, combine_units)
        return self.finished(head)

    @contextlib.contextmanager
    def rows(self) -> Iterator[Units]:
        """Chunks of rows, which start with fresh arrays for the columns."""
        axes = self.kernel.parallel
        count, length = self.size(self.row_count), self.size(prod(tuple(axis.size for axis in self.kernel.reduced)))
        with self.text.block("for (int64_t chunk = begin; chunk < end; ++chunk)"):
            self.text.add(f"const int64_t first = chunk * {self.size(self.chunk)};")
            self.text.add(f"const int64_t last = first + {self.size(self.chunk)} < {count} ? "
                          f"first + {self.size(self.chunk)} : {count};")
            self.column_arrays = {}
            for number, (reduction, dtype) in enumerate(zip(self.kernel.columns, self.partials.dtypes, strict=True)):
                name = self.column_arrays[reduction] = self.fresh("column")
                line = self.line(self.partials, number, whole=True)
                self.text.add(f"{TYPES[dtype]}* const __restrict {name} = {line};")
                start = initial(reduction.kind, dtype)
                self.text.add(f"for (int64_t k = 0; k < {length}; ++k) {name}[k] = {start};")
            with self.text.block("for (int64_t row = first; row < last; ++row)"):
                self.unravel("row", [axis.name for axis in axes], [axis.size for axis in axes])
                yield Units([self.partials.chunks])
