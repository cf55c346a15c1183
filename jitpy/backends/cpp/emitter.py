"""The parts that all kernels have in common: names, memory accesses, order of computations, sharing among threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ...ir.algebra import sympy
from ...ir.sizes_expr import floordiv
from ...ir.spec import Dim, prod
from ...schedule.expr import Expr, order
from ...schedule.index import Axis, Index
from ...schedule.loops import Kernel, Store
from ...schedule.values import HostScalar, Value
from ..kernel_writer import KernelWriter
from ..naming import op_names, places
from .halves import BLOCK, SMALL, UNIT, loads_in_order, narrowing, stores_in_order, unrounded, widening
from .prelude import STORAGE, TYPES
from .printer import ExprPrinter, literal


@dataclass(slots=True)
class Text:
    """Lines with indentation."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def add(self, line: str) -> None:
        self.lines.append("  " * self.depth + line if line and not line.startswith("#") else line)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.add(head + " {" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.add("}")


@dataclass(slots=True)
class KernelText:
    """A printed kernel: `body` defines `void {name}(void* const* ptr, const int64_t* sz)`, its name left open."""

    body: str
    operands: list[Value]


class Units:
    """How many units of work there are: the product of `sizes`; slices start at multiples of `align`."""

    def __init__(self, sizes: list[Dim], align: int = 1) -> None:
        self.align = align
        self.count = prod(tuple(sizes))


def ceil_div(size: Dim, width: Dim) -> Dim:
    """Into how many pieces of `width` the size falls."""
    return floordiv(size + width - 1, width)


class KernelPrinter(KernelWriter):
    """Prints one kernel.

    size_index   the number of a symbolic size in the size table
    grain        work per thread below which one thread does everything
    in_place     operands written that share their memory with one that is read, by identity of elements
    """

    def __init__(
        self,
        kernel: Kernel,
        size_index: Callable[[sympy.Expr], int],
        grain: int,
        in_place: dict[Value, Value] | None = None,
    ) -> None:
        super().__init__(kernel)
        self.size_index = size_index
        self.grain = grain
        self.in_place = in_place or {}
        self.text = Text()
        self.operands: list[Value] = [*kernel.reads, *kernel.writes]
        self.printer = ExprPrinter(self.size, self.load, kernel.vector)
        self.counter = 0
        #: where the loop in progress keeps what is converted behind it
        self.held: dict[tuple[Value, Index], str] = {}
        self.checks = any(e.op == "check" for e in kernel.stage)
        for k, axis in enumerate(kernel.parallel):
            axis.name = f"i{k}"
        for k, axis in enumerate(kernel.reduced):
            axis.name = f"r{k}"

    # small texts

    def number(self, number: int) -> str:
        return str(number) if -(2**31) < number < 2**31 else literal(number, torch.int64)

    def load(self, value: Value, index: str) -> str:
        return self.loaded(value, f"{self.parameters[value]}[{index}]")

    def loaded(self, value: Value, text: str) -> str:
        """An element of `value`, given how memory holds it."""
        if value.dtype in SMALL:
            return f"float_of_{SMALL[value.dtype]}({text})"
        return f"({text} != 0)" if value.dtype is torch.bool else text

    def stored(self, value: Value, text: str) -> str:
        if value.dtype in SMALL:
            return f"{SMALL[value.dtype]}_of_float({text})"
        return f"(uint8_t)({text} ? 1 : 0)" if value.dtype is torch.bool else text

    def fresh(self, stem: str = "t") -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def print(self) -> KernelText:
        """The kernel's text. Subclasses print the loops into `self.text`, in `loops_text`."""
        self.text = Text(depth=1)
        self.begin_checks()
        units = self.print_loops()
        self.end_checks()
        lines = self.text.lines
        count, condition = self.size(units.count), self.condition()
        head = Text()
        self.comment(head)
        self.function(head, "part", set(self.operands), lines)
        with head.block('extern "C" void {name}(void* const* ptr, const int64_t* sz)'):
            self.prepare(head)
            if condition == "false":
                head.add(f"{{name}}_part(0, {count}, ptr, sz);")
            else:
                if not count.isdigit() or condition != "true":
                    self.unpack(head, set())
                head.add(f"run_parts({count}, {units.align}, {condition}, {{name}}_part, ptr, sz);")
        return self.finished(head)

    def prepare(self, text: Text) -> None:
        """Print what is done in front of all units."""

    def print_loops(self) -> Units:
        """Print the loops over units `begin..end`, and say how many units there are."""
        raise NotImplementedError

    def function(self, text: Text, suffix: str, used: set[Value], lines: list[str]) -> None:
        """A function that does units `begin..end` of the work."""
        with text.block(
            f"static void {{name}}_{suffix}(int64_t begin, int64_t end, void* const* ptr, const int64_t* sz)"
        ):
            self.unpack(text, used)
            text.lines.extend(lines)

    def finished(self, text: Text) -> KernelText:
        return KernelText("\n".join(text.lines) + "\n", self.operands)

    def comment(self, text: Text) -> None:
        text.add(f"// {', '.join(op_names(self.kernel.nodes))}")
        for filename, line in places(self.kernel.nodes)[:8]:
            text.add(f"//   {filename}:{line}")

    def unpack(self, text: Text, used: set[Value], pointers: str = "ptr") -> None:
        """Typed pointers and sizes at the top of a function."""
        shared = set(self.in_place) | set(self.in_place.values())
        for k, value in enumerate(self.operands):
            if value not in used:
                continue
            name = self.parameters[value]
            written = name.startswith("out")
            kind = STORAGE[value.dtype]
            if isinstance(value, HostScalar):
                kind = "double" if value.kind is float else "int64_t"
            restrict = "" if value in shared else "__restrict "
            const = "" if written else "const "
            text.add(f"{const}{kind}* {restrict}{name} = ({const}{kind}*){pointers}[{k}];")
        for expr, name in self.sizes.items():
            text.add(f"const int64_t {name} = sz[{self.size_index(expr)}];  // {expr}")

    def work(self) -> int:
        """Work per point, in additions."""
        return max(1, sum(min(e.cost, 40) for e in self.kernel.roots()) // 8)

    def least_points(self) -> int:
        return max(1, 2 * self.grain // self.work())

    def condition(self) -> str:
        """Whether there is enough work for several threads."""
        points = self.kernel.points
        if isinstance(points, int):
            return "true" if points >= self.least_points() else "false"
        return f"{self.size(points)} >= {self.least_points()}"

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
        source = unrounded(expr, value.dtype)
        text = self.printer.ref(source if source in names else expr, names)
        held = self.held.get((value, index))
        if held is not None:
            self.text.add(f"{held} = {text};")
        else:
            self.text.add(f"{self.parameters[value]}[{self.printer.index(index, names)}] = {self.stored(value, text)};")

    @contextlib.contextmanager
    def lanes(
        self,
        axis: Axis,
        lane: str,
        place: Callable[[str], Sequence[str]],
        count: str,
        width: int,
        roots: list[Expr],
        stores: Sequence[Store],
        names: dict[Expr, str],
    ) -> Iterator[dict[Expr, str]]:
        """A loop over `count` lanes, at most `width`, in which `roots` are computed and `stores` done; it yields the
        names that its body begins with.

        `place` gives the declarations of a lane's point of `axis`. 16-bit floats that lie in order along it are
        converted as a block in front of the loop and behind it.
        """
        by_blocks = width % UNIT == 0 and not (count.isdigit() and int(count) < UNIT)
        loads = {e: self.fresh("w") for e in loads_in_order(order(roots, names), axis, names) if by_blocks}
        held = {s: self.fresh("h") for s in stores_in_order(stores, axis, names) if by_blocks}
        for name in (*loads.values(), *held.values()):
            self.text.add(f"alignas(64) float {name}[{width}];")
        whole = count.isdigit() and int(count) % UNIT == 0

        def convert(calls: list[str]) -> None:
            if calls:
                with self.text.block(""):
                    for line in place("0"):
                        self.text.add(line)
                    for call in calls:
                        self.text.add(call)

        def call(function: str, source: str, target: str) -> str:
            return f"{function}<{count}>({source}, {target});" if whole else f"{function}({source}, {target}, {count});"

        def memory(value: Value, index: Index) -> str:
            return f"{self.parameters[value]} + {self.printer.index(index, names)}"

        convert([call(widening(e.attr[0].dtype), memory(*e.attr), name) for e, name in loads.items()])
        self.simd()
        with self.text.block(f"for (int64_t {lane} = 0; {lane} < {count}; ++{lane})"):
            for line in place(lane):
                self.text.add(line)
            inner = dict(names)
            for expr, name in loads.items():
                inner[expr] = self.fresh()
                self.text.add(f"const float {inner[expr]} = {name}[{lane}];")
            self.held = {(s.value, s.index): f"{name}[{lane}]" for s, name in held.items()}
            yield inner
            self.held = {}
        convert([call(narrowing(s.value.dtype, s.expr), name, memory(s.value, s.index)) for s, name in held.items()])

    def in_lanes(
        self,
        axis: Axis,
        lane: str,
        bounds: tuple[str, str],
        place: Callable[[str], Sequence[str]],
        roots: list[Expr],
        stores: Sequence[Store],
        names: dict[Expr, str],
        body: Callable[[dict[Expr, str]], None],
    ) -> None:
        """A loop over `lane` within `bounds`, by blocks where 16-bit floats lie in order; the rest is as in `lanes`."""
        first, last = bounds
        by_blocks = self.kernel.hint(axis.size) >= BLOCK and (
            loads_in_order(order(roots, names), axis, names) or stores_in_order(stores, axis, names))
        if not by_blocks:
            self.simd()
            with self.text.block(f"for (int64_t {lane} = {first}; {lane} < {last}; ++{lane})"):
                for line in place(lane):
                    self.text.add(line)
                body(dict(names))
            return
        block = f"{lane}_block"

        def in_block(k: str) -> list[str]:
            here = f"{block} + {k}"
            return [f"const int64_t {lane} = {here};", *place(lane)]

        with self.text.block(""):
            self.text.add(f"int64_t {block} = {first};")
            with self.text.block(f"for (; {block} + {BLOCK} <= {last}; {block} += {BLOCK})"):
                with self.lanes(axis, "k", in_block, str(BLOCK), BLOCK, roots, stores, names) as inner:
                    body(inner)
            if first.isdigit() and last.isdigit():
                left = (int(last) - int(first)) % BLOCK
                count = str(left) if left else ""
            else:
                count = f"{last} - {block}"
            if count:
                with self.lanes(axis, "k", in_block, count, BLOCK, roots, stores, names) as inner:
                    body(inner)

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

    def extend_pointers(self, text: Text, bytes_text: str) -> None:
        """`ptr` with the scratch memory for partial results behind the operands."""
        count = len(self.operands)
        text.add(f"void* ptr[{count + 1}];")
        text.add(f"for (int k = 0; k < {count}; ++k) ptr[k] = args[k];")
        text.add("static thread_local Scratch memory;")
        text.add(f"ptr[{count}] = memory.get({bytes_text});")

    # how work is shared out

    def unravel(self, unit: str, names: list[str], sizes: list[Dim]) -> None:
        """Declare the indices `names` of a point from its number."""
        left = unit
        for k in range(len(names) - 1, 0, -1):
            self.text.add(f"const int64_t {names[k]} = {left} % {self.size(sizes[k])};")
            if k > 1:
                rest_name = self.fresh("u")
                self.text.add(f"const int64_t {rest_name} = {left} / {self.size(sizes[k])};")
                left = rest_name
            else:
                left = f"{left} / {self.size(sizes[1])}"
        self.text.add(f"const int64_t {names[0]} = {left};")

    @contextlib.contextmanager
    def units(self, axes: list[Axis], blocks: tuple[Axis, Dim] | None = None) -> Iterator[Units]:
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
        rest = axes[len(leading) :]
        sizes: list[Dim] = [a.size for a in leading]
        names = [a.name for a in leading]
        if blocks is not None:
            axis, width = blocks
            sizes.append(ceil_div(axis.size, width))
            names.append(f"{axis.name}_block")
        result = Units(sizes)
        with contextlib.ExitStack() as stack:
            if not names:
                stack.enter_context(self.text.block("if (begin < end)"))
            elif len(names) == 1:
                stack.enter_context(
                    self.text.block(f"for (int64_t {names[0]} = begin; {names[0]} < end; ++{names[0]})")
                )
            else:
                stack.enter_context(self.text.block("for (int64_t unit = begin; unit < end; ++unit)"))
                self.unravel("unit", names, sizes)
            if blocks is not None:
                axis, width = blocks
                w, n = self.size(width), self.size(axis.size)
                self.text.add(f"const int64_t {axis.name}_begin = {axis.name}_block * {w};")
                self.text.add(
                    f"const int64_t {axis.name}_end = {axis.name}_begin + {w} < {n} ? {axis.name}_begin + {w} : {n};"
                )
            for axis in rest:
                stack.enter_context(self.loop(axis))
            yield result
