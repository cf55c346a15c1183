"""Column reductions by chunks of rows: each chunk leaves a line of partial results, and these are combined in order, so
that results do not depend on the number of threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ...ir.spec import Dim, prod
from ...schedule.expr import Expr
from ...schedule.index import Axis
from ...schedule.loops import Reduce, Store
from .emitter import Text, Units, ceil_div
from .prelude import TYPES
from .reductions import ReductionPrinter, combine_text

#: Columns that are combined together.
WIDTH = 256
#: Into how many chunks rows are divided, ...
CHUNKS = 32
#: ... and how many rows a chunk has at most, so that float32 sums stay exact.
CHUNK_ROWS = 64


def chunked(count: Dim, hint: int, least: int = 1, most: int = CHUNK_ROWS) -> tuple[Dim, Dim]:
    """The length of a chunk of `count` rows, about `hint` ones, and the number of chunks."""
    if hint >= CHUNKS * most:
        chunk: Dim = most
    elif isinstance(count, int):
        chunk = max(ceil_div(count, CHUNKS), least)
    else:
        return ceil_div(count, CHUNKS), CHUNKS
    return chunk, ceil_div(count, chunk)


@dataclass(slots=True)
class Partials:
    """Partial results in scratch memory, for each reduction `chunks` lines.

    chunk       the name of a chunk's number in the text
    others      outer axes of a line
    vector      the innermost axis of a line
    """

    reductions: Sequence[Reduce]
    dtypes: list[torch.dtype]
    chunk: str
    chunks: Dim
    others: list[Axis]
    vector: Axis

    @property
    def rows(self) -> Dim:
        """How many runs of `vector` a reduction's lines have."""
        return prod((self.chunks, *(axis.size for axis in self.others)))

    @property
    def bytes_per_column(self) -> int:
        return sum(dtype.itemsize for dtype in self.dtypes)


class PartialsPrinter(ReductionPrinter):
    """Kernels that reduce columns side by side."""

    def partial_dtype(self, reduction: Reduce) -> torch.dtype:
        """The dtype that lines are kept in: of four bytes or eight, as one lies behind the other."""
        dtype = self.accumulator(reduction)
        return torch.int32 if reduction.kind in ("any", "all") else dtype

    def line(self, partials: Partials, number: int, whole: bool = False) -> str:
        """Where the current chunk keeps its results of a reduction: a pointer to its line (`whole`), or to the current
        run of the vector axis in it. The text has `partial` and `rows`."""
        n = self.size(partials.vector.size)
        kind = TYPES[partials.dtypes[number]]
        before = sum(dtype.itemsize for dtype in partials.dtypes[:number])
        row = partials.chunk
        for axis in partials.others:
            row = f"({row}) * {self.size(axis.size)}" + ("" if whole else f" + {axis.name}")
        return f"({kind}*)(partial + rows * {n} * {before}) + ({row}) * {n}"

    def begin_partials(self, partials: Partials) -> None:
        """Declare what `line` needs."""
        self.text.add(f"char* const partial = (char*)ptr[{len(self.operands)}];")
        self.text.add(f"const int64_t rows = {self.size(partials.rows)};")

    def print_combination(self, partials: Partials, stores: list[Store]) -> Units:
        """The loop that combines all lines, and stores what is made of them."""
        vector = partials.vector
        self.begin_checks()
        self.begin_partials(partials)
        with self.units(partials.others, (vector, WIDTH)) as units:
            self.columns_here(vector, WIDTH, declared=True)
            arrays: dict[Expr, str] = {}
            for number, (reduction, dtype) in enumerate(zip(partials.reductions, partials.dtypes, strict=True)):
                wide = torch.float64 if dtype is torch.float32 and reduction.kind in ("sum", "prod") else dtype
                lane = self.declare_lanes(reduction, wide, str(WIDTH), 0)
                c, kind = partials.chunk, TYPES[dtype]
                with self.text.block(f"for (int64_t {c} = 0; {c} < {self.size(partials.chunks)}; ++{c})"):
                    self.text.add(f"const {kind}* const row = {self.line(partials, number)} + {vector.name}_begin;")
                    self.text.add("#pragma omp simd")
                    step = combine_text(reduction.kind, lane.name + "[l]", "row[l]")
                    self.text.add(f"for (int64_t l = 0; l < lanes; ++l) {step}")
                arrays[reduction.result] = lane.name
            self.store_columns(vector, stores, arrays)
        self.end_checks()
        return units

    def finish_partials(
        self, head: Text, partials: Partials, units: Units, combine_units: Units
    ) -> None:
        """The kernel's function: `{name}_part` by chunks, then `{name}_combine` by columns."""
        n, rows = self.size(partials.vector.size), self.size(partials.rows)
        condition, unit_count, column_count = self.condition(), self.size(units.count), self.size(combine_units.count)
        with head.block('extern "C" void {name}(void* const* args, const int64_t* sz)'):
            self.unpack(head, set())
            self.extend_pointers(head, f"{rows} * {n} * {partials.bytes_per_column}")
            head.add(f"run_parts({unit_count}, 1, {condition}, {{name}}_part, ptr, sz);")
            head.add(f"run_parts({column_count}, 1, {n} * {rows} >= {self.least_points()}, {{name}}_combine, ptr, sz);")

    @contextlib.contextmanager
    def lane_loop(self, vector: Axis) -> Iterator[None]:
        with self.text.block("for (int64_t l = 0; l < lanes; ++l)"):
            self.text.add(f"const int64_t {vector.name} = {vector.name}_begin + l;")
            yield

    def in_columns(
        self,
        vector: Axis,
        roots: list[Expr],
        stores: list[Store],
        names: dict[Expr, str],
        body: Callable[[dict[Expr, str]], None],
    ) -> None:
        """As `lane_loop`, with 16-bit floats converted by blocks."""
        point = f"const int64_t {vector.name} = {vector.name}_begin + l;"
        self.in_lanes(vector, "l", ("0", "lanes"), lambda lane: [point], roots, stores, names, body)

    def columns_here(self, vector: Axis, width: int, declared: bool = False) -> None:
        """Declare `lanes`, the number of columns from `{vector}_begin` on."""
        v, n = vector.name, self.size(vector.size)
        if isinstance(vector.size, int) and vector.size % width == 0:
            self.text.add(f"const int64_t lanes = {width};")
        elif declared:
            self.text.add(f"const int64_t lanes = {v}_end - {v}_begin;")
        else:
            self.text.add(f"const int64_t lanes = {v}_begin + {width} < {n} ? {width} : {n} - {v}_begin;")

    def store_columns(self, vector: Axis, stores: list[Store], arrays: dict[Expr, str]) -> None:
        """Stores with one element per column, made of results in `arrays`."""
        if not stores:
            return
        names: dict[Expr, str] = {}
        for expr, name in arrays.items():
            cast = f"({TYPES[expr.dtype]})" if expr.dtype in (torch.bool, torch.int64) else ""
            names[expr] = f"{cast}{name}[l]"
        roots = [s.expr for s in stores]

        def column(inner_names: dict[Expr, str]) -> None:
            self.emit(roots, inner_names)
            for store in stores:
                self.store(store.value, store.index, store.expr, inner_names)

        self.in_columns(vector, roots, stores, names, column)
