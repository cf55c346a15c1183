"""Kernels as C++ text: the loops of each style. Compiled with `#pragma omp simd` on; there are no intrinsics.

Sums are kept in many lanes and added up pairwise at the end: deterministic, independent of the number of threads, and
more accurate than one running sum.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from ...ir.spec import Dim, prod
from ...schedule.expr import Expr, carrier, children
from ...schedule.index import Axis, Index
from ...schedule.loops import Kernel, Reduce, Store
from ...schedule.values import HostScalar, Value
from .prelude import STORAGE, TYPES
from .printer import ExprPrinter, literal, order

#: Elements per thread below which a kernel's work units are made finer.
CHUNK = 16384
#: Bytes of a block of columns that are worked on together, so that all stages find them in the second-level cache.
COLUMN_CACHE = 1 << 19
#: Side of the square tiles of transposing kernels.
TILE = 64
#: Length of a row from which float32 sums are kept in float64 lanes.
LONG_ROW = 1 << 15
#: Length of a row below which one vector of lanes is used, so that adding them up does not cost more than the row.
SHORT_ROW = 512
#: Rows after which a column's running float32 sum is put aside.
SUM_ROWS = 256
#: Into how many chunks the rows of a large column reduction are divided.
ROW_CHUNKS = 32


@dataclass(slots=True)
class Text:
    """Lines with indentation."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def add(self, line: str) -> None:
        self.lines.append("  " * self.depth + line if line and not line.startswith("#") else line)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.add(head + " {")
        self.depth += 1
        yield
        self.depth -= 1
        self.add("}")


@dataclass(slots=True)
class KernelText:
    """A printed kernel: `body` defines `void {name}(void* const* ptr, const int64_t* sz)` with `{name}` for its
    name."""

    body: str
    operands: list[Value]


class KernelPrinter:
    """Prints one kernel.

    size_index   the number of a symbolic size in the size table
    grain        work per thread below which one thread does everything
    in_place     operands written that share their memory with one that is read, by identity of elements
    """

    def __init__(self, kernel: Kernel, size_index: Callable[[sympy.Expr], int], grain: int,
                 in_place: dict[Value, Value] | None = None) -> None:
        self.kernel = kernel
        self.size_index = size_index
        self.grain = grain
        self.in_place = in_place or {}
        self.text = Text()
        self.sizes: dict[sympy.Expr, str] = {}
        self.operands: list[Value] = []
        self.pointers: dict[Value, str] = {}
        for k, value in enumerate(kernel.reads):
            self.pointers[value] = f"in{k}"
            self.operands.append(value)
        for k, value in enumerate(kernel.writes):
            self.pointers[value] = f"out{k}"
            self.operands.append(value)
        self.printer = ExprPrinter(self.size, self.load)
        self.counter = 0
        self.checks = any(e.op == "check" for e in kernel.stage)
        for k, axis in enumerate(kernel.parallel):
            axis.name = f"i{k}"
        for k, axis in enumerate(kernel.reduced):
            axis.name = f"r{k}"

    # small texts

    def size(self, size: Dim) -> str:
        if isinstance(size, int):
            return literal(size, torch.int64)
        if size.is_Integer:
            return literal(int(size), torch.int64)
        found = self.sizes.get(size)
        if found is None:
            found = self.sizes[size] = f"n{len(self.sizes)}"
        return found

    def load(self, value: Value, index: str) -> str:
        text = f"{self.pointers[value]}[{index}]"
        if value.dtype is torch.bfloat16:
            return f"float_of_bf16({text})"
        if value.dtype is torch.float16:
            return f"float_of_f16({text})"
        return text

    def stored(self, value: Value, text: str) -> str:
        if value.dtype is torch.bfloat16:
            return f"bf16_of_float({text})"
        if value.dtype is torch.float16:
            return f"f16_of_float({text})"
        return text

    def fresh(self, stem: str = "t") -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    # the whole

    def print(self) -> KernelText:
        kernel = self.kernel
        style = kernel.style
        inner = Text()
        self.text = inner
        inner.depth = 1
        if style == "map":
            units = self._map()
        elif style == "scan":
            units = self._scan()
        elif style == "columns":
            if self._wants_partial_columns():
                return self._partial_columns()
            units = self._columns()
        elif self._wants_whole():
            return self._finish_whole()
        else:
            units = self._rows()
        head = Text()
        self._comment(head)
        with head.block("static void {name}_part(int64_t begin, int64_t end, void* const* ptr, const int64_t* sz)"):
            self._unpack(head, set(self.operands))
            head.lines.extend(inner.lines)
        self._entry(head, units)
        return KernelText("\n".join(head.lines) + "\n", self.operands)

    def _comment(self, text: Text) -> None:
        names = dict.fromkeys(node.op.name.removeprefix("aten.").removesuffix(".default") for node in self.kernel.nodes)
        places = dict.fromkeys(f"{node.loc.filename}:{node.loc.line}" for node in self.kernel.nodes
                               if node.loc is not None)
        text.add(f"// {', '.join(names)}")
        for place in list(places)[:8]:
            text.add(f"//   {place}")

    def _unpack(self, text: Text, used: set[Value], pointers: str = "ptr") -> None:
        """Typed pointers and sizes at the top of a function."""
        shared = set(self.in_place) | set(self.in_place.values())
        for k, value in enumerate(self.operands):
            if value not in used:
                continue
            name = self.pointers[value]
            written = name.startswith("out")
            kind = STORAGE[value.dtype]
            if isinstance(value, HostScalar):
                kind = "double" if value.kind is float else "int64_t"
            restrict = "" if value in shared else "__restrict "
            const = "" if written else "const "
            text.add(f"{const}{kind}* {restrict}{name} = ({const}{kind}*){pointers}[{k}];")
        for expr, name in self.sizes.items():
            text.add(f"const int64_t {name} = sz[{self.size_index(expr)}];  // {expr}")

    def _entry(self, text: Text, units: _Units) -> None:
        points = self.kernel.points
        condition, count = self._condition(), self.size(units.count)
        with text.block('extern "C" void {name}(void* const* ptr, const int64_t* sz)'):
            if self._many(points) == "false":
                text.add(f"{{name}}_part(0, {count}, ptr, sz);")
            else:
                if self._many(points) == "?" or not count.isdigit():
                    self._unpack(text, set())
                text.add(f"run_parts({count}, {units.align}, {condition}, {{name}}_part, ptr, sz);")

    def _work(self) -> int:
        """Work per point, in additions."""
        return max(1, sum(min(e.cost, 40) for e in self.kernel.roots()) // 8)

    def _least_points(self) -> int:
        return max(1, 2 * self.grain // self._work())

    def _many(self, points: Dim) -> str:
        if isinstance(points, int):
            return "true" if points >= self._least_points() else "false"
        return "?"

    # emission

    def emit(self, roots: list[Expr], names: dict[Expr, str]) -> None:
        """Declare what `roots` need and `names` lacks."""
        for expr in order(roots, names):
            name = self.fresh()
            kind = TYPES[expr.dtype]
            self.text.add(f"const {kind} {name} = {self.printer.value(expr, names)};")
            if expr.op == "check":
                limit = self.printer.ref(expr.args[1], names)
                self.text.add(f"bad |= (uint64_t){name} >= (uint64_t){limit};")
                checked = self.fresh()
                self.text.add(f"const int64_t {checked} = (uint64_t){name} >= (uint64_t){limit} ? 0 : {name};")
                name = checked
            names[expr] = name

    def store(self, value: Value, index: Index, expr: Expr, names: dict[Expr, str]) -> None:
        text = self.stored(value, self.printer.ref(expr, names))
        self.text.add(f"{self.pointers[value]}[{self.printer.index(index, names)}] = {text};")

    def simd(self) -> None:
        self.text.add("#pragma omp simd reduction(|:bad)" if self.checks else "#pragma omp simd")

    def begin_checks(self) -> None:
        if self.checks:
            self.text.add("int64_t bad = 0;")

    def end_checks(self) -> None:
        if self.checks:
            self.text.add("if (bad) index_error = 1;")

    @contextlib.contextmanager
    def loop(self, axis: Axis) -> Iterator[None]:
        with self.text.block(f"for (int64_t {axis.name} = 0; {axis.name} < {self.size(axis.size)}; ++{axis.name})"):
            yield

    @contextlib.contextmanager
    def loops(self, axes: list[Axis]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for axis in axes:
                stack.enter_context(self.loop(axis))
            yield

    # how work is shared out

    @contextlib.contextmanager
    def units(self, axes: list[Axis], blocks: tuple[Axis, Dim] | None = None) -> Iterator[_Units]:
        """The outer loops: `begin..end` counts points of as many leading axes as give enough units of work, the others
        are plain loops. With `blocks = (axis, width)`, blocks of that axis are the last unit axis: the body runs for
        `{axis}_begin <= axis < {axis}_end`."""
        hint = self.kernel.hint
        leading: list[Axis] = []
        count = 1
        for axis in axes:
            if count >= 64 or blocks is None and leading and hint(prod(tuple(a.size for a in axes))) < 64 * count:
                break
            leading.append(axis)
            count *= hint(axis.size)
        if blocks is not None:
            leading = list(axes)
        rest = axes[len(leading):]
        sizes: list[Dim] = [a.size for a in leading]
        names = [a.name for a in leading]
        if blocks is not None:
            axis, width = blocks
            n = axis.size
            static = isinstance(n, int) and isinstance(width, int)
            sizes.append((n + width - 1) // width if static else _ceil_div(n, width))
            names.append(f"{axis.name}_block")
        result = _Units(sizes, self)
        with contextlib.ExitStack() as stack:
            if not names:
                stack.enter_context(self.text.block("if (begin < end)"))
            elif len(names) == 1:
                first = names[0]
                stack.enter_context(self.text.block(f"for (int64_t {first} = begin; {first} < end; ++{first})"))
            else:
                stack.enter_context(self.text.block("for (int64_t unit = begin; unit < end; ++unit)"))
                left = "unit"
                for k in range(len(names) - 1, 0, -1):
                    self.text.add(f"const int64_t {names[k]} = {left} % {self.size(sizes[k])};")
                    if k > 1:
                        rest_name = self.fresh("u")
                        self.text.add(f"const int64_t {rest_name} = {left} / {self.size(sizes[k])};")
                        left = rest_name
                    else:
                        self.text.add(f"const int64_t {names[0]} = {left} / {self.size(sizes[1])};")
            if blocks is not None:
                axis, width = blocks
                w, n = self.size(width), self.size(axis.size)
                self.text.add(f"const int64_t {axis.name}_begin = {axis.name}_block * {w};")
                begin = f"{axis.name}_begin"
                self.text.add(f"const int64_t {axis.name}_end = {begin} + {w} < {n} ? {begin} + {w} : {n};")
            for axis in rest:
                stack.enter_context(self.loop(axis))
            yield result

    # styles

    def _map(self) -> _Units:
        kernel = self.kernel
        vector = kernel.vector
        names: dict[Expr, str] = {}
        self.begin_checks()
        if vector is None:
            with self.units([]) as units:
                self._bodies(names)
            self.end_checks()
            return units
        outer = [a for a in kernel.axes if a is not vector]
        if not outer:
            units = _Units([vector.size], self, 64)
            self._invariants(vector, names)
            self._vector_loop(vector, "begin", "end", names)
            self.end_checks()
            return units
        hint = kernel.hint
        rows = hint(prod(tuple(a.size for a in outer)))
        transposed = self._tile_axis()
        if transposed is not None:
            units = self._tiled(transposed)
            self.end_checks()
            return units
        blocks = (vector, 4096) if rows < 64 and hint(vector.size) >= 8192 else None
        with self.units(outer, blocks) as units:
            self._invariants(vector, names)
            first, last = (f"{vector.name}_begin", f"{vector.name}_end") if blocks else ("0", self.size(vector.size))
            self._vector_loop(vector, first, last, names)
        self.end_checks()
        return units

    def _invariants(self, vector: Axis, names: dict[Expr, str]) -> None:
        """What does not depend on the vector axis is computed in front of its loop."""
        wanted = [e for e in order(self.kernel.roots(), names)]
        uses: set[Expr] = set()
        for expr in wanted:
            if vector in expr.axes:
                uses.update(c for c in children(expr) if vector not in c.axes)
        uses.update(r for r in self.kernel.roots() if vector not in r.axes)
        self.emit([e for e in wanted if e in uses], names)

    def _vector_loop(self, axis: Axis, first: str, last: str, names: dict[Expr, str]) -> None:
        self.simd()
        with self.text.block(f"for (int64_t {axis.name} = {first}; {axis.name} < {last}; ++{axis.name})"):
            self._bodies(dict(names))

    def _bodies(self, names: dict[Expr, str]) -> None:
        self.emit(self.kernel.roots(), names)
        for store in self.kernel.stores:
            self.store(store.value, store.index, store.expr, names)

    def _is_across(self, expr: Expr, other: Axis) -> bool:
        """Whether a load is contiguous along `other` and strides over the vector axis."""
        kernel = self.kernel
        if expr.op != "load" or expr.args or kernel.vector is None:
            return False
        index = expr.attr[1]
        step = index.coefficient(kernel.vector)
        if step is None or type(step) is int and step in (0, 1) or kernel.hint(step) < 16:
            return False
        return index.coefficient(other) == 1 and not any(isinstance(atom, Expr) for atom, _ in index.terms)

    def _tile_axis(self) -> Axis | None:
        """An axis along which some operand is contiguous while the vector axis strides over it."""
        if self.kernel.vector is None or self.kernel.hint(self.kernel.vector.size) < 16:
            return None
        for expr in self.kernel.stage:
            for axis in self.kernel.parallel:
                if axis is not self.kernel.vector and self.kernel.hint(axis.size) >= 16 and self._is_across(expr, axis):
                    return axis
        return None

    def _tiled(self, other: Axis) -> _Units:
        """Square tiles: operands that lie across are read line by line into a small buffer first."""
        kernel = self.kernel
        vector = kernel.vector
        assert vector is not None
        outer = [a for a in kernel.axes if a is not vector and a is not other]
        across = [e for e in order(kernel.roots(), {}) if self._is_across(e, other)]
        width, o, v = TILE, other.name, vector.name
        buffers = {}
        for expr in across:
            buffers[expr] = self.fresh("tile")
            self.text.add(f"alignas(64) {TYPES[expr.dtype]} {buffers[expr]}[{width}][{width}];")
        with self.units(outer, (other, width)) as units:
            n = self.size(vector.size)
            with self.text.block(f"for (int64_t {v}_begin = 0; {v}_begin < {n}; {v}_begin += {width})"):
                self.text.add(f"const int64_t {v}_end = {v}_begin + {width} < {n} ? {v}_begin + {width} : {n};")
                for expr, buffer in buffers.items():
                    with self.text.block(f"for (int64_t {v} = {v}_begin; {v} < {v}_end; ++{v})"):
                        with self.text.block(f"for (int64_t {o} = {o}_begin; {o} < {o}_end; ++{o})"):
                            value = self.printer.value(expr, {})
                            self.text.add(f"{buffer}[{o} - {o}_begin][{v} - {v}_begin] = {value};")
                with self.text.block(f"for (int64_t {o} = {o}_begin; {o} < {o}_end; ++{o})"):
                    names = {e: f"{b}[{o} - {o}_begin][{v} - {v}_begin]" for e, b in buffers.items()}
                    self._invariants(vector, names)
                    self._vector_loop(vector, f"{v}_begin", f"{v}_end", names)
        return units

    # reductions along the vector axis

    def _lanes(self, length: Dim, dtypes: list[torch.dtype]) -> int:
        wide = any(d.itemsize == 8 for d in dtypes)
        if self.kernel.hint(length) < SHORT_ROW:
            return 8 if wide else 16
        return 32 if wide else 64

    def _accumulator(self, reduction: Reduce, length: Dim) -> torch.dtype:
        if reduction.kind in ("any", "all"):
            return torch.int32
        if reduction.kind in ("sum", "prod") and reduction.dtype is torch.float32 \
                and self.kernel.hint(length) >= LONG_ROW:
            return torch.float64
        return reduction.dtype

    def _stages(self) -> int:
        """How many stages have a loop."""
        stage = self.kernel.stage
        inner = [r.expr for r in self.kernel.reductions] + [s.expr for s in self.kernel.stores if self._is_inner(s)]
        return 1 + max((stage[e] for e in inner), default=0)

    def _is_inner(self, store: Store) -> bool:
        """Whether a store has one element per point, not one per result."""
        return self._depends(store.expr) or any(a.reduced for a in store.index.all_axes())

    def _depends(self, expr: Expr) -> bool:
        """Whether the value changes along reduced axes."""
        return any(a.reduced for a in expr.axes)

    def _rows(self) -> _Units:
        kernel = self.kernel
        self.begin_checks()
        caches = self._plan_row_caches()
        for _, name, dtype, length in caches.values():
            if isinstance(length, int) and length * dtype.itemsize <= 1 << 17:
                self.text.add(f"alignas(64) {TYPES[dtype]} {name}[{length}];")
            else:
                self.text.add(f"static thread_local Scratch {name}_memory;")
                self.text.add(f"{TYPES[dtype]}* const __restrict {name} = ({TYPES[dtype]}*){name}_memory.get("
                              f"{self.size(length)} * {dtype.itemsize});")
        with self.units(kernel.parallel) as units:
            outer: dict[Expr, str] = {}
            for stage in range(self._stages()):
                self._row_stage(stage, outer, caches)
            self._outer_stores(self._stages(), outer)
        self.end_checks()
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
        for reduction in kernel.reductions:
            used.setdefault(stage[reduction.expr], []).append(reduction.expr)
        for store in kernel.stores:
            if self._depends(store.expr):
                used.setdefault(stage[store.expr], []).append(store.expr)
        made: dict[Expr, int] = {}
        for number in sorted(used):
            stack = list(used[number])
            seen: set[Expr] = set()
            while stack:
                expr = stack.pop()
                if expr in seen or not self._depends(expr):
                    continue
                seen.add(expr)
                if expr in made and made[expr] < number and expr.cost >= 10 and expr.op not in ("load", "cast"):
                    found.setdefault(expr, (made[expr], f"row{len(found)}", expr.dtype, length))
                    continue
                stack.extend(children(expr))
            for expr in seen:
                made.setdefault(expr, number)
        return found

    def _outer_stores(self, stage: int, names: dict[Expr, str]) -> None:
        stores = [s for s in self.kernel.stores if not self._is_inner(s)]
        self.emit([s.expr for s in stores], names)
        for store in stores:
            self.store(store.value, store.index, store.expr, names)

    def _row_stage(self, stage: int, outer: dict[Expr, str],
                   caches: dict[Expr, tuple[int, str, torch.dtype, Dim]]) -> None:
        kernel = self.kernel
        reductions = [r for r in kernel.reductions if kernel.stage[r.expr] == stage]
        stores = [s for s in kernel.stores if kernel.stage[s.expr] == stage and self._is_inner(s)]
        if not reductions and not stores:
            return
        names: dict[Expr, str] = dict(outer)
        fresh_caches = []
        position = self._row_position()
        for expr, (made, name, _, _) in caches.items():
            if made < stage:
                names[expr] = f"{name}[{position}]"
            elif made == stage:
                fresh_caches.append((expr, name))
        roots = [r.expr for r in reductions] + [s.expr for s in stores]
        needed = order(roots, names)
        inner = {e for e in needed if self._depends(e)}
        hoisted = [e for e in needed if e not in inner
                   and (e in roots or any(e in children(i) for i in inner))]
        self.emit(hoisted, outer)
        for expr in hoisted:
            names[expr] = self.printer.ref(expr, outer)
        names.update({e: n for e, n in outer.items() if e not in names})

        length = prod(tuple(a.size for a in kernel.reduced))
        vector, others = kernel.reduced[-1], kernel.reduced[:-1]
        if not reductions:
            with self.loops(others):
                self.simd()
                with self.loop(vector):
                    inner_names = dict(names)
                    self.emit(roots, inner_names)
                    for store in stores:
                        self.store(store.value, store.index, store.expr, inner_names)
            return
        dtypes = [self._accumulator(r, length) for r in reductions]
        lanes = self._lanes(vector.size, dtypes)
        accumulators = []
        for reduction, dtype in zip(reductions, dtypes, strict=True):
            accumulators.append(self._declare_lanes(reduction, dtype, str(lanes), length))
        with self.loops(others):
            v, n = vector.name, self.size(vector.size)

            def body() -> None:
                inner_names = dict(names)
                self.emit(roots, inner_names)
                for expr, name in fresh_caches:
                    if expr in inner_names:
                        self.text.add(f"{name}[{position}] = {inner_names[expr]};")
                for reduction, accumulator in zip(reductions, accumulators, strict=True):
                    operand = self.printer.ref(reduction.expr, inner_names)
                    self._combine(reduction, accumulator, "l", operand, inner_names)
                for store in stores:
                    self.store(store.value, store.index, store.expr, inner_names)

            block = self.fresh(f"{v}_block")
            whole = isinstance(vector.size, int) and vector.size % lanes == 0
            short = isinstance(vector.size, int) and vector.size < lanes
            if not short:
                bound = n if whole else f"{n} - {lanes - 1}"
                self.text.add(f"int64_t {block} = 0;")
                with self.text.block(f"for (; {block} < {bound}; {block} += {lanes})"):
                    self.simd()
                    with self.text.block(f"for (int64_t l = 0; l < {lanes}; ++l)"):
                        self.text.add(f"const int64_t {v} = {block} + l;")
                        body()
            if not whole:
                start = "0" if short else f"{block}"
                self.simd()
                with self.text.block(f"for (int64_t l = 0; l < {n} - {start}; ++l)"):
                    self.text.add(f"const int64_t {v} = {start} + l;" if not short else f"const int64_t {v} = l;")
                    body()
        for reduction, accumulator in zip(reductions, accumulators, strict=True):
            outer[reduction.result] = self._fold(reduction, accumulator, lanes)

    def _declare_lanes(self, reduction: Reduce, dtype: torch.dtype, lanes: str, length: Dim) -> _Lanes:
        name = self.fresh("a")
        kind = TYPES[dtype]
        start = initial(reduction.kind, dtype)
        if reduction.kind.startswith("arg"):
            small = isinstance(length, int) and length < 2**31 - 1
            position = "int32_t" if small else "int64_t"
            none = "INT32_MAX" if small else "INT64_MAX"
            self.text.add(f"{kind} {name}[{lanes}];")
            self.text.add(f"{position} {name}p[{lanes}];")
            with self.text.block(f"for (int64_t l = 0; l < {lanes}; ++l)"):
                self.text.add(f"{name}[l] = {start};")
                self.text.add(f"{name}p[l] = {none};")
            return _Lanes(name, dtype, position, none)
        self.text.add(f"{kind} {name}[{lanes}];")
        self.text.add(f"for (int64_t l = 0; l < {lanes}; ++l) {name}[l] = {start};")
        return _Lanes(name, dtype)

    def _combine(self, reduction: Reduce, lanes: _Lanes, lane: str, value: str, names: dict[Expr, str]) -> None:
        a = f"{lanes.name}[{lane}]"
        kind = reduction.kind
        if kind.startswith("arg"):
            assert reduction.position is not None
            sign = ">" if kind == "argmax" else "<"
            better = self.fresh("b")
            self.text.add(f"const bool {better} = ({value} {sign} {a}) | (({value} != {value}) & ({a} == {a}));"
                          if reduction.dtype.is_floating_point else f"const bool {better} = {value} {sign} {a};")
            p = f"{lanes.name}p[{lane}]"
            position = self.printer.index(reduction.position, names)
            self.text.add(f"{a} = {better} ? {value} : {a};")
            self.text.add(f"{p} = {better} ? ({lanes.position})({position}) : {p};")
        else:
            self.text.add(combine_text(kind, a, value))

    def _fold(self, reduction: Reduce, lanes: _Lanes, count: int) -> str:
        name = self.fresh("s")
        result = TYPES[reduction.result.dtype]
        kind = reduction.kind
        if kind.startswith("arg"):
            self.text.add(f"const {result} {name} = fold_{kind}({lanes.name}, {lanes.name}p, {count}, "
                          f"({lanes.position}){lanes.none});")
        else:
            self.text.add(f"const {result} {name} = ({result})fold_{kind}<{count}>({lanes.name});")
        return name

    # reductions across the vector axis

    def _columns(self) -> _Units:
        kernel = self.kernel
        vector = kernel.vector
        assert vector is not None
        rows = prod(tuple(a.size for a in kernel.reduced))
        width = self._column_width(rows)
        if isinstance(vector.size, int):
            width = min(width, (vector.size + 15) // 16 * 16)
        others = [a for a in kernel.parallel if a is not vector]
        self.begin_checks()
        with self.units(others, (vector, width)) as units:
            self._lane_count(vector, width, declared=True)
            arrays: dict[Expr, str] = {}
            for stage in range(self._stages()):
                self._column_stage(stage, arrays, width)
            self._column_outer_stores(arrays)
        self.end_checks()
        return units

    def _column_width(self, rows: Dim) -> int:
        hint = self.kernel.hint
        vector = self.kernel.vector
        assert vector is not None
        others = hint(prod(tuple(a.size for a in self.kernel.parallel if a is not vector)))
        if self._stages() > 1:
            accessed = (*self.kernel.reads, *self.kernel.writes)
            bytes_per_column = hint(rows) * max(1, sum(v.dtype.itemsize for v in accessed))
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
        stores = [s for s in kernel.stores if kernel.stage[s.expr] == stage and self._is_inner(s)]
        if not reductions and not stores:
            return
        roots = [r.expr for r in reductions] + [s.expr for s in stores]
        # values per column that this stage needs and that are costly: computed once per column
        needed = order(roots, {e: "" for e in arrays})
        inner = {e for e in needed if self._depends(e)}
        once = [e for e in needed if e not in inner and e.cost >= 4
                and (e in roots or any(e in children(i) for i in inner))]
        if once:
            for expr in once:
                name = self.fresh("c")
                self.text.add(f"{TYPES[expr.dtype]} {name}[{width}];")
                arrays[expr] = name
            self.simd()
            with self._lane_loop(vector):
                names = {e: f"{n}[l]" for e, n in arrays.items() if e not in once}
                self.emit(once, names)
                for expr in once:
                    self.text.add(f"{arrays[expr]}[l] = {names[expr]};")
        names = {e: f"{n}[l]" for e, n in arrays.items()}
        rows = prod(tuple(a.size for a in kernel.reduced))
        accumulators = [self._declare_lanes(r, self._column_accumulator(r), str(width), rows) for r in reductions]
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
            with self._lane_loop(vector):
                inner_names = dict(names)
                self.emit(roots, inner_names)
                for reduction, lanes in zip(reductions, accumulators, strict=True):
                    self._combine(reduction, lanes, "l", self.printer.ref(reduction.expr, inner_names), inner_names)
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
                    end, row = f"{block}_end", last.name
                    self.text.add(f"const int64_t {end} = {block} + {SUM_ROWS} < {n} ? {block} + {SUM_ROWS} : {n};")
                    with self.text.block(f"for (int64_t {row} = {block}; {row} < {end}; ++{row})"):
                        body()
                    flush()
        for reduction, lanes in zip(reductions, accumulators, strict=True):
            if reduction.kind.startswith("arg"):
                arrays[reduction.result] = f"{lanes.name}p"
                place = f"{lanes.name}p[l]"
                self.text.add(f"for (int64_t l = 0; l < lanes; ++l) if ({place} == {lanes.none}) {place} = 0;")
            else:
                arrays[reduction.result] = totals.get(reduction, lanes.name)

    def _column_accumulator(self, reduction: Reduce) -> torch.dtype:
        return torch.int32 if reduction.kind in ("any", "all") else reduction.dtype

    def _sums_in_blocks(self, reduction: Reduce, rows: Dim) -> bool:
        return reduction.kind == "sum" and reduction.dtype.is_floating_point and self.kernel.hint(rows) > SUM_ROWS

    @contextlib.contextmanager
    def _lane_loop(self, vector: Axis) -> Iterator[None]:
        with self.text.block("for (int64_t l = 0; l < lanes; ++l)"):
            self.text.add(f"const int64_t {vector.name} = {vector.name}_begin + l;")
            yield

    def _column_outer_stores(self, arrays: dict[Expr, str]) -> None:
        kernel = self.kernel
        stores = [s for s in kernel.stores if not self._is_inner(s)]
        if not stores:
            return
        assert kernel.vector is not None
        self.simd()
        with self._lane_loop(kernel.vector):
            names: dict[Expr, str] = {}
            for expr, name in arrays.items():
                kind = TYPES[expr.dtype]
                converted = expr.dtype is torch.bool or expr.dtype is torch.int64
                names[expr] = f"({kind}){name}[l]" if converted else f"{name}[l]"
            self.emit([s.expr for s in stores], names)
            for store in stores:
                self.store(store.value, store.index, store.expr, names)

    # many rows: chunks of rows are reduced to partial rows, in parallel; then these are combined in order

    def _wants_partial_columns(self) -> bool:
        kernel = self.kernel
        if self._stages() > 1 or any(map(self._is_inner, kernel.stores)):
            return False
        if any(r.kind.startswith("arg") for r in kernel.reductions):
            return False
        return kernel.hint(kernel.reduced[0].size) >= 2 * ROW_CHUNKS and kernel.hint(kernel.points) >= 4 * CHUNK

    def _partial_columns(self) -> KernelText:
        kernel = self.kernel
        vector = kernel.vector
        assert vector is not None
        first, inner_axes = kernel.reduced[0], kernel.reduced[1:]
        others = [a for a in kernel.parallel if a is not vector]
        other_count = prod(tuple(a.size for a in others))
        chunk = _ceil_div(first.size, ROW_CHUNKS)
        chunks = _ceil_div(first.size, chunk) if isinstance(chunk, int) else ROW_CHUNKS
        dtypes = [self._column_accumulator(r) for r in kernel.reductions]
        v, f = vector.name, first.name
        n, m = self.size(vector.size), self.size(first.size)
        width = min(2048, (vector.size + 15) // 16 * 16) if isinstance(vector.size, int) else 2048
        pointer = len(self.operands)
        row_bytes = sum(d.itemsize for d in dtypes)

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
                lanes = [self._declare_lanes(r, d, str(width), 0)
                         for r, d in zip(kernel.reductions, dtypes, strict=True)]
                with self.text.block(f"for (int64_t {f} = {f}_first; {f} < {f}_last; ++{f})"):
                    with self.loops(inner_axes):
                        self.simd()
                        with self._lane_loop(vector):
                            names: dict[Expr, str] = {}
                            self.emit([r.expr for r in kernel.reductions], names)
                            for reduction, lane in zip(kernel.reductions, lanes, strict=True):
                                self._combine(reduction, lane, "l", self.printer.ref(reduction.expr, names), names)
                for lane, place in zip(lanes, offsets(), strict=True):
                    kind = TYPES[lane.dtype]
                    self.text.add(f"{kind}* const {lane.name}_row = "
                                  f"({kind}*)({place}) + ({row_text()}) * {n} + {v}_begin;")
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
                lane = self._declare_lanes(reduction, wide, "256", 0)
                kind = TYPES[dtype]
                with self.text.block(f"for (int64_t {f}_chunk = 0; {f}_chunk < {self.size(chunks)}; ++{f}_chunk)"):
                    self.text.add(f"const {kind}* const row = "
                                  f"(const {kind}*)({place}) + ({row_text()}) * {n} + {v}_begin;")
                    self.text.add("#pragma omp simd")
                    combined = combine_text(reduction.kind, lane.name + "[l]", "row[l]")
                    self.text.add(f"for (int64_t l = 0; l < lanes; ++l) {combined}")
                arrays[reduction.result] = lane.name
            self._column_outer_stores(arrays)
        combine_lines = self.text.lines

        head = Text()
        self._comment(head)
        arguments = "int64_t begin, int64_t end, void* const* ptr, const int64_t* sz"
        for suffix, used, lines in (("part", set(kernel.reads), reduce_lines),
                                    ("combine", set(self.operands), combine_lines)):
            with head.block(f"static void {{name}}_{suffix}({arguments})"):
                self._unpack(head, used)
                head.lines.extend(lines)
        condition, unit_count, column_count = self._condition(), self.size(units.count), self.size(combine_units.count)
        with head.block('extern "C" void {name}(void* const* args, const int64_t* sz)'):
            self._unpack(head, set())
            self._extend_pointers(head, f"{rows} * {n} * {row_bytes}")
            head.add(f"run_parts({unit_count}, 1, {condition}, {{name}}_part, ptr, sz);")
            head.add(f"run_parts({column_count}, 1, {n} * {rows} >= {self._least_points()}, "
                     "{name}_combine, ptr, sz);")
        return KernelText("\n".join(head.lines) + "\n", self.operands)

    def _lane_count(self, vector: Axis, width: int, declared: bool = False) -> None:
        """Declare `lanes`, the number of columns from `{vector}_begin` on."""
        v, n = vector.name, self.size(vector.size)
        if isinstance(vector.size, int) and vector.size % width == 0:
            self.text.add(f"const int64_t lanes = {width};")
        elif declared:
            self.text.add(f"const int64_t lanes = {v}_end - {v}_begin;")
        else:
            self.text.add(f"const int64_t lanes = {v}_begin + {width} < {n} ? {width} : {n} - {v}_begin;")

    def _extend_pointers(self, text: Text, bytes_text: str) -> None:
        """`ptr` with the scratch memory for partial results behind the operands."""
        count = len(self.operands)
        text.add(f"void* ptr[{count + 1}];")
        text.add(f"for (int k = 0; k < {count}; ++k) ptr[k] = args[k];")
        text.add("static thread_local Scratch memory;")
        text.add(f"ptr[{count}] = memory.get({bytes_text});")

    def _condition(self) -> str:
        """Whether there is enough work for several threads."""
        many = self._many(self.kernel.points)
        return many if many != "?" else f"{self.size(self.kernel.points)} >= {self._least_points()}"

    # one large reduction of everything

    def _wants_whole(self) -> bool:
        kernel = self.kernel
        if kernel.parallel or self._stages() > 1 or not kernel.reduced or any(map(self._is_inner, kernel.stores)):
            return False
        return kernel.hint(kernel.points) >= 4 * CHUNK

    def _finish_whole(self) -> KernelText:
        """Chunks of fixed length are reduced to partial results, in parallel; then these are combined in order."""
        kernel = self.kernel
        first, others = kernel.reduced[0], kernel.reduced[1:]
        per_row = kernel.hint(prod(tuple(a.size for a in others)))
        chunk = max(1, CHUNK // per_row) if others else CHUNK
        count = _ceil_div(first.size, chunk)
        count_text_inner = self.size(count)
        reductions = kernel.reductions
        vector = kernel.reduced[-1]
        names: dict[Expr, str] = {}
        self.begin_checks()
        self.text.add("char* const partial = (char*)ptr[{partial}];")
        with self.text.block("for (int64_t chunk = begin; chunk < end; ++chunk)"):
            n = self.size(first.size)
            f = first.name
            self.text.add(f"const int64_t {f}_first = chunk * {chunk};")
            self.text.add(f"const int64_t {f}_last = {f}_first + {chunk} < {n} ? {f}_first + {chunk} : {n};")
            lanes = self._lanes(CHUNK, [r.dtype for r in reductions])
            accumulators = []
            for reduction in reductions:
                dtype = torch.int32 if reduction.kind in ("any", "all") else reduction.dtype
                accumulators.append(self._declare_lanes(reduction, dtype, str(lanes), kernel.points
                                                        if isinstance(kernel.points, int) else 2**40))

            def body() -> None:
                inner_names = dict(names)
                self.emit([r.expr for r in reductions], inner_names)
                for reduction, accumulator in zip(reductions, accumulators, strict=True):
                    operand = self.printer.ref(reduction.expr, inner_names)
                    self._combine(reduction, accumulator, "l", operand, inner_names)

            with contextlib.ExitStack() as stack:
                if others:
                    stack.enter_context(self.text.block(f"for (int64_t {f} = {f}_first; {f} < {f}_last; ++{f})"))
                    stack.enter_context(self.loops(others[:-1]))
                    start, stop = "0", self.size(vector.size)
                else:
                    start, stop = f"{f}_first", f"{f}_last"
                v = vector.name
                self.text.add(f"int64_t {v}_block = {start};")
                with self.text.block(f"for (; {v}_block + {lanes} <= {stop}; {v}_block += {lanes})"):
                    self.simd()
                    with self.text.block(f"for (int64_t l = 0; l < {lanes}; ++l)"):
                        self.text.add(f"const int64_t {v} = {v}_block + l;")
                        body()
                self.simd()
                with self.text.block(f"for (int64_t l = 0; l < {stop} - {v}_block; ++l)"):
                    self.text.add(f"const int64_t {v} = {v}_block + l;")
                    body()
            kinds = []
            for k, (reduction, accumulator) in enumerate(zip(reductions, accumulators, strict=True)):
                folded = self._fold(reduction, accumulator, lanes)
                kind = self._partial_type(reduction)
                kinds.append(kind)
                offset = f"partial + {{offset{k}}}"
                if reduction.kind.startswith("arg"):
                    ctype = TYPES[reduction.dtype]
                    self.text.add(f"(({ctype}*)({offset}))[2 * chunk * 8 / sizeof({ctype})] = {accumulator.name}[0];")
                    self.text.add(f"((int64_t*)({offset}))[2 * chunk + 1] = {folded};")
                else:
                    self.text.add(f"(({kind}*)({offset}))[chunk] = {folded};")
        self.end_checks()
        inner = self.text
        head = Text()
        self._comment(head)
        tail = Text(depth=1)
        self.text = tail
        outer: dict[Expr, str] = {}
        total = "count"
        bytes_each = 0
        offsets = {}
        for k, reduction in enumerate(reductions):
            offsets[k] = f"{bytes_each} * count_" if bytes_each else "0"
            bytes_each += 16 if reduction.kind.startswith("arg") else 8
        for k, (reduction, kind) in enumerate(zip(reductions, kinds, strict=True)):
            place = f"partial + {bytes_of(offsets[k], total)}"
            outer[reduction.result] = self._combine_partials(reduction, kind, place, total)
        self.emit([s.expr for s in kernel.stores], outer)
        for store in kernel.stores:
            self.store(store.value, store.index, store.expr, outer)
        body_lines = inner.lines
        pointer = len(self.operands)
        with head.block("static void {name}_part(int64_t begin, int64_t end, void* const* ptr, const int64_t* sz)"):
            self._unpack(head, set(kernel.reads))
            head.add(f"const int64_t count = {count_text_inner};")
            for line in body_lines:
                line = line.replace("{partial}", str(pointer))
                for k in offsets:
                    line = line.replace(f"{{offset{k}}}", bytes_of(offsets[k], "count"))
                head.lines.append(line)
        condition = self._condition()
        with head.block('extern "C" void {name}(void* const* args, const int64_t* sz)'):
            self._unpack(head, set(self.operands), "args")
            head.add(f"const int64_t count = {count_text_inner};")
            self._extend_pointers(head, f"{bytes_each} * count")
            head.add(f"char* const partial = (char*)ptr[{pointer}];")
            head.add(f"run_parts(count, 1, {condition}, {{name}}_part, ptr, sz);")
            head.lines.extend(tail.lines)
        return KernelText("\n".join(head.lines) + "\n", self.operands)

    def _partial_type(self, reduction: Reduce) -> str:
        if reduction.kind in ("sum", "prod") and reduction.dtype is torch.float32:
            return "double"
        return TYPES[carrier(reduction.result.dtype)] if reduction.kind not in ("any", "all") else "int"

    def _combine_partials(self, reduction: Reduce, kind: str, place: str, count: str) -> str:
        name = self.fresh("s")
        result = TYPES[reduction.result.dtype]
        if reduction.kind.startswith("arg"):
            sign = ">" if reduction.kind == "argmax" else "<"
            value = TYPES[reduction.dtype]
            self.text.add(f"{value} {name}v = *({value}*)({place});")
            self.text.add(f"int64_t {name} = ((int64_t*)({place}))[1];")
            with self.text.block(f"for (int64_t k = 1; k < {count}; ++k)"):
                self.text.add(f"const {value} v = *({value}*)({place} + 16 * k);")
                self.text.add(f"if ((v {sign} {name}v) | ((v != v) & ({name}v == {name}v))) {{ {name}v = v; "
                              f"{name} = ((int64_t*)({place}))[2 * k + 1]; }}")
            return name
        dtype = {"double": torch.float64, "int": torch.int32}.get(kind, reduction.dtype)
        self.text.add(f"{kind} {name}a = {initial(reduction.kind, dtype)};")
        combine = combine_text(reduction.kind, f"{name}a", f"(({kind}*)({place}))[k]")
        self.text.add(f"for (int64_t k = 0; k < {count}; ++k) {combine}")
        self.text.add(f"const {result} {name} = ({result}){name}a;")
        return name

    # scans

    def _scan(self) -> _Units:
        """A running value per point of the parallel axes; neighbouring ones side by side where memory allows."""
        kernel = self.kernel
        reduction, store = kernel.reductions[0], kernel.stores[0]
        along = kernel.reduced[0]
        dtype = torch.float64 if reduction.dtype.is_floating_point else reduction.dtype
        result = TYPES[reduction.result.dtype]
        self.begin_checks()
        vector = kernel.vector
        others = [a for a in kernel.parallel if a is not vector]
        if vector is None:
            with self.units(others) as units:
                name = self.fresh("a")
                self.text.add(f"{TYPES[dtype]} {name} = {initial(reduction.kind, dtype)};")
                with self.loop(along):
                    names: dict[Expr, str] = {}
                    self.emit([reduction.expr], names)
                    self.text.add(combine_text(reduction.kind, name, self.printer.ref(reduction.expr, names)))
                    names[reduction.result] = f"({result}){name}"
                    self.store(store.value, store.index, store.expr, names)
        else:
            width = 256
            with self.units(others, (vector, width)) as units:
                self.text.add(f"const int64_t lanes = {vector.name}_end - {vector.name}_begin;")
                lanes = self._declare_lanes(reduction, dtype, str(width), 0)
                with self.loop(along):
                    self.simd()
                    with self._lane_loop(vector):
                        names = {}
                        self.emit([reduction.expr], names)
                        self.text.add(combine_text(reduction.kind, f"{lanes.name}[l]",
                                                   self.printer.ref(reduction.expr, names)))
                        names[reduction.result] = f"({result}){lanes.name}[l]"
                        self.store(store.value, store.index, store.expr, names)
        self.end_checks()
        return units


@dataclass(slots=True)
class _Lanes:
    """An array of running values, and for arg-reductions that of their positions (named with a `p` behind)."""

    name: str
    dtype: torch.dtype
    position: str = ""
    none: str = ""


class _Units:
    """How many units of work there are: the product of `sizes`; slices start at multiples of `align`."""

    def __init__(self, sizes: list[Dim], printer: KernelPrinter, align: int = 1) -> None:
        self.sizes = sizes
        self.align = align
        self.count = prod(tuple(sizes))

    def text(self, names: dict[Any, str]) -> str:
        if isinstance(self.count, int):
            return str(self.count)
        return names[self.count]


def _size_symbols(size: Dim) -> set[Any]:
    return set() if isinstance(size, int) else {size}


def _ceil_div(size: Dim, width: Dim) -> Dim:
    from ...ir.sizes_expr import floordiv

    return floordiv(size + width - 1, width)


def bytes_of(offset: str, count: str) -> str:
    return offset.replace("count_", count)


def initial(kind: str, dtype: torch.dtype) -> str:
    """The neutral element."""
    if kind in ("sum", "any"):
        return "0"
    if kind in ("prod", "all"):
        return "1"
    lowest = kind in ("max", "argmax")
    if dtype is torch.bool:
        return "false" if lowest else "true"
    if dtype.is_floating_point:
        return f"{'-' if lowest else ''}__builtin_inf{'f' if dtype is torch.float32 else ''}()"
    limits = torch.iinfo(dtype)
    return literal(limits.min if lowest else limits.max, torch.int64)


def combine_text(kind: str, a: str, value: str) -> str:
    """The statement that takes `value` into the running value `a`."""
    if kind == "sum":
        return f"{a} += {value};"
    if kind == "prod":
        return f"{a} *= {value};"
    if kind == "any":
        return f"{a} |= {value};"
    if kind == "all":
        return f"{a} &= {value};"
    return f"{a} = pick_{kind}({a}, {value});"


__all__ = ["KernelPrinter", "KernelText"]
