"""The parts that all kernels have in common: parameters, tiles, memory accesses, the order of computations."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ...ir.algebra import sympy
from ...ir.sizes_expr import is_multiple
from ...ir.spec import Dim, prod
from ...schedule.expr import FLOAT8, Expr, children, order, walk
from ...schedule.index import Axis, Index, Remainder
from ...schedule.loops import Kernel
from ...schedule.values import HostScalar, Value
from ..kernel_writer import KernelWriter, sum_of
from ..naming import op_names, places
from .helpers import module
from .names import stem_for
from .printer import SIGNATURE, TYPES, ExprPrinter, closed, literal, rounded, typed
from .tiles import Launch, Tile, place_tiles

#: Longest text that is put into its only reader instead of getting a name.
INLINE = 48
#: Bytes of an operand that the second level cache does not hold for the next kernel.
STREAMED = 1 << 25
#: The divisor in Triton's sense of divisible.
DIVISOR = 16


@dataclass(frozen=True, slots=True)
class Partial:
    """Scratch memory of a kernel: area `number`, elements of `dtype`."""

    number: int
    dtype: torch.dtype


#: The meaning of a parameter: an operand, scratch memory or a size.
Parameter: TypeAlias = Value | Partial | sympy.Expr


@dataclass(slots=True)
class KernelText:
    """One launch: the module's text, its function's name, parameters with their Triton types, and the grid."""

    source: str
    name: str
    signature: list[tuple[str, str]]
    parameters: list[Parameter]
    grid: tuple[Dim, ...]
    warps: int
    checks: bool = False
    #: whether all needs to be right for 16 bits only: shorter functions, a * b + c rounded once
    short: bool = False
    #: names of values, in order
    values: list[str] = field(default_factory=list)
    registers: int | None = None
    #: the sizes that are multiples of 16 as far as is known: launches check it
    divisible: frozenset[str] = frozenset()
    #: programs that run side by side
    cluster: int = 1
    #: steps of a loop whose loads are under way at a time
    stages: int = 3

    @property
    def anonymous(self) -> str:
        """The module's text but for what values are called."""
        numbers = {name: f"v{k}" for k, name in enumerate(self.values)}
        return re.sub(r"\w+", lambda match: numbers.get(match[0], match[0]), self.source)


@dataclass(slots=True)
class Program:
    """The text of a kernel's programs, and its launches."""

    launches: list[KernelText] = field(default_factory=list)
    #: areas of scratch memory: bytes
    scratch: list[int] = field(default_factory=list)
    #: for each launch others that compute the same, where the kernel is to be tuned
    variations: list[list[KernelText]] = field(default_factory=list)


class Emitter(KernelWriter):
    """Prints one function. `launch` says what a program holds; `stem` names the function.

    Every tensor of the program has one axis for each tile with a block, of size 1 where it does not vary along that.
    """

    def __init__(self, kernel: Kernel, launch: Launch, stem: str) -> None:
        super().__init__(kernel)
        self.launch = launch
        self.stem = stem
        self.lines: list[str] = []
        self.depth = 1
        self.counts: dict[str, int] = {}
        self.values: list[str] = []
        self.checks = False
        #: how often the elements are read
        self.passes = 1
        self.last_pass = False
        #: whether loads beyond the end give zeros, for floats too
        self.zero_outside = False
        self.stages = 3
        #: whether a line says where it waits for the launch in front of it; else it does at once
        self.awaits = False
        #: stores that wait for the loads of other blocks; None: they do not
        self.waiting: list[str] | None = None
        tiles = [*launch.tiles, *([launch.r] if launch.r is not None else [])]
        self.blocks = place_tiles(tiles)
        self.tile_of = {axis: tile for tile in tiles for axis in tile.axes}
        self.axis_names: dict[Axis, str] = {}
        self.names: dict[Expr, str] = {}
        self.printer = ExprPrinter(lambda expr: self.names[expr], _is_short(kernel))
        self.wide = _is_wide(kernel, tiles)

    # lines and names

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if line else line)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.add(head)
        self.depth += 1
        yield
        self.depth -= 1

    def fresh(self, stem: str) -> str:
        """A new name: the stem, the first time, then with a number."""
        number = self.counts[stem] = self.counts.get(stem, 0) + 1
        name = stem if number == 1 else f"{stem}_{number}"
        self.values.append(name)
        return name

    # tiles

    def shape_suffix(self, tile: Tile) -> str:
        """The subscript that puts a vector along its tile's axis."""
        if len(self.blocks) < 2:
            return ""
        return "[" + ", ".join(":" if t is tile else "None" for t in self.blocks) + "]"

    @property
    def shape(self) -> str:
        """The full shape of the program's tensors."""
        return "[" + ", ".join(str(t.block) for t in self.blocks) + "]"

    def tiles_of(self, axes: Any) -> list[Tile]:
        """The tiles with a block on which something with these axes depends."""
        found = {self.tile_of[a] for a in axes if a in self.tile_of}
        return [t for t in self.blocks if t in found]

    def begin_program(self, splits: int = 1) -> None:
        """Where this program is along each tile but `r`; where programs share `r`, which part of it it has."""
        pid = "tl.program_id(0)" + (".to(tl.int64)" if self.wide else "")
        parts: list[tuple[str, Dim]] = [(tile.name, tile.count) for tile in self.launch.tiles]
        if splits > 1:
            parts.insert(0, ("part", splits))
        if self.launch.cluster > 1:
            parts.append(("part", self.launch.cluster))
        parts = [p for p in parts if not (type(p[1]) is int and p[1] == 1)]
        texts = {tile.name: "0" for tile in self.launch.tiles}
        if len(parts) == 1:
            texts[parts[0][0]] = pid
        elif parts:
            self.add(f"pid = {pid}")
            left = "pid"
            for k in range(len(parts) - 1, -1, -1):
                name, count = parts[k]
                texts[name] = f"{left} % {self.size(count)}" if k else left
                if k:
                    self.add(f"pid_{k} = {left} // {self.size(count)}")
                    left = f"pid_{k}"
        if "part" in texts:
            self.add(f"part = {texts.pop('part')}")
        for tile in self.launch.tiles:
            self.define(tile, texts[tile.name])

    def lanes(self, tile: Tile) -> str:
        """The numbers of a block's elements, so wide that products of them with strides are right."""
        return f"tl.arange(0, {tile.block}){self.shape_suffix(tile)}" + (".to(tl.int64)" if self.wide else "")

    def define(self, tile: Tile, at: str) -> None:
        """The tile's index in this program, where `at` is the number of its block."""
        if tile.block == 1:
            self.add(f"{tile.name} = {at}")
        else:
            text = self.lanes(tile)
            if at != "0":
                text = f"{at} * {tile.block} + {text}" if " " not in at else f"({at}) * {tile.block} + {text}"
            self.add(f"{tile.name} = {text}")
        self.split_axes(tile)

    def split_axes(self, tile: Tile, start: str = "") -> None:
        """The axes of a tile from its flat index, and its mask. `start` is the index of its first element, where that
        is a multiple of the block: axes that are the same for a whole block are plain numbers then."""
        if len(tile.axes) == 1:
            self.axis_names[tile.axes[0]] = tile.name
        elif start and _divides(tile.block, tile.axes[-1].size):
            below: Dim = 1
            for k, axis in reversed(list(enumerate(tile.axes))):
                name = self.axis_names[axis] = f"{tile.name}{k}"
                if axis in self._used_axes():
                    text = closed(start) if below == 1 else f"{closed(start)} // {self.size(below)}"
                    text = f"{text} % {self.size(axis.size)}" if k else text
                    if axis is tile.axes[-1]:
                        text = f"{text} + {self.lanes(tile)}"
                    self.add(f"{name} = {text}")
                below = below * axis.size
        else:
            used = self._used_axes()
            for k, axis in enumerate(tile.axes):
                name = self.axis_names[axis] = f"{tile.name}{k}"
                if axis not in used:
                    continue
                below = prod(tuple(a.size for a in tile.axes[k + 1 :]))
                text = tile.name if type(below) is int and below == 1 else f"{tile.name} // {self.size(below)}"
                self.add(f"{name} = {text} % {self.size(axis.size)}" if k else f"{name} = {text}")
        if tile.masked:
            self.add(f"{tile.name}_in = {tile.name} {'>= 0' if tile.early else f'< {self.size(tile.size)}'}")

    def _used_axes(self) -> set[Axis]:
        """Axes that some index mentions other than as part of a tile's flat index."""
        if not hasattr(self, "_used"):
            self._used: set[Axis] = set()
            for index in self._indices():
                self._collect(index)
        return self._used

    def _collect(self, index: Index) -> None:
        for atom, _ in self._regrouped(index)[0]:
            if isinstance(atom, Axis):
                self._used.add(atom)
            elif not isinstance(atom, Expr):
                self._collect(atom.index)

    def _indices(self) -> list[Index]:
        kernel = self.kernel
        found = [s.index for s in kernel.all_stores] + [r.position for r in kernel.reductions if r.position is not None]
        for expr in walk(kernel.roots()):
            if expr.op == "load":
                found.append(expr.attr[1])
            elif expr.op == "index":
                found.append(expr.attr)
        return found

    # indices

    def _regrouped(self, index: Index) -> tuple[list[tuple[Any, Dim]], list[tuple[Tile, Dim]]]:
        """The terms of an index; those that walk a whole tile in order as one term of the tile."""
        terms = dict(index.terms)
        flat: list[tuple[Tile, Dim]] = []
        for tile in {self.tile_of[a]: None for a in terms if isinstance(a, Axis) and a in self.tile_of}:
            if len(tile.axes) < 2:
                continue
            step: Dim = terms.get(tile.axes[-1], 0)
            expected, whole = step, not (type(step) is int and step == 0)
            for axis in reversed(tile.axes):
                whole = whole and axis in terms and terms[axis] == expected
                expected = expected * axis.size
            if whole:
                for axis in tile.axes:
                    del terms[axis]
                flat.append((tile, step))
        return list(terms.items()), flat

    def index(self, index: Index) -> str:
        """An index expression as text."""
        terms, flat = self._regrouped(index)
        named = [*((tile.name, step) for tile, step in flat), *((self._atom(atom), step) for atom, step in terms)]
        return sum_of(named, index.const, self.size)

    def _atom(self, atom: Any) -> str:
        if isinstance(atom, Axis):
            return self.axis_names[atom]
        if isinstance(atom, Expr):
            return typed(atom.attr, atom.dtype) if atom.op == "const" else closed(self.names[atom])
        sign = "%" if isinstance(atom, Remainder) else "//"
        return f"(({self.index(atom.index)}) {sign} {self.size(atom.divisor)})"

    # computations

    def emit(self, roots: list[Expr]) -> None:
        """Name what `roots` need and has no name yet."""
        needed = order(roots, self.names)
        uses: dict[Expr, int] = {}
        for expr in needed:
            for child in children(expr):
                uses[child] = uses.get(child, 0) + (2 if expr.op == "check" else 1)
        wanted = set(roots)
        for expr in needed:
            text = self._value(expr)
            single = uses.get(expr, 0) == 1 and expr not in wanted and expr.op not in ("load", "check", "index")
            if re.fullmatch(r"\w+", text):
                self.names[expr] = text
            elif single and len(text) <= INLINE:
                self.names[expr] = text
            else:
                name = self.names[expr] = self.fresh(stem_for(expr))
                self.add(f"{name} = {text}")

    def _value(self, expr: Expr) -> str:
        if expr.op == "load":
            return self._load(expr)
        if expr.op == "index":
            text = self.index(expr.attr)
            return f"{closed(text)}.to(tl.int64)"
        if expr.op == "size":
            return self.size(expr.attr)
        if expr.op == "check":
            return self._check(expr)
        if expr.op == "drawn_below":
            name = "drawn_below_by_fours" if self._is_by_fours(expr) else "drawn_below"
            return f"{name}({', '.join([*map(self.printer.argument, expr.args), *map(repr, expr.attr)])})"
        if expr.op in ("drawn_uniform", "drawn_normal"):
            return f"{expr.op}({', '.join([*map(self.printer.argument, expr.args), *map(repr, expr.attr)])})"
        return self.printer.value(expr)

    def masks(self, tiles: list[Tile]) -> list[str]:
        return [f"{t.name}_in" for t in tiles if t.masked]

    def _load(self, expr: Expr) -> str:
        """The operand of a computation: a number, floats of 16 bits as float32."""
        value = expr.attr[0]
        if isinstance(value, HostScalar):
            return self.parameters[value]
        loaded = self.loaded(expr)
        return f"{loaded}.to(tl.float32)" if value.dtype is not expr.dtype and expr.dtype is torch.float32 else loaded

    def loaded(self, expr: Expr) -> str:
        """The value as it is in memory."""
        value, index = expr.attr
        name = self.parameters[value]
        text, masks = self.index(index), self.masks(self.tiles_of(expr.axes))
        if expr.args:
            condition = expr.args[0]
            masks.append(closed(self.printer.argument(condition)))
            if set(self.tiles_of(condition.axes)) - set(self.tiles_of(index.all_axes())):
                # the mask is larger than the index
                text = f"tl.where({masks[-1]}, {text}, 0)"
        pointer = _pointer(name, text)
        mask = f", mask={' & '.join(masks)}" if masks else ""
        if masks and (expr.args or not value.dtype.is_floating_point or self.zero_outside):
            mask += ", other=0.0" if value.dtype in FLOAT8 else ", other=0"
        policy = self._policy(expr)
        if policy:
            mask += f', eviction_policy="{policy}"'
        return f"tl.load({pointer}{mask})"

    def _policy(self, expr: Expr) -> str:
        """The cache's policy for a load; '' leaves it to the hardware."""
        if self.launch.cached and set(self.kernel.axes) <= expr.axes:
            return "evict_first" if self.last_pass else "evict_last"
        return "evict_first" if self._is_streamed(expr) else ""

    def _is_streamed(self, expr: Expr) -> bool:
        """Whether a load reads much memory once, in wide pieces, in a kernel that writes little: then the cache is
        better left to others. (Measured: it slows down kernels that write as much, and loads that share a line.)"""
        value, index = expr.attr
        read = self.kernel.hint(value.numel) * value.dtype.itemsize
        if read < STREAMED or self.passes > 1 or not set(self.kernel.axes) <= expr.axes:
            return False
        if 16 * sum(self.kernel.hint(v.numel) * v.dtype.itemsize for v in self.kernel.writes) > read:
            return False
        return all(type(c) is int and (c == 1 or c * value.dtype.itemsize % 16 == 0) for _, c in index.terms)

    def _check(self, expr: Expr) -> str:
        """An index that must be in range: a failure stops the program, as in eager's kernels."""
        self.checks = True
        at, limit = closed(self.printer.argument(expr.args[0])), self.printer.operand(expr.args[1])
        inside = f"({at} >= 0) & ({at} < {limit})"
        masks = self.masks(self.tiles_of(expr.axes))
        if len(expr.args) == 3:
            masks.append(closed(self.printer.argument(expr.args[2])))
        outside = "".join(f" | ~{mask}" for mask in masks)
        self.add(f'tl.device_assert({f"({inside}){outside}" if outside else inside}, "index out of range")')
        return at

    def _is_by_fours(self, expr: Expr) -> bool:
        """Whether the last axis of the program's tensors holds elements four by four whose numbers come from one call
        of the generator."""
        at, vector = expr.args[0], expr.attr[1]
        if vector < 4 or at.op != "index" or not self.blocks:
            return False
        tile = self.blocks[-1]
        if tile.block % 4 or tile.early:
            return False
        terms, flat = self._regrouped(at.attr)
        inner = tile.axes[-1]
        aligned = len(tile.axes) == 1 or type(inner.size) is int and inner.size % 4 == 0
        ones = [atom is tile or atom is inner and aligned for atom, step in (*terms, *flat) if step == 1]
        rest = [at.attr.const, *(step for _, step in (*terms, *flat) if step != 1)]
        return ones == [True] and all(type(step) is int and step % 4 == 0 for step in rest)

    def store(self, value: Value, index: Index, expr: Expr) -> None:
        """Write `expr`, named already, to `value[index]`."""
        text = self.index(index)
        masks = self.masks(self.tiles_of(index.all_axes()))
        value_text = literal(expr.attr, expr.dtype) if expr.op == "const" else self.names[expr]
        if value.dtype in FLOAT8:
            value_text = rounded(self.printer.tensor(expr), value.dtype)
        self.write(self.parameters[value], text, value_text, masks)

    def write(self, pointer: str, index: str, value: str, masks: list[str]) -> None:
        mask = f", mask={' & '.join(masks)}" if masks else ""
        if self.waiting is None:
            self.add(f"tl.store({_pointer(pointer, index)}, {value}{mask})")
            return
        at = self.fresh("at")
        self.add(f"{at} = {index}")
        self.waiting.append(f"tl.store({_pointer(pointer, at)}, {value}{mask})")

    def scratch(self, number: int, dtype: torch.dtype) -> str:
        """The pointer to an area of scratch memory."""
        return self.parameters.setdefault(Partial(number, dtype), f"partial{number}")

    # the whole

    def finish(self, grid: tuple[Dim, ...], suffix: str = "") -> KernelText:
        """The module with this function: its parameters are what its lines mention."""
        name = self.stem + suffix
        if not self.awaits:
            self.lines.insert(0, "    await_results()")
        self.lines.insert(0, "    let_next_begin()")
        body = "\n".join(self._lines_that_count()) + "\n"
        words = set(re.findall(r"\w+", body))
        signature, used = [], []
        for parameter, text in [*self.parameters.items(), *((e, n) for e, n in self.sizes.items())]:
            if text not in words:
                continue
            signature.append((text, _kind(parameter)))
            used.append(parameter)
        head = f"@triton.jit\ndef {name}({', '.join(text for text, _ in signature)}):\n"
        divisible = frozenset(text for size, text in self.sizes.items() if text in words and self._is_multiple(size))
        launch = self.launch
        return KernelText(module(head + body), name, signature, used, grid, launch.warps, self.checks,
                          self.printer.short, self.values, launch.registers, divisible, cluster=launch.cluster,
                          stages=self.stages)

    def _is_multiple(self, size: Dim) -> bool:
        """Is a size a multiple of 16 now? Values that depend on data count only if they always are."""
        env = self.kernel.env
        return is_multiple(size, DIVISOR) or not env.is_unbacked(size) and env.hint(size) % DIVISOR == 0

    def _lines_that_count(self) -> list[str]:
        """The lines but those that name indices which nothing mentions until they are named anew."""
        names = {*self.axis_names.values(), *(tile.name for tile in self.tile_of.values())}
        kept, read = [], set()
        for line in reversed(self.lines):
            assigned = re.match(r"\s*(\w+) = ", line)
            if assigned and assigned[1] in names:
                if assigned[1] not in read:
                    continue
                read.discard(assigned[1])
                line_read = line[assigned.end():]
            else:
                line_read = line
            read.update(re.findall(r"\w+", line_read))
            kept.append(line)
        return kept[::-1]


def _divides(block: int, size: Dim) -> bool:
    return type(size) is int and size % block == 0


def _kind(parameter: Parameter) -> str:
    """The Triton type of a parameter."""
    if isinstance(parameter, HostScalar):
        return "fp64" if parameter.kind is float else "i64"
    if isinstance(parameter, (Value, Partial)):
        return "*" + SIGNATURE[parameter.dtype]
    return "i64"


def _pointer(name: str, index: str) -> str:
    if index == "0":
        return name
    return f"{name} + {index}" if re.fullmatch(r"\w+", index) else f"{name} + ({index})"


def _is_wide(kernel: Kernel, tiles: list[Tile]) -> bool:
    """Whether positions may need 64 bits."""
    for tile in tiles:
        if type(tile.size) is not int or tile.size + tile.block >= 1 << 31:
            return True
    for value in (*kernel.reads, *kernel.writes):
        if isinstance(value, HostScalar):
            continue
        reach: Dim = 1
        for size, stride in zip(value.shape, value.stride, strict=True):
            reach = reach + (size - 1) * (stride if type(stride) is not int else abs(stride))
        # masked lanes may compute positions of twice the reach
        if type(reach) is not int or reach >= 1 << 30:
            return True
    return False


#: By how many elements a parameter is read at least.
_SHARED = 32
#: Where a tiny difference makes a large one.
_STEPS = {"floor", "ceil", "trunc", "round", "floordiv", "mod", "fmod", "sign"}


def _is_short(kernel: Kernel) -> bool:
    """Whether nothing sees more than the 11 bits of 16-bit floats of a result. Floats of 32 bits may be parameters that
    many elements share."""
    short = all(v.dtype.itemsize <= 2 or v.dtype is torch.float32 and _SHARED * kernel.hint(v.numel) <= points
                for points in (kernel.hint(kernel.points),) for v in kernel.reads if v.dtype.is_floating_point)
    if not short or not all(v.dtype.is_floating_point and v.dtype.itemsize == 2 for v in kernel.writes):
        return False
    return not any(e.op in _STEPS or makes_steps(e) for e in kernel.stage)


def makes_steps(expr: Expr) -> bool:
    """Whether floats that differ in their last bits may give results that differ much."""
    if not expr.args or not expr.args[0].dtype.is_floating_point:
        return False
    return expr.op in _STEPS or expr.op == "cast" and not expr.dtype.is_floating_point


def comment_lines(kernel: Kernel, text: KernelText) -> list[str]:
    """For readers: the user's lines, and what the parameters are."""
    import linecache

    lines = [f"# {', '.join(op_names(kernel.nodes))}"]
    for filename, number in places(kernel.nodes)[:12]:
        source = linecache.getline(filename, number).strip()
        lines.append(f"#   {filename}:{number}  {source}".rstrip())
    for (name, kind), parameter in zip(text.signature, text.parameters, strict=True):
        if isinstance(parameter, Partial):
            what = "partial results"
        elif isinstance(parameter, Value):
            what = f"{parameter.describe()} {list(parameter.shape)}"
        else:
            what = str(parameter)
        lines.append(f"#   {name}: {kind} {what}")
    return lines


def stem_of(kernel: Kernel) -> str:
    """A function name from the ops that the kernel computes."""
    names = dict.fromkeys(re.sub(r"\W", "_", name.split(".")[0]) for name in op_names(kernel.nodes))
    return ("fused_" + "_".join(names))[:64].rstrip("_") or "fused"


__all__ = ["Emitter", "KernelText", "Parameter", "Partial", "Program", "TYPES", "comment_lines", "makes_steps",
           "stem_of"]
