"""Reductions that depend on another one, computed with it in the same pass over the elements.

    sum(exp(x - max(x)))         running sums are rescaled when the running maximum grows (Milakov, Gimelshein)
    sum((x - mean(x)) ** 2)      running means and squared differences from them (Welford)

Without this a long row is read once more for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...ir.spec import prod
from ...schedule.expr import Expr
from ...schedule.loops import Kernel, Reduce

if TYPE_CHECKING:
    from .reductions import ReductionEmitter


def find_followers(kernel: Kernel) -> dict[Reduce, Follower]:
    """The reductions that can be computed in the pass of the one that they depend on."""
    found: dict[Reduce, Follower] = {}
    length = prod(tuple(a.size for a in kernel.reduced))
    for second in kernel.reductions:
        for first in kernel.reductions:
            if second.kind != "sum" or second.dtype is not torch.float32 or first is second:
                continue
            if kernel.stage[second.expr] != kernel.stage[first.expr] + 1:
                continue
            if first.kind == "max" and _is_exponential(second.expr, first):
                found[second] = Exponentials(first)
            elif first.kind == "sum" and type(length) is int and _is_square(second.expr, first, length):
                found[second] = Squares(first)
    return found


def _is_exponential(expr: Expr, first: Reduce) -> bool:
    """Whether it is exp(x - max(x))."""
    if expr.op != "exp" or expr.args[0].op != "sub":
        return False
    return expr.args[0].args == (first.expr, first.result)


def _is_square(expr: Expr, first: Reduce, length: int) -> bool:
    """Whether it is (x - sum(x) / length) ** 2."""
    if expr.op != "mul" or expr.args[0] is not expr.args[1] or expr.args[0].op != "sub":
        return False
    x, mean = expr.args[0].args
    if x is not first.expr or mean.op not in ("truediv", "mul") or mean.args[0] is not first.result:
        return False
    by = mean.args[1]
    if by.op != "const":
        return False
    return by.attr == length if mean.op == "truediv" else abs(by.attr * length - 1) < 1e-6


class _Follower:
    """Running values of a reduction beside those of `first`; one instance serves one kernel.

    start   in front of the loop
    step    inside the loop, in front of the steps of `first`, whose running values are so named, with its operands in
            some blocks. Returns what is left for `first` to take in: those, or fewer that stand for them
    fold    the name of the result; `running` and `first` are the other one's values and result
    held    the result of a program of a cluster for its part of a row, which it holds; `first` is the other one's
            result in this part. Returns a name
    across  the result from those of all parts, of the other one and of this; `first` is the other one's result
    """

    def __init__(self, first: Reduce) -> None:
        self.first = first

    def _full(self, emitter: ReductionEmitter, value: str) -> str:
        name = emitter.fresh("acc")
        emitter.add(f"{name} = tl.full({emitter.shape}, {value}, tl.float32)")
        return name

    def _sum(self, emitter: ReductionEmitter, given: str) -> str:
        name = emitter.fresh("sum")
        self._folded(emitter, given, "combine_sum", [name])
        return name

    def _folded(self, emitter: ReductionEmitter, given: str, combine: str, names: list[str]) -> None:
        keep = ", keep_dims=True" if len(emitter.blocks) > 1 else ""
        emitter.add(f"{', '.join(names)} = tl.reduce({given}, {emitter.r.place}, {combine}{keep})")


class Exponentials(_Follower):
    """sum(exp(x - max(x))): `total` is relative to the lane's maximum so far."""

    def start(self, emitter: ReductionEmitter) -> None:
        self.total = self._full(emitter, "0.0")

    def step(self, emitter: ReductionEmitter, running: str, blocks: list[str]) -> list[str]:
        grown, top, exp, total = emitter.fresh("top"), emitter.fresh("top"), self.exp(emitter), self.total
        text = running
        for x in blocks:
            text = f"combine_max({text}, {x})"
        emitter.add(f"{grown} = {text}")
        # a lane that has seen nothing but -inf is relative to 0: no difference of infinities
        emitter.add(f'{top} = tl.where({grown} == float("-inf"), 0.0, {grown})')
        emitter.add(f"{total} = {total} * {exp}({running} - {top})")
        for x in blocks:  # beyond the end they are -inf
            emitter.add(f"{total} += {exp}({x} - {top})")
        return blocks

    def fold(self, emitter: ReductionEmitter, running: str, first: str) -> str:
        name = emitter.fresh("sum")
        self._folded(emitter, f"{self.total} * {self.exp(emitter)}({running} - {first})", "combine_sum", [name])
        return name

    def held(self, emitter: ReductionEmitter, first: str) -> str:
        top, total = emitter.fresh("top"), self._full(emitter, "0.0")
        emitter.add(f'{top} = tl.where({first} == float("-inf"), 0.0, {first})')
        for x in emitter.held_operands(self.first):
            emitter.add(f"{total} += {self.exp(emitter)}({x} - {top})")
        return self._sum(emitter, total)

    def across(self, emitter: ReductionEmitter, parts: list[str], first: str) -> str:
        return self._sum(emitter, f"{parts[1]} * {self.exp(emitter)}({parts[0]} - {first})")

    @staticmethod
    def exp(emitter: ReductionEmitter) -> str:
        return "libdevice.fast_expf" if emitter.printer.short else "libdevice.exp"


class Squares(_Follower):
    """sum((x - mean(x)) ** 2): `mean` and `squares` of each lane's elements so far."""

    def start(self, emitter: ReductionEmitter) -> None:
        self.mean, self.squares = self._full(emitter, "0.0"), self._full(emitter, "0.0")
        self.count = emitter.fresh("count")
        emitter.add(f"{self.count} = 0.0")

    def step(self, emitter: ReductionEmitter, running: str, blocks: list[str]) -> list[str]:
        if len(blocks) == 1 or emitter.r.masked:
            for x in blocks:
                self._add(emitter, x)
            return blocks
        return [self._add_together(emitter, blocks)]

    def _add(self, emitter: ReductionEmitter, x: str) -> None:
        """One element a lane."""
        apart, mean, squares = (emitter.fresh(stem) for stem in ("apart", "mean", "squares"))
        emitter.add(f"{self.count} += 1.0")
        emitter.add(f"{apart} = {x} - {self.mean}")
        emitter.add(f"{mean} = {self.mean} + {apart} * (1.0 / {self.count})")
        emitter.add(f"{squares} = {self.squares} + {apart} * ({x} - {mean})")
        for old, new in ((self.mean, mean), (self.squares, squares)):
            text = f"tl.where({emitter.r.name}_in, {new}, {old})" if emitter.r.masked else new
            emitter.add(f"{old} = {text}")

    def _add_together(self, emitter: ReductionEmitter, blocks: list[str]) -> str:
        """Some elements a lane: their own mean and squares first, then as in `combine_moments`. Less work by half.
        Returns their sum."""
        names = (emitter.fresh(stem) for stem in ("several", "mean", "squares", "apart", "share"))
        several, own, squares, apart, share = names
        emitter.add(f"{several} = {' + '.join(blocks)}")
        emitter.add(f"{own} = {several} * {1 / len(blocks)!r}")
        emitter.add(f"{squares} = {' + '.join(f'({x} - {own}) * ({x} - {own})' for x in blocks)}")
        emitter.add(f"{apart} = {own} - {self.mean}")
        emitter.add(f"{share} = {float(len(blocks))} / ({self.count} + {float(len(blocks))})")
        emitter.add(f"{self.mean} += {apart} * {share}")
        emitter.add(f"{self.squares} += {squares} + {apart} * {apart} * ({self.count} * {share})")
        emitter.add(f"{self.count} += {float(len(blocks))}")
        return several

    def fold(self, emitter: ReductionEmitter, running: str, first: str) -> str:
        r = emitter.r
        assert type(r.size) is int
        whole, rest = divmod(r.size, r.block)
        count = str(float(whole))
        if rest:
            lanes = f"tl.arange(0, {r.block}){emitter.shape_suffix(r)}"
            count = f"tl.where({lanes} < {rest}, {float(whole + 1)}, {float(whole)})"
            if len(emitter.blocks) > 1:
                count = f"tl.broadcast_to({count}, {emitter.shape})"
        else:
            count = f"tl.full({emitter.shape}, {count}, tl.float32)"
        mean, name, counted = emitter.fresh("mean"), emitter.fresh("sum"), emitter.fresh("count")
        given = f"({self.mean}, {self.squares}, {count})"
        self._folded(emitter, given, "combine_moments", [mean, name, counted])
        return name

    def held(self, emitter: ReductionEmitter, first: str) -> str:
        apart, mean, squares = emitter.fresh("apart"), emitter.fresh("mean"), self._full(emitter, "0.0")
        emitter.add(f"{mean} = {first} / {self._part(emitter)}")
        for x in emitter.held_operands(self.first):
            emitter.add(f"{apart} = {x} - {mean}")
            emitter.add(f"{squares} += {apart} * {apart}")
        return self._sum(emitter, squares)

    def across(self, emitter: ReductionEmitter, parts: list[str], first: str) -> str:
        apart, part = emitter.fresh("apart"), self._part(emitter)
        emitter.add(f"{apart} = ({parts[0]} - {first} / {float(emitter.launch.cluster)}) / {part}")
        return self._sum(emitter, f"{parts[1]} + {apart} * {apart} * {part}")

    @staticmethod
    def _part(emitter: ReductionEmitter) -> float:
        """How many elements a program of a cluster has."""
        assert type(emitter.r.size) is int
        return float(emitter.r.size // emitter.launch.cluster)


Follower = Exponentials | Squares
