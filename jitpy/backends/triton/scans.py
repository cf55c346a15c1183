"""Running combinations along one axis. A program scans blocks side by side and carries the last value on to the next
one; where there are few rows, programs share each: all say what their parts come to, and each combines what those in
front of it have said, in order, so that results repeat."""

from __future__ import annotations

import torch

from ...schedule.index import Axis
from ...schedule.loops import Kernel
from .emitter import Emitter, KernelText, Program, stem_of
from .printer import TYPES, closed
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
    """Scans along `r`."""

    def __init__(self, kernel: Kernel, launch: Launch, stem: str) -> None:
        super().__init__(kernel, launch, stem)
        (self.reduction,) = kernel.reductions
        self.combine = combine_name(self.reduction.kind)

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
            self._scanned(self._block_values(), "")
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
            found = self._block_values()
        else:
            self.add(f"r_last = tl.minimum(r_first + {chunk}, {r.size})")
            (found,) = self.begin(self.reduction)
            with self.block(f"for r_start in {self.range('r_first', 'r_last', r.block)}:"):
                self._begin_block("r_start")
                self.add(f"{found} = {self._combined(found, self._block_values())}")
            self.names = outer
        carried = self._hand_on(self._folded(found, "total"), scratch)
        if self.launch.together == 1:
            self._scanned(found, carried)
        else:
            self._walk("r_first", "r_last", carried)
        return self.finish((self.launch.splits * x.count,))

    def _walk(self, first: str, last: str, carried: str) -> None:
        """Block by block."""
        outer = dict(self.names)
        with self.block(f"for r_start in {self.range(first, last, self.r.block)}:"):
            self._begin_block("r_start")
            value = self._block_values()
            self._scanned(value, carried)
            folded = self._folded(value, "whole")
            self.add(f"{carried} = {self._combined(carried, folded)}")
        self.names = outer

    def _block_values(self) -> str:
        """The scanned values of a block."""
        self.emit([self.reduction.expr])
        (text,) = self._operands(self.reduction)
        return self._named(f"{closed(text)}.to(tl.int32)" if self.is_narrow else text)

    def _scanned(self, value: str, carried: str) -> None:
        """The running values of a block to memory, behind those that are `carried`, if any."""
        store = self.kernel.stores[0]
        self.add(f"running = tl.associative_scan({value}, {self.r.place}, {self.combine})")
        if carried:
            self.add(f"running = {self._combined(carried, 'running')}")
        elif self.is_narrow:
            self.add("running = running.to(tl.int64)")
        self.conclude(self.reduction, ["running"])
        self.emit([store.expr])
        self.store(store.value, store.index, store.expr)

    def _combined(self, first: str, second: str) -> str:
        return f"{self.combine}({first}, {second})"

    def _folded(self, value: str, stem: str) -> str:
        """One value for each row."""
        name = self.fresh(stem)
        keep = ", keep_dims=True" if len(self.blocks) > 1 else ""
        self.add(f"{name} = tl.reduce({value}, {self.r.place}, {self.combine}{keep})")
        return name

    def _neutral(self, stem: str) -> str:
        """The value that a row begins with."""
        dtype = accumulator(self.reduction)
        shape = "[" + ", ".join("1" if t is self.r else str(t.block) for t in self.blocks) + "]"
        shape = shape if len(self.blocks) > 1 else "[]"
        self.add(f"{stem} = tl.full({shape}, {initial(self.reduction.kind, dtype)}, {TYPES[dtype]})")
        return stem

    def _hand_on(self, total: str, scratch: list[int]) -> str:
        """Say what this program's chunk comes to, and combine what those in front of it come to. It goes through words
        of 64 bits, half of which say that the other half is there: a program waits until all are."""
        x, splits = self.launch.tiles[0], self.launch.splits
        assert type(x.size) is int
        (dtype,) = self.kept(self.reduction)
        if self.is_narrow:
            total, dtype = f"{total}.to(tl.int32)", torch.int32
        pointers = []
        for half in range(dtype.itemsize // 4):
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
            words = [self.fresh("words") for _ in pointers]
            for name, pointer in zip(words, pointers, strict=True):
                self.add(f"{name} = await_words({pointer} + (p * {x.size} + {x.name}), {here})")
            earlier = self.fresh("earlier")
            text = f"{'of_word' if len(words) == 1 else 'of_halves'}({', '.join(words)}, {TYPES[dtype]})"
            text += ".to(tl.int64)" if self.is_narrow else ""
            start = initial(self.reduction.kind, dtype)
            if dtype.itemsize == 8:
                start = f"tl.full([], {start}, {TYPES[dtype]})"
            self.add(f"{earlier} = tl.where(p < part, {text}, {start})")
            self.add(f"{carried} = {self._combined(carried, self._folded(earlier, 'sofar'))}")
        self.names = outer
        return carried
