"""Additions and writes at computed places. Threads share the axes along which no place repeats, so that results do not
depend on their number."""

from __future__ import annotations

from ...ir.spec import prod
from ...schedule.expr import Expr, children, index_expressions, order
from ...schedule.index import Axis
from .emitter import KernelPrinter, KernelText, Text, Units

#: Neighbouring columns are shared out in multiples of this.
COLUMNS = 16
#: Elements below which one thread fills the result.
FILLED_ALONE = 1 << 16


class ScatterPrinter(KernelPrinter):
    """Zeros or what the sums start from first, then the sums, in the order of the source."""

    def print(self) -> KernelText:
        store = self.kernel.stores[0]
        self.text = Text(depth=1)
        self.begin_checks()
        units = self.print_loops()
        self.end_checks()
        lines = self.text.lines
        numel = store.value.numel
        count, total, condition = self.size(units.count), self.size(numel), self.condition()
        large = self.kernel.hint(numel) >= FILLED_ALONE
        head = Text()
        self.comment(head)
        out = self.parameters[store.value]
        start = self.kernel.start
        size = f"(end - begin) * {store.value.dtype.itemsize}"
        filled = start is not None and self.in_place.get(store.value) is start
        if not filled:
            text = f"memset({out} + begin, 0, {size})"
            if start is not None:
                text = f"memcpy({out} + begin, {self.parameters[start]} + begin, {size})"
            used = {store.value} if start is None else {store.value, start}
            self.function(head, "fill", used, [f"  __builtin_{text};"])
        self.function(head, "part", set(self.operands), lines)
        with head.block('extern "C" void {name}(void* const* ptr, const int64_t* sz)'):
            self.unpack(head, set())
            if not filled:
                head.add(f"run_parts({total}, 64, {'true' if large else 'false'}, {{name}}_fill, ptr, sz);")
            head.add(f"run_parts({count}, {units.align}, {condition}, {{name}}_part, ptr, sz);")
        return self.finished(head)

    def print_loops(self) -> Units:
        kernel = self.kernel
        vector = kernel.vector
        others = [a for a in kernel.parallel if a is not vector]
        if vector is not None and not others:
            units = Units([vector.size], COLUMNS)
            with self.loops(kernel.reduced):
                self._columns(vector, "begin", "end")
            return units
        if prod(tuple(a.size for a in kernel.parallel)) == 1:
            units = Units([1])
            with self.text.block("if (begin < end)"), self.loops(kernel.reduced):
                self._add({})
            return units
        with self.units(others) as units, self.loops(kernel.reduced):
            if vector is None:
                self._add({})
            else:
                self._columns(vector, "0", self.size(vector.size))
        return units

    def _columns(self, vector: Axis, first: str, last: str) -> None:
        """One line of neighbours; what they share is computed in front."""
        roots = self._roots()
        needed = order(roots, {})
        inner = {e for e in needed if vector in e.axes}
        shared = [e for e in needed if e not in inner and (e in roots or any(e in children(i) for i in inner))]
        names: dict[Expr, str] = {}
        self.emit(shared, names)
        self.simd()
        with self.text.block(f"for (int64_t {vector.name} = {first}; {vector.name} < {last}; ++{vector.name})"):
            self._add(names)

    def _roots(self) -> list[Expr]:
        store = self.kernel.stores[0]
        return [store.expr, *index_expressions(store.index)]

    def _add(self, known: dict[Expr, str]) -> None:
        store = self.kernel.stores[0]
        names = dict(known)
        self.emit(self._roots(), names)
        place = self.fresh("p")
        self.text.add(f"const int64_t {place} = {self.printer.index(store.index, names)};")
        value = self.printer.ref(store.expr, names)
        if self.kernel.adds:
            value = f"{self.load(store.value, place)} + {value}"
        self.text.add(f"{self.parameters[store.value]}[{place}] = {self.stored(store.value, value)};")
