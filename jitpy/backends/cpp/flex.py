"""Attention with computed scores: a block of queries at a time, as the lanes of all loops, against the blocks of keys
that its row of the block mask lists.

Scores, weights and sums lie keys by queries and columns by queries. So maxima and sums over keys need no other lane,
and keys and values are read as they lie.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch

from ...ir.spec import Dim
from ...schedule.expr import Expr, children, order
from ...schedule.flex import Added, Attention, BlockLists, Operand
from ...schedule.index import Axis, Index
from ...schedule.values import Value
from .emitter import KernelPrinter, Text, Units, ceil_div
from .prelude import TYPES
from .printer import literal

#: The most queries and keys of a tile.
TILE = 64


class _Pass(KernelPrinter):
    """Code that both passes share."""

    @property
    def attention(self) -> Attention:
        assert self.kernel.attention is not None
        return self.kernel.attention

    @property
    def scale(self) -> str:
        return literal(self.attention.target.scale, torch.float32)

    def begin(self, areas: dict[str, Dim]) -> dict[Expr, str]:
        """Take the memory that a thread needs: floats, a multiple of 16 each. The names of what is known everywhere."""
        attention = self.attention
        self.batch, self.head, self.query, self.key = attention.axes
        self.rows, self.columns = (_tile(size) for size in attention.target.block)
        if self.kernel.hint(self.query.size) <= TILE // 2:
            self.rows = min(self.rows, 16 if self.kernel.hint(self.query.size) <= 16 else TILE // 2)
        n, m = self.rows, self.columns
        size = int(attention.query.shape[3])
        areas = {"turned": size * n, "scores": m * n, "top": n, "total": n, "safe": n, "shrunk": n, **areas}
        areas |= {name: m * int(one.shape[3]) for name, one in (("keys", attention.key), ("values", attention.value))
                  if not self.is_plain(one)}
        total: Dim = sum(areas.values())
        self.text.add("static thread_local Scratch memory;")
        self.text.add(f"float* area = (float*)memory.get({self.size(total)} * 4);")
        for name, count in areas.items():
            self.text.add(f"float* const {name} = area; area += {self.size(count)};")
        names = {expr: f"(int32_t){expr.attr.name}" for expr in self.kernel.stage if expr.op == "place"}
        names[attention.given] = "score"
        return names

    # memory

    def is_plain(self, operand: Operand) -> bool:
        """Whether rows of floats lie there as they are needed."""
        return operand.value.dtype is torch.float32

    def step(self, operand: Operand, axis: int) -> str:
        return self.size(operand.step(axis))

    def at(self, operand: Operand, head: str, row: str, column: str) -> str:
        """The place of an element."""
        parts = [f"{index} * {self.step(operand, axis)}" for axis, index in
                 enumerate((self.batch.name, head, row, column)) if self.step(operand, axis) != "0"]
        if not (type(operand.offset) is int and operand.offset == 0):
            parts.insert(0, self.size(operand.offset))
        return " + ".join(parts) or "0"

    def load_queries(self, also: str = "") -> None:
        """The block's queries, columns by queries. Behind the end the last one is repeated. `also` has the same queries
        by columns."""
        query = self.attention.query
        with self.text.block(f"for (int64_t lane = 0; lane < {self.rows}; ++lane)"):
            self.text.add("const int64_t row = first + lane < last ? first + lane : last;")
            with self.text.block(f"for (int64_t e = 0; e < {query.shape[3]}; ++e)"):
                loaded = self.load(query.value, self.at(query, self.head.name, "row", "e"))
                self.text.add(f"const float value = {loaded};")
                self.text.add(f"turned[e * {self.rows} + lane] = value;")
                if also:
                    self.text.add(f"{also}[lane * {_padded(query)} + e] = value;")

    def matrix(self, name: str, operand: Operand) -> tuple[str, str, str]:
        """The pointer to the first of a block's rows, and the steps to the next row and column."""
        if self.is_plain(operand):
            at = self.at(operand, "shared", "start", "0")
            return f"{self.parameters[operand.value]} + {at}", self.step(operand, 2), self.step(operand, 3)
        width = int(operand.shape[3])
        with self.text.block("for (int64_t k = 0; k < count; ++k)"):
            with self.text.block(f"for (int64_t e = 0; e < {width}; ++e)"):
                loaded = self.load(operand.value, self.at(operand, "shared", "(start + k)", "e"))
                self.text.add(f"{name}[k * {width} + e] = {loaded};")
        return name, str(width), "1"

    # expressions

    def wanted(self, names: dict[Expr, str], varying: set[Axis]) -> list[Expr]:
        """Name the values that are the same along these axes and that others read."""
        roots = self.attention.roots()
        needed = order(roots, names)
        used = {child for expr in needed if expr.axes & varying for child in children(expr)}.union(roots)
        return [e for e in needed if e in used and not e.axes & varying and e.op != "const"]

    def invariants(self, varying: set[Axis], names: dict[Expr, str]) -> None:
        self.emit(self.wanted(names, varying), names)

    def lane_values(self, names: dict[Expr, str]) -> None:
        """Compute once for each lane the values that vary with queries but not with keys."""
        found = [e for e in self.wanted(names, {self.key}) if self.query in e.axes]
        if not found:
            return
        arrays = {expr: self.fresh("lanes") for expr in found}
        for expr, name in arrays.items():
            kind = "uint8_t" if expr.dtype is torch.bool else TYPES[expr.dtype]
            self.text.add(f"alignas(64) {kind} {name}[{self.rows}];")
        with self.lane_loop():
            inner = dict(names)
            self.emit(found, inner)
            for expr, name in arrays.items():
                self.text.add(f"{name}[lane] = {inner[expr]};")
        for expr, name in arrays.items():
            names[expr] = f"({name}[lane] != 0)" if expr.dtype is torch.bool else f"{name}[lane]"

    @contextlib.contextmanager
    def lane_loop(self) -> Iterator[None]:
        self.simd()
        with self.text.block(f"for (int64_t lane = 0; lane < {self.rows}; ++lane)"):
            self.text.add(f"const int64_t {self.query.name} = first + lane < last ? first + lane : last;")
            yield

    def walk(self, lists: BlockLists | None, masked: bool, names: dict[Expr, str]) -> None:
        """The loop over the blocks of keys that the row of the mask lists, or over all keys."""
        text, size = self.text, self.size(self.key.size)
        text.add(f"// blocks that need {'the' if masked else 'no'} mask")
        with text.block("") if lists is None else self.listed(lists):
            if lists is None:
                text.add(f"const int64_t block_start = 0, block_end = {size};")
            with text.block(f"for (int64_t start = block_start; start < block_end; start += {self.columns})"):
                text.add(f"const int64_t count = block_end - start < {self.columns} ? block_end - start : "
                         f"{self.columns};")
                self.tile(masked, dict(names))

    @contextlib.contextmanager
    def listed(self, lists: BlockLists) -> Iterator[None]:
        """The loop over the blocks that a row lists."""
        text, (block_rows, block_columns) = self.text, self.attention.target.block
        size = self.size(self.key.size)
        with text.block(""):
            text.add(f"const int64_t row = first / {block_rows};")
            # lists are the program's: nothing outside of memory is read for wrong ones
            rows, most = self.size(lists.count.shape[2]), self.size(lists.indices.shape[3])
            counted = self.load(lists.count.value, self.at_list(lists.count, ""))
            text.add(f"const int64_t counted = row < {rows} ? (int64_t){counted} : 0;")
            text.add(f"const int64_t blocks = counted < {most} ? counted : {most};")
            with text.block("for (int64_t number = 0; number < blocks; ++number)"):
                loaded = self.load(lists.indices.value, self.at_list(lists.indices, "number"))
                text.add(f"const int64_t block_start = (int64_t){loaded} * {block_columns};")
                text.add("if (block_start < 0) continue;")
                end = f"block_start + {block_columns}"
                text.add(f"const int64_t block_end = {end} < {size} ? {end} : {size};")
                yield

    def at_list(self, operand: Operand, last: str) -> str:
        parts = [f"{index} * {self.step(operand, axis)}" for axis, index in
                 enumerate((self.batch.name, self.head.name, "row", last)) if index and self.step(operand, axis) != "0"]
        if not (type(operand.offset) is int and operand.offset == 0):
            parts.insert(0, self.size(operand.offset))
        return " + ".join(parts) or "0"

    def tile(self, masked: bool, names: dict[Expr, str]) -> None:
        """Print what is done for one tile of keys."""
        raise NotImplementedError

    def changed(self, masked: bool, names: dict[Expr, str]) -> list[Expr]:
        """Declare `changed`: the score of a lane behind its change and the mask. The conditions that it has."""
        attention = self.attention
        conditions = [attention.mask] if masked and attention.mask is not None else []
        self.emit([attention.score, *conditions], names)
        text = self.printer.ref(attention.score, names)
        for seen in conditions:
            text = f"choose<float, int32_t>({self.printer.ref(seen, names)}, {text}, -__builtin_inff())"
        self.text.add(f"const float changed = {text};")
        return conditions


class FlexPrinter(_Pass):
    """The forward pass."""

    def print_loops(self) -> Units:
        attention, text = self.attention, self.text
        size = int(attention.value.shape[3])
        names = self.begin({"sums": size * TILE})
        n = self.rows
        blocks = ceil_div(self.query.size, n)
        units = Units([self.batch.size, self.head.size, blocks])
        with text.block("for (int64_t unit = begin; unit < end; ++unit)"):
            self.unravel("unit", [self.batch.name, self.head.name, "block"], [self.batch.size, self.head.size, blocks])
            text.add(f"const int64_t shared = {self.head.name} / {attention.group};")
            text.add(f"const int64_t first = block * {n};")
            text.add(f"const int64_t last = {self.size(self.query.size)} - 1;")
            self.invariants({self.query, self.key}, names)
            self.load_queries()
            with text.block(f"for (int64_t k = 0; k < {size * n}; ++k)"):
                text.add("sums[k] = 0.0f;")
            with text.block(f"for (int64_t k = 0; k < {n}; ++k)"):
                text.add("top[k] = -__builtin_inff(), total[k] = 0.0f;")
            self.lane_values(names)
            if attention.full is not None:
                self.walk(attention.full, False, names)
            self.walk(attention.masked, True, names)
            self.finish_rows()
        return units

    def tile(self, masked: bool, names: dict[Expr, str]) -> None:
        """One tile of keys."""
        text, n, attention = self.text, self.rows, self.attention
        size = int(attention.query.shape[3])
        pointer, row, step = self.matrix("keys", attention.key)
        text.add(f"multiply_tile<{n}, false>({pointer}, {row}, {step}, turned, scores, count, {size});")
        text.add(f"for (int64_t lane = 0; lane < {n}; ++lane) safe[lane] = top[lane];")
        with text.block("for (int64_t k = 0; k < count; ++k)"):
            text.add(f"const int64_t {self.key.name} = start + k;")
            text.add(f"float* const line = scores + k * {n};")
            inner = dict(names)
            self.invariants({self.query}, inner)
            with self.lane_loop():
                text.add(f"const float score = line[lane] * {self.scale};")
                self.changed(masked, inner)
                text.add("line[lane] = changed;")
                text.add("safe[lane] = pick_max<float>(safe[lane], changed);")
        text.add("#pragma omp simd")
        with text.block(f"for (int64_t lane = 0; lane < {n}; ++lane)"):
            text.add("const float grown = safe[lane];")
            text.add("const float kept = grown == -__builtin_inff() ? 0.0f : grown;")
            text.add("shrunk[lane] = exp_f32(top[lane] - kept);")
            text.add("total[lane] *= shrunk[lane];")
            text.add("top[lane] = grown, safe[lane] = kept;")
        with text.block("for (int64_t k = 0; k < count; ++k)"):
            text.add(f"float* const line = scores + k * {n};")
            text.add("#pragma omp simd")
            with text.block(f"for (int64_t lane = 0; lane < {n}; ++lane)"):
                text.add("const float weight = exp_f32(line[lane] - safe[lane]);")
                text.add("line[lane] = weight, total[lane] += weight;")
        with text.block(f"for (int64_t e = 0; e < {attention.value.shape[3]}; ++e)"):
            text.add("#pragma omp simd")
            text.add(f"for (int64_t lane = 0; lane < {n}; ++lane) sums[e * {n} + lane] *= shrunk[lane];")
        pointer, row, step = self.matrix("values", attention.value)
        width = attention.value.shape[3]
        text.add(f"multiply_tile<{n}, true>({pointer}, {step}, {row}, scores, sums, {width}, count);")

    def finish_rows(self) -> None:
        """Write the results."""
        text, results, written = self.text, self.attention.results, self.kernel.writes
        with text.block(f"for (int64_t lane = 0; lane < {self.rows} && first + lane <= last; ++lane)"):
            text.add("const int64_t row = first + lane;")
            if results["out"] in written:
                out = results["out"]
                some = "" if math.isnan(self.attention.target.empty) else "total[lane] == 0 ? 1.0f : "
                text.add(f"const float divisor = {some}total[lane];")
                with text.block(f"for (int64_t e = 0; e < {out.shape[3]}; ++e)"):
                    place = self.at(_own(out), self.head.name, "row", "e")
                    value = self.stored(out, f"sums[e * {self.rows} + lane] / divisor")
                    text.add(f"{self.parameters[out]}[{place}] = {value};")
            for name, value in (("lse", "top[lane] == __builtin_inff() ? top[lane] : top[lane] + log_f32(total[lane])"),
                                ("top", "top[lane]")):
                if results[name] in written:
                    text.add(f"{self.parameters[results[name]]}[{self.at_list(_own(results[name]), '')}] = {value};")


class FlexGradientPrinter(_Pass):
    """The backward pass. One thread has all queries that share a head of keys: it adds up the gradients of these. Those
    of captures are added in order: by the threads that have the heads that their places tell, or by one."""

    def print_loops(self) -> Units:
        attention, text = self.attention, self.text
        gradients = attention.gradients
        assert gradients is not None
        key, value = attention.key, attention.value
        size, value_size = int(key.shape[3]), int(value.shape[3])
        names = self.begin({
            "rows": TILE * _padded(key), "grads": TILE * _padded(value), "grads_turned": TILE * value_size,
            "slopes": TILE * TILE, "sums": TILE * size,
            "grad_keys": key.shape[2] * _padded(key), "grad_values": key.shape[2] * _padded(value)})
        names[gradients.given] = "grad"
        sizes: list[tuple[str, Dim]] = [(self.batch.name, self.batch.size), ("shared", key.shape[1])]
        apart = sizes
        inside: list[tuple[str, Dim]] = []
        if self.added():
            apart, inside = (sizes[1:], sizes[:1]) if self.adds_by_heads() else ([], sizes)
        with contextlib.ExitStack() as stack:
            stack.enter_context(text.block("for (int64_t unit = begin; unit < end; ++unit)"))
            if apart:
                self.unravel("unit", [name for name, _ in apart], [size for _, size in apart])
            for name, count in inside:
                head = f"for (int64_t {name} = 0; {name} < {self.size(count)}; ++{name})"
                stack.enter_context(text.block(head))
            text.add(f"const int64_t last = {self.size(self.query.size)} - 1;")
            for name, one in (("grad_keys", key), ("grad_values", value)):
                text.add(f"for (int64_t k = 0; k < {self.size(key.shape[2] * _padded(one))}; ++k) {name}[k] = 0.0f;")
            for name, one in (("rows", key), ("grads", value)):  # columns that nobody has
                text.add(f"for (int64_t k = 0; k < {TILE * _padded(one)}; ++k) {name}[k] = 0.0f;")
            group = attention.group
            head = self.head.name
            with text.block(f"for (int64_t {head} = shared * {group}; {head} < (shared + 1) * {group}; ++{head})"):
                outer = dict(names)
                self.invariants({self.query, self.key}, outer)
                with text.block(f"for (int64_t first = 0; first <= last; first += {self.rows})"):
                    self.load_queries("rows")
                    self.load_gradients()
                    text.add(f"for (int64_t k = 0; k < {size * self.rows}; ++k) sums[k] = 0.0f;")
                    inner = dict(outer)
                    self.lane_values(inner)
                    if attention.full is not None:
                        self.walk(attention.full, False, inner)
                    self.walk(attention.masked, True, inner)
                    self.store_queries()
            self.store_keys()
        return Units([size for _, size in apart])

    def added(self) -> list[Added]:
        """The additions to gradients of captures that somebody reads."""
        gradients, results = self.attention.gradients, self.attention.results
        assert gradients is not None
        return [added for added in gradients.added if results[added.result] in self.kernel.writes]

    def adds_by_heads(self) -> bool:
        """Whether no two heads add to one place: all reads of a capture have the head along the same axis."""
        steps: dict[str, set[Dim]] = {}
        for added in self.added():
            found = _steps_of(added.index, self.head)
            steps[added.result] = steps.get(added.result, found) & found
        return all(steps.values())

    def prepare(self, text: Text) -> None:
        for value in dict.fromkeys(self.attention.results[added.result] for added in self.added()):
            text.add(f"__builtin_memset(ptr[{self.operands.index(value)}], 0, {value.numel * value.dtype.itemsize});")

    def load_gradients(self) -> None:
        """Of the block's results, with their statistics (`top` and `total`); zeros behind the end."""
        gradients, text, n = self.attention.gradients, self.text, self.rows
        assert gradients is not None
        head, output = self.head.name, gradients.output
        with text.block(f"for (int64_t lane = 0; lane < {n}; ++lane)"):
            text.add("const bool is_there = first + lane <= last;")
            text.add("const int64_t row = is_there ? first + lane : last;")
            with text.block(f"for (int64_t e = 0; e < {output.shape[3]}; ++e)"):
                loaded = self.load(output.value, self.at(output, head, "row", "e"))
                text.add(f"const float value = is_there ? {loaded} : 0.0f;")
                text.add(f"grads[lane * {_padded(output)} + e] = value, grads_turned[e * {n} + lane] = value;")
            lse, delta = (self.load(one.value, self.at_list(one, "")) for one in (gradients.lse, gradients.delta))
            text.add(f"const float lse = {lse};")
            text.add("top[lane] = lse == -__builtin_inff() ? 0.0f : lse;")
            text.add(f"total[lane] = is_there ? {delta} : 0.0f;")

    def tile(self, masked: bool, names: dict[Expr, str]) -> None:
        text, n, attention = self.text, self.rows, self.attention
        gradients = attention.gradients
        assert gradients is not None
        size, value_size = attention.key.shape[3], attention.value.shape[3]
        keys, values = self.matrix("keys", attention.key), self.matrix("values", attention.value)
        for number in range(len(self.added())):
            text.add(f"alignas(64) float added{number}[{n}]; alignas(64) int64_t place{number}[{n}];")
        text.add(f"multiply_tile<{n}, false>({', '.join(keys)}, turned, scores, count, {size});")
        text.add(f"multiply_tile<{n}, false>({', '.join(values)}, grads_turned, slopes, count, {value_size});")
        with text.block("for (int64_t k = 0; k < count; ++k)"):
            text.add(f"const int64_t {self.key.name} = start + k;")
            text.add(f"float* const line = scores + k * {n};")
            text.add(f"float* const slope = slopes + k * {n};")
            inner = dict(names)
            self.invariants({self.query}, inner)
            with self.lane_loop():
                text.add(f"const float score = line[lane] * {self.scale};")
                conditions = self.changed(masked, inner)
                text.add("const float weight = exp_f32(changed - top[lane]);")
                text.add("const float grad = weight * (slope[lane] - total[lane]);")
                self.emit([gradients.score], inner)
                found = self.printer.ref(gradients.score, inner)
                for seen in conditions if found != "grad" else []:
                    found = f"choose<float, int32_t>({self.printer.ref(seen, inner)}, {found}, 0.0f)"
                text.add(f"line[lane] = weight, slope[lane] = {found};")
                for number, added in enumerate(self.added()):
                    self.emit(added.roots(), inner)
                    found = self.printer.ref(added.value, inner)
                    for seen in conditions:
                        found = f"choose<float, int32_t>({self.printer.ref(seen, inner)}, {found}, 0.0f)"
                    text.add(f"added{number}[lane] = {found};")
                    if self.query in added.index.all_axes():
                        text.add(f"place{number}[lane] = {self.printer.index(added.index, inner)};")
            for number, added in enumerate(self.added()):
                into = self.parameters[attention.results[added.result]]
                loop = f"for (int64_t lane = 0; lane < {n} && first + lane <= last; ++lane)"
                if self.query in added.index.all_axes():
                    text.add(f"{loop} {into}[place{number}[lane]] += added{number}[lane];")
                else:
                    text.add(f"double total{number} = 0;")
                    text.add(f"{loop} total{number} += added{number}[lane];")
                    text.add(f"{into}[{self.printer.index(added.index, inner)}] += total{number};")
        key, value = attention.key, attention.value
        for left, into, right, one in (("slopes", "grad_keys", "rows", key), ("scores", "grad_values", "grads", value)):
            width = _padded(one)
            text.add(f"multiply_tile<{width}, true>({left}, {n}, 1, {right}, {into} + start * {width}, count, {n});")
        pointer, row, step = keys
        text.add(f"multiply_tile<{n}, true>({pointer}, {step}, {row}, slopes, sums, {size}, count);")

    def store_queries(self) -> None:
        query = self.attention.results["query"]
        if query not in self.kernel.writes:
            return
        with self.text.block(f"for (int64_t lane = 0; lane < {self.rows} && first + lane <= last; ++lane)"):
            with self.text.block(f"for (int64_t e = 0; e < {query.shape[3]}; ++e)"):
                place = self.at(_own(query), self.head.name, "(first + lane)", "e")
                value = self.stored(query, f"sums[e * {self.rows} + lane] * {self.scale}")
                self.text.add(f"{self.parameters[query]}[{place}] = {value};")

    def store_keys(self) -> None:
        for name, area, factor in (("key", "grad_keys", f" * {self.scale}"), ("value", "grad_values", "")):
            result = self.attention.results[name]
            if result not in self.kernel.writes:
                continue
            with self.text.block(f"for (int64_t k = 0; k < {self.size(self.key.size)}; ++k)"):
                with self.text.block(f"for (int64_t e = 0; e < {result.shape[3]}; ++e)"):
                    own = _own(result)
                    value = self.stored(result, f"{area}[k * {_padded(own)} + e]{factor}")
                    self.text.add(f"{self.parameters[result]}[{self.at(own, 'shared', 'k', 'e')}] = {value};")


def _padded(operand: Operand) -> int:
    """The columns of rows whose length is a multiple of a vector."""
    return -(-int(operand.shape[3]) // 16) * 16

def _steps_of(index: Index, axis: Axis) -> set[Dim]:
    """How far apart in memory neighbours along an axis are, where its number is one of those of the place."""
    return {step for atom, step in index.terms if isinstance(atom, Expr) and atom.op == "cast"
            and atom.args[0].op == "place" and atom.args[0].attr is axis}


def _own(value: Value) -> Operand:
    """A result as an operand."""
    return Operand(value, value.shape, value.stride, 0)


def _tile(size: int) -> int:
    """The largest tile that divides a block."""
    return next(tile for tile in (TILE, 32, 16) if size % tile == 0)


__all__ = ["FlexGradientPrinter", "FlexPrinter"]
