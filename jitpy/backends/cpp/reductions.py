"""The parts that reductions have in common: lanes of running values, and how these are combined."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...ir.spec import Dim
from ...schedule.expr import Expr, order
from ...schedule.loops import Reduce, Store
from .emitter import KernelPrinter
from .prelude import TYPES
from .printer import literal

#: Length of a row below which one vector of lanes is used.
SHORT_ROW = 512


@dataclass(slots=True)
class Lanes:
    """An array of running values, and for arg-reductions that of their positions (named with a `p` behind)."""

    name: str
    dtype: torch.dtype
    position: str = ""
    none: str = ""


class ReductionPrinter(KernelPrinter):
    """Kernels with reductions. Sums are kept in many lanes and added up pairwise: deterministic, independent of the
    number of threads, and more accurate than one running sum."""

    def stages(self) -> int:
        """How many stages have a loop."""
        stage = self.kernel.stage
        inner = [r.expr for r in self.kernel.all_reductions] + [s.expr for s in self.kernel.stores if self.is_inner(s)]
        return 1 + max((stage[e] for e in inner), default=0)

    def is_inner(self, store: Store) -> bool:
        """Whether a store has one element per point, not one per result."""
        return self.depends(store.expr) or any(a.reduced for a in store.index.all_axes())

    def depends(self, expr: Expr) -> bool:
        """Whether the value changes along reduced axes."""
        return any(a.reduced for a in expr.axes)

    def declare_lanes(self, reduction: Reduce, dtype: torch.dtype, lanes: str, length: Dim) -> Lanes:
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
            return Lanes(name, dtype, position, none)
        self.text.add(f"{kind} {name}[{lanes}];")
        self.text.add(f"for (int64_t l = 0; l < {lanes}; ++l) {name}[l] = {start};")
        return Lanes(name, dtype)

    def combine(self, reduction: Reduce, lanes: Lanes, lane: str, value: str, names: dict[Expr, str]) -> None:
        a = f"{lanes.name}[{lane}]"
        kind = reduction.kind
        if kind.startswith("arg"):
            assert reduction.position is not None
            sign = ">" if kind == "argmax" else "<"
            better = self.fresh("b")
            self.text.add(
                f"const bool {better} = ({value} {sign} {a}) | (({value} != {value}) & ({a} == {a}));"
                if reduction.dtype.is_floating_point
                else f"const bool {better} = {value} {sign} {a};"
            )
            p = f"{lanes.name}p[{lane}]"
            position = self.printer.index(reduction.position, names)
            self.text.add(f"{a} = {better} ? {value} : {a};")
            self.text.add(f"{p} = {better} ? ({lanes.position})({position}) : {p};")
        else:
            self.text.add(combine_text(kind, a, value))

    def fold(self, reduction: Reduce, lanes: Lanes, count: int) -> str:
        name = self.fresh("s")
        result = TYPES[reduction.result.dtype]
        kind = reduction.kind
        if kind.startswith("arg"):
            self.text.add(
                f"const {result} {name} = fold_{kind}({lanes.name}, {lanes.name}p, {count}, "
                f"({lanes.position}){lanes.none});"
            )
        else:
            self.text.add(f"const {result} {name} = ({result})fold_{kind}<{count}>({lanes.name});")
        return name

    def accumulator(self, reduction: Reduce) -> torch.dtype:
        """The dtype of running values: truth values have one with as many lanes as their operands."""
        if reduction.kind not in ("any", "all"):
            return reduction.dtype
        read = {e.attr[0].dtype.itemsize for e in order([reduction.expr], {}) if e.op == "load"}
        return torch.uint8 if read == {1} else torch.int32

    def lane_count(self, length: Dim, dtypes: list[torch.dtype]) -> int:
        """How many lanes a row has: one vector if it is short, else adding them up would cost more than the row."""
        wide = any(d.itemsize == 8 for d in dtypes)
        if self.kernel.hint(length) < SHORT_ROW:
            return 8 if wide else 16
        return 32 if wide else 64

    def outer_stores(self, names: dict[Expr, str]) -> None:
        """Write the results that have one element per point of the parallel axes."""
        stores = [s for s in self.kernel.stores if not self.is_inner(s)]
        self.emit([s.expr for s in stores], names)
        for store in stores:
            self.store(store.value, store.index, store.expr, names)


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
    return literal(limits.min if lowest else limits.max, dtype)


def combine_text(kind: str, a: str, value: str) -> str:
    """The statement that takes `value` into the running value `a`."""
    operator = {"sum": "+=", "prod": "*=", "any": "|=", "all": "&="}.get(kind)
    return f"{a} = pick_{kind}({a}, {value});" if operator is None else f"{a} {operator} {value};"
