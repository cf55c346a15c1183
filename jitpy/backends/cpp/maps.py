"""Kernels without reductions: one pass over the parallel axes, in tiles where operands lie across each other."""

from __future__ import annotations

from ...ir.spec import Dim, prod
from ...schedule.expr import Expr, children, index_expressions, index_of, order
from ...schedule.index import Axis, Index, Quotient, of
from ...schedule.loops import Store
from ...schedule.segments import Segment, cuts
from .emitter import KernelPrinter, Units
from .halves import UNIT
from .prelude import TYPES

#: Side of the square tiles of transposing kernels.
TILE = 64
#: Elements of a block of the vector axis, where the other axes give too few units of work.
BLOCK = 4096
#: Neighbours that share a quotient, from which the vector axis is cut where quotients change.
PIECE = 64
#: Places at most where the vector axis is cut ahead, ...
CUTS = 8
#: ... and operations at most in all segments.
TEXT = 1000


class MapPrinter(KernelPrinter):
    """Parallel axes only."""

    def print_loops(self) -> Units:
        kernel = self.kernel
        vector = kernel.vector
        names: dict[Expr, str] = {}
        if vector is None:
            with self.units([]) as units:
                self._body(kernel.stores, names)
            return units
        outer = [a for a in kernel.axes if a is not vector]
        if not outer:
            units = Units([vector.size], 64)
            self._invariants(vector, names)
            self._vector_loop(vector, "begin", "end", names)
            return units
        hint = kernel.hint
        rows = hint(prod(tuple(a.size for a in outer)))
        transposed = self._tile_axis()
        if transposed is not None:
            units = self._tiled(transposed)
            return units
        blocks = (vector, BLOCK) if rows < 64 and hint(vector.size) >= 2 * BLOCK else None
        with self.units(outer, blocks) as units:
            self._invariants(vector, names)
            first, last = (f"{vector.name}_begin", f"{vector.name}_end") if blocks else ("0", self.size(vector.size))
            self._vector_loop(vector, first, last, names)
        return units

    def _invariants(self, vector: Axis, names: dict[Expr, str]) -> None:
        """Expressions that do not depend on the vector axis are computed in front of its loop."""
        wanted = [e for e in order(self.kernel.roots(), names)]
        uses: set[Expr] = set()
        for expr in wanted:
            if vector in expr.axes:
                uses.update(c for c in children(expr) if vector not in c.axes)
        uses.update(r for r in self.kernel.roots() if vector not in r.axes)
        self.emit([e for e in wanted if e in uses], names)

    def _vector_loop(self, axis: Axis, first: str, last: str, names: dict[Expr, str]) -> None:
        """The loop along the vector axis, one for each segment in which conditions and remainders have one form."""
        places = [0, *self._cuts(axis), axis.size]
        if len(places) == 2:
            self._pieces(axis, (first, last), self.kernel.stores, names)
            return
        for low, high in zip(places, places[1:], strict=False):
            assert isinstance(low, int) and isinstance(high, int)
            here = Segment(axis, low, high)
            stores = [Store(s.value, here.index(s.index), here.expr(s.expr)) for s in self.kernel.stores]
            bounds = str(low), str(high)
            if (first, last) != ("0", self.size(axis.size)):
                bounds = f"({first} < {low} ? {low} : {first})", f"({last} < {high} ? {last} : {high})"
            if high - low >= UNIT:
                self._pieces(axis, bounds, stores, names)
            else:
                with self.text.block(
                    f"for (int64_t {axis.name} = {bounds[0]}; {axis.name} < {bounds[1]}; ++{axis.name})"
                ):
                    self._body(stores, dict(names))

    def _cuts(self, axis: Axis) -> list[int]:
        roots = self.kernel.roots()
        most = min(CUTS, TEXT // max(1, len(order(roots, {}))))
        return cuts(roots, axis, most) if self.kernel.hint(axis.size) >= 2 * UNIT else []

    def _pieces(self, axis: Axis, bounds: tuple[str, str], stores: list[Store], names: dict[Expr, str]) -> None:
        """A loop along the vector axis, by pieces in which quotients stay the same where their places are known only
        as the kernel runs."""
        roots = _roots(stores)

        def loop(first: str, last: str) -> None:
            self.in_lanes(axis, axis.name, (first, last), lambda lane: [], roots, stores, names,
                          lambda inner: self._body(stores, inner))

        first, last = bounds
        wraps = self._wraps(axis, stores, names)
        if not wraps:
            loop(first, last)
            return
        start, stop = f"{axis.name}_from", f"{axis.name}_to"
        with self.text.block(f"for (int64_t {start} = {first}, {stop}; {start} < {last}; {start} = {stop})"):
            self.text.add(f"{stop} = {last};")
            for index, divisor in wraps:
                place, quotient, n = self.fresh("p"), self.fresh("q"), self.size(divisor)
                self.text.add(f"const int64_t {place} = {start} + {self.printer.index(index - of(axis), names)};")
                self.text.add(f"const int64_t {quotient} = {place} / {n};")
                end = f"{start} + ({quotient} + 1) * {n} - {place}"
                self.text.add(f"{stop} = {end} < {stop} ? {end} : {stop};")
                self.printer.quotients[index, divisor] = quotient
            loop(start, stop)
        for wrap in wraps:
            del self.printer.quotients[wrap]

    def _wraps(self, axis: Axis, stores: list[Store], names: dict[Expr, str]) -> list[tuple[Index, Dim]]:
        """Indices along the vector axis that are divided, as `roll` does: between two changes of their quotients places
        in memory lie side by side. None where changes are frequent, or of what only the loop computes."""
        exprs = order(_roots(stores), names)
        pending = [index for index in map(index_of, exprs) if index is not None] + [s.index for s in stores]
        found: dict[tuple[Index, Dim], None] = {}
        while pending:
            for atom, _ in pending.pop().terms:
                if isinstance(atom, Quotient) and axis in atom.index.all_axes():
                    plain = all(isinstance(a, Axis) for a, _ in atom.index.terms)
                    if not plain or atom.index.coefficient(axis) != 1 or self.kernel.hint(atom.divisor) < PIECE:
                        return []
                    found[atom.index, atom.divisor] = None
        return list(found)

    def _body(self, stores: list[Store], names: dict[Expr, str]) -> None:
        self.emit(_roots(stores), names)
        for store in stores:
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

    def _tiled(self, other: Axis) -> Units:
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
                            self.text.add(
                                f"{buffer}[{o} - {o}_begin][{v} - {v}_begin] = {self.printer.value(expr, {})};"
                            )
                with self.text.block(f"for (int64_t {o} = {o}_begin; {o} < {o}_end; ++{o})"):
                    names = {e: f"{b}[{o} - {o}_begin][{v} - {v}_begin]" for e, b in buffers.items()}
                    self._invariants(vector, names)
                    self._vector_loop(vector, f"{v}_begin", f"{v}_end", names)
        return units


def _roots(stores: list[Store]) -> list[Expr]:
    """The expressions that the stores need, their places included."""
    return [s.expr for s in stores] + [e for s in stores for e in index_expressions(s.index)]
