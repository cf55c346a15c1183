"""Running combinations along one axis. A program scans blocks side by side and carries the last value on to the next
one; where there are few rows, programs share each: all say what their parts come to, and each combines what those in
front of it have said, in order, so that results repeat."""

from __future__ import annotations

import torch

from ...schedule.index import Axis
from ...schedule.loops import Kernel
from .emitter import Emitter, KernelText, Program, stem_of
from .printer import TYPES, closed, typed
from .reductions import ReductionEmitter, accumulator, combine_name, initial
from .tiles import Launch, Tile, power_of_two, scan_launch

#: Words that a program clears.
CLEARED = 1024
#: Words that a program waits for at a time.
AWAITED = 1024


def print_scan(kernel: Kernel) -> Program:
    """The kernel as one launch or, shared among programs, as two."""
    launch = scan_launch(kernel)
    emitter = ScanEmitter(kernel, launch, stem_of(kernel))
    if launch.splits == 1:
        return Program([emitter.alone()])
    scratch: list[int] = []
    shared = emitter.shared(scratch)
    return Program([_cleared(kernel, scratch), shared], scratch)


def _cleared(kernel: Kernel, scratch: list[int]) -> KernelText:
    """The launch that takes the marks off the words in scratch memory."""
    x = Tile("x", [Axis(scratch[0] // 8)], CLEARED)
    emitter = Emitter(kernel, Launch([x], 4), stem_of(kernel))
    emitter.begin_program()
    for number in range(len(scratch)):
        emitter.write(emitter.scratch(number, torch.int64), "x", "0", emitter.masks([x]))
    return emitter.finish((x.count,), "_clear")


class ScanEmitter(ReductionEmitter):
    """Scans along `r`: of values, or of values with their positions."""

    def __init__(self, kernel: Kernel, launch: Launch, stem: str) -> None:
        super().__init__(kernel, launch, stem)
        (self.reduction,) = kernel.reductions
        self.is_argument = self.reduction.kind.startswith("arg")
        #: how two neighbours are combined in order, and any two
        self.in_order = self.combine = combine_name(self.reduction.kind)
        if self.is_argument:  # of equals the last
            self.in_order = self.combine.replace("_arg", "_later_arg")
            self.combine = self.combine.replace("_arg", "_last_arg")

    @property
    def is_narrow(self) -> bool:
        """Whether sums over a chunk fit 32 bits, though those of rows may not: of truth values and bytes."""
        if self.r.block * self.launch.together >= 1 << 23:
            return False
        expr, dtype = self.reduction.expr, accumulator(self.reduction)
        narrow = (torch.bool, torch.uint8, torch.int8)
        return self.reduction.kind == "sum" and dtype is torch.int64 and expr.op == "cast" and (
            expr.args[0].dtype is torch.bool or expr.args[0].op == "load" and expr.args[0].attr[0].dtype in narrow)

    def alone(self) -> KernelText:
        """A program for each row, or for some side by side."""
        r = self.r
        self.begin_program()
        if type(r.size) is int and r.size <= r.block:
            self.define(r, "0")
            self._scanned(self._values(), [])
        else:
            self._walk("0", self.size(r.size), self._neutral("carried"))
        return self.finish((self.launch.tiles[0].count,))

    def shared(self, scratch: list[int]) -> KernelText:
        """The second launch: each program has a chunk of each row; adds the scratch memory that it needs."""
        r, x, chunk = self.r, self.launch.tiles[0], self.r.block * self.launch.together
        self.begin_program(self.launch.splits)
        self.add(f"r_first = part * {chunk}")
        outer = dict(self.names)
        if self.launch.together == 1:
            self._begin_block("r_first")
            found = self._values()
        else:
            self.add(f"r_last = tl.minimum(r_first + {chunk}, {r.size})")
            found = self.begin(self.reduction)
            with self.block(f"for r_start in {self.range('r_first', 'r_last', r.block)}:"):
                self._begin_block("r_start")
                self.add(f"{', '.join(found)} = {self._combined(found, self._values())}")
            self.names = outer
        carried = self._hand_on(self._folded(found, "total"), scratch)
        if self.launch.together == 1:
            self._scanned(found, carried)
        else:
            self._walk("r_first", "r_last", carried)
        return self.finish((self.launch.splits * x.count,))

    def _walk(self, first: str, last: str, carried: list[str]) -> None:
        """Block by block."""
        outer = dict(self.names)
        with self.block(f"for r_start in {self.range(first, last, self.r.block)}:"):
            self._begin_block("r_start")
            values = self._values()
            self._scanned(values, carried)
            folded = self._folded(values, "whole")
            self.add(f"{', '.join(carried)} = {self._combined(carried, folded)}")
        self.names = outer

    def _values(self) -> list[str]:
        """The scanned values of a block."""
        self.emit([self.reduction.expr])
        texts = self._operands(self.reduction)
        return [self._named(f"{closed(text)}.to(tl.int32)" if self.is_narrow else text) for text in texts]

    def _scanned(self, values: list[str], carried: list[str]) -> None:
        """The running values of a block to memory."""
        store = self.kernel.stores[0]
        running = ["running", "running_at"][: len(values)]
        given = values[0] if len(values) == 1 else f"({', '.join(values)})"
        self.add(f"{', '.join(running)} = tl.associative_scan({given}, {self.r.place}, {self.in_order})")
        if carried:
            self.add(f"{', '.join(running)} = {self._combined(carried, running)}")
        elif self.is_narrow:
            self.add("running = running.to(tl.int64)")
        self.conclude(self.reduction, running)
        self.emit([store.expr])
        self.store(store.value, store.index, store.expr)

    def _combined(self, first: list[str], second: list[str]) -> str:
        return f"{self.in_order}({', '.join([*first, *second])})"

    def _folded(self, values: list[str], stem: str) -> list[str]:
        """One value for each row."""
        names = [self.fresh(stem), *([self.fresh(f"{stem}_at")] if self.is_argument else [])]
        keep = ", keep_dims=True" if len(self.blocks) > 1 else ""
        given = values[0] if len(values) == 1 else f"({', '.join(values)})"
        self.add(f"{', '.join(names)} = tl.reduce({given}, {self.r.place}, {self.combine}{keep})")
        return names

    def _neutral(self, stem: str) -> list[str]:
        """The value that a row begins with."""
        dtype = accumulator(self.reduction)
        shape = "[" + ", ".join("1" if t is self.r else str(t.block) for t in self.blocks) + "]"
        shape = shape if len(self.blocks) > 1 else "[]"
        self.add(f"{stem} = tl.full({shape}, {initial(self.reduction.kind, dtype)}, {TYPES[dtype]})")
        if not self.is_argument:
            return [stem]
        self.add(f"{stem}_at = tl.full({shape}, -1, {TYPES[self.positions]})")
        return [stem, f"{stem}_at"]

    def _hand_on(self, totals: list[str], scratch: list[int]) -> list[str]:
        """Say what this program's chunk comes to, and combine what those in front of it come to. It goes through words
        of 64 bits, half of which say that the other half is there: a program waits until all are."""
        x, splits = self.launch.tiles[0], self.launch.splits
        assert type(x.size) is int
        dtypes = self.kept(self.reduction)
        if self.is_narrow:
            totals, dtypes = [f"{totals[0]}.to(tl.int32)"], [torch.int32]
        areas: list[tuple[int, str, torch.dtype, int]] = []
        for number, (total, dtype) in enumerate(zip(totals, dtypes, strict=True)):
            for half in range(dtype.itemsize // 4):
                areas.append((number, total, dtype, half))
        pointers = []
        for _, total, dtype, half in areas:
            pointers.append(self.scratch(len(scratch), torch.int64))
            text = f"word({total})" if dtype.itemsize == 4 else f"half_word({total}, {half})"
            self.write(pointers[-1], f"part * {x.size} + {x.name}", text, self.masks([x]))
            scratch.append(8 * splits * x.size)
        width = min(power_of_two(splits), max(2, AWAITED // x.block))
        carried = self._neutral("carried")
        outer = dict(self.names)
        with self.block(f"for p_start in range(0, part, {width}):"):
            self.add(f"p = p_start + tl.arange(0, {width}){self.shape_suffix(self.r)}")
            here = " & ".join(["(p < part)", *self.masks([x])])
            words = [self.fresh("words") for _ in areas]
            for name, pointer in zip(words, pointers, strict=True):
                self.add(f"{name} = await_words({pointer} + (p * {x.size} + {x.name}), {here})")
            earlier = []
            for number, dtype in enumerate(dtypes):
                own = [name for name, area in zip(words, areas, strict=True) if area[0] == number]
                name = self.fresh("earlier")
                text = f"{'of_word' if len(own) == 1 else 'of_halves'}({', '.join(own)}, {TYPES[dtype]})"
                text += ".to(tl.int64)" if self.is_narrow else ""
                start = "-1" if number else initial(self.reduction.kind, dtype)
                if dtype.itemsize == 8:
                    start = f"tl.full([], {start}, {TYPES[dtype]})" if not number else typed(-1, dtype)
                self.add(f"{name} = tl.where(p < part, {text}, {start})")
                earlier.append(name)
            self.add(f"{', '.join(carried)} = {self._combined(carried, self._folded(earlier, 'sofar'))}")
        self.names = outer
        return carried
