"""One stage that reduces everything: chunks of fixed length on all threads, then their results in order."""

from __future__ import annotations

import contextlib

import torch

from ...ir.spec import prod
from ...schedule.loops import Kernel, Reduce
from .emitter import KernelText, Text, ceil_div
from .prelude import TYPES
from .reductions import Lanes, ReductionPrinter, combine_text, initial

#: Points of a chunk.
CHUNK = 16384


class WholePrinter(ReductionPrinter):
    """Partial results, one per chunk, in arrays of 8 bytes each: values, then positions for arg-reductions."""

    @staticmethod
    def fits(kernel: Kernel, printer: ReductionPrinter) -> bool:
        """Whether the kernel is of this kind, and large enough to be shared among threads."""
        if kernel.parallel or not kernel.reduced or printer.stages() > 1 or any(map(printer.is_inner, kernel.stores)):
            return False
        return kernel.hint(kernel.points) >= 4 * CHUNK

    def print(self) -> KernelText:
        """The kernel's text: a function for chunks, and one that calls it and combines their results."""
        kernel = self.kernel
        first, others = kernel.reduced[0], kernel.reduced[1:]
        per_row = kernel.hint(prod(tuple(a.size for a in others)))
        chunk = max(1, CHUNK // per_row)
        count = self.size(ceil_div(first.size, chunk))
        pointer = len(self.operands)
        partial = f"char* const partial = (char*)ptr[{pointer}];"

        self.text = Text(depth=1)
        self.text.add(f"const int64_t count = {count};")
        self.text.add(partial)
        self._arrays()
        self.begin_checks()
        with self.text.block("for (int64_t chunk = begin; chunk < end; ++chunk)"):
            f, n = first.name, self.size(first.size)
            self.text.add(f"const int64_t {f}_first = chunk * {chunk};")
            self.text.add(f"const int64_t {f}_last = {f}_first + {chunk} < {n} ? {f}_first + {chunk} : {n};")
            self._reduce_chunk()
        self.end_checks()
        chunk_lines = self.text.lines

        self.text = Text(depth=1)
        outer = {r.result: self._combine_partials(k, r) for k, r in enumerate(kernel.reductions)}
        self.outer_stores(outer)
        combine_lines = self.text.lines
        condition = self.condition()

        head = Text()
        self.comment(head)
        self.function(head, "part", set(kernel.reads), chunk_lines)
        with head.block('extern "C" void {name}(void* const* args, const int64_t* sz)'):
            self.unpack(head, set(self.operands), "args")
            head.add(f"const int64_t count = {count};")
            self.extend_pointers(head, f"{8 * len(self._types())} * count")
            head.add(partial)
            self.text = head
            self._arrays()
            head.add(f"run_parts(count, 1, {condition}, {{name}}_part, ptr, sz);")
            head.lines.extend(combine_lines)
        return self.finished(head)

    def _types(self) -> list[tuple[str, str]]:
        """Name and C++ type of each array of partial results."""
        found = []
        for k, reduction in enumerate(self.kernel.reductions):
            if reduction.kind in ("any", "all"):
                kind = "int32_t"
            elif reduction.kind in ("sum", "prod") and reduction.dtype is torch.float32:
                kind = "double"
            else:
                kind = TYPES[reduction.dtype]
            found.append((f"p{k}", kind))
            if reduction.kind.startswith("arg"):
                found.append((f"p{k}p", "int64_t"))
        return found

    def _arrays(self) -> None:
        for k, (name, kind) in enumerate(self._types()):
            self.text.add(f"{kind}* const {name} = ({kind}*)(partial + {8 * k} * count);")

    def _reduce_chunk(self) -> None:
        kernel = self.kernel
        first, others = kernel.reduced[0], kernel.reduced[1:]
        vector = kernel.reduced[-1]
        f, v = first.name, vector.name
        dtypes = [self.accumulator(r) for r in kernel.reductions]
        lanes = self.lane_count(CHUNK, dtypes)
        length = kernel.points if isinstance(kernel.points, int) else 1 << 40
        running = [self.declare_lanes(r, d, str(lanes), length) for r, d in zip(kernel.reductions, dtypes, strict=True)]
        with contextlib.ExitStack() as stack:
            start, stop = f"{f}_first", f"{f}_last"
            if others:
                stack.enter_context(self.text.block(f"for (int64_t {f} = {f}_first; {f} < {f}_last; ++{f})"))
                stack.enter_context(self.loops(others[:-1]))
                start, stop = "0", self.size(vector.size)
            self.text.add(f"int64_t {v}_block = {start};")
            with self.text.block(f"for (; {v}_block + {lanes} <= {stop}; {v}_block += {lanes})"):
                self._vector_loop(str(lanes), lanes, running)
            self._vector_loop(f"{stop} - {v}_block", lanes, running)
        for k, (reduction, lane) in enumerate(zip(kernel.reductions, running, strict=True)):
            folded = self.fold(reduction, lane, lanes)
            if reduction.kind.startswith("arg"):
                self.text.add(f"p{k}[chunk] = {lane.name}[0];")
                self.text.add(f"p{k}p[chunk] = {folded};")
            else:
                self.text.add(f"p{k}[chunk] = {folded};")

    def _vector_loop(self, count: str, lanes: int, running: list[Lanes]) -> None:
        kernel = self.kernel
        v = kernel.reduced[-1].name
        roots = [r.expr for r in kernel.reductions]

        def place(lane: str) -> list[str]:
            return [f"const int64_t {v} = {v}_block + {lane};"]

        with self.lanes(kernel.reduced[-1], "l", place, count, lanes, roots, [], {}) as names:
            self.emit(roots, names)
            for reduction, lane in zip(kernel.reductions, running, strict=True):
                self.combine(reduction, lane, "l", self.printer.ref(reduction.expr, names), names)

    def _combine_partials(self, k: int, reduction: Reduce) -> str:
        name = self.fresh("s")
        kind = dict(self._types())[f"p{k}"]
        result = TYPES[reduction.result.dtype]
        if reduction.kind.startswith("arg"):
            sign = ">" if reduction.kind == "argmax" else "<"
            self.text.add(f"{kind} {name}v = p{k}[0];")
            self.text.add(f"int64_t {name} = p{k}p[0];")
            with self.text.block("for (int64_t k = 1; k < count; ++k)"):
                self.text.add(f"const {kind} v = p{k}[k];")
                with self.text.block(f"if ((v {sign} {name}v) | ((v != v) & ({name}v == {name}v)))"):
                    self.text.add(f"{name}v = v;")
                    self.text.add(f"{name} = p{k}p[k];")
            return name
        dtype = {"double": torch.float64, "int32_t": torch.int32}.get(kind, reduction.dtype)
        self.text.add(f"{kind} {name}a = {initial(reduction.kind, dtype)};")
        self.text.add(f"for (int64_t k = 0; k < count; ++k) {combine_text(reduction.kind, f'{name}a', f'p{k}[k]')}")
        self.text.add(f"const {result} {name} = ({result}){name}a;")
        return name
