"""Batches: one body for many sets of tensors, and a launch that shares out all their elements."""

from __future__ import annotations

from ...ir.spec import prod
from .emitter import KernelText, Text
from .maps import MapPrinter


class BatchPrinter(MapPrinter):
    """The first kernel's loop is printed once; pointers come in as many sets as there are kernels."""

    def print(self) -> KernelText:
        """The kernel's text: a function for a slice of one set, and one that walks the sets."""
        batch = self.kernel
        first, *others = batch.parts
        operands = [value for part in batch.parts for value in (*part.reads, *part.writes)]
        width = len(first.reads) + len(first.writes)
        shared = {k % width for k, value in enumerate(operands)
                  if value in self.in_place or value in self.in_place.values()}
        printer = MapPrinter(first, self.size_index, self.grain)
        printer.in_place = {printer.operands[k]: printer.operands[k] for k in shared}
        printer.text = Text(depth=1)
        printer.print_loops()
        head = Text()
        self.comment(head)
        printer.function(head, "part", set(printer.operands), printer.text.lines)
        counts = [self.size(prod(tuple(axis.size for axis in part.axes))) for part in batch.parts]
        points = sum((part.points for part in others), first.points)
        many = f"{self.size(points)} >= {max(1, 2 * self.grain // printer.work())}"
        with head.block('extern "C" void {name}(void* const* ptr, const int64_t* sz)'):
            self.unpack(head, set())
            head.add(f"const int64_t counts[] = {{{', '.join(counts)}}};")
            head.add(f"run_batch({len(counts)}, {width}, counts, {many}, {{name}}_part, ptr, sz);")
        return KernelText("\n".join(head.lines) + "\n", operands)
