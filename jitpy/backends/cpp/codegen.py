"""Kernels as C++ text: each style of loop nest has its printer.

The text is plain C++17 with `#pragma omp simd` on the inner loops: no intrinsics, no torch headers.
"""

from __future__ import annotations

from collections.abc import Callable

from ...ir.algebra import sympy
from ...schedule.loops import Kernel
from ...schedule.values import Value
from .batches import BatchPrinter
from .columns import ChunkedColumnPrinter, ColumnPrinter
from .emitter import KernelPrinter, KernelText
from .maps import MapPrinter
from .rows import CrossedPrinter, RowPrinter
from .scans import ScanPrinter
from .scatters import ScatterPrinter
from .whole import WholePrinter


def print_kernel(
    kernel: Kernel, size_index: Callable[[sympy.Expr], int], grain: int, in_place: dict[Value, Value] | None = None
) -> KernelText:
    """The text of a kernel; see `KernelPrinter` for the arguments."""
    printer: KernelPrinter
    if kernel.style == "map":
        printer = MapPrinter(kernel, size_index, grain, in_place)
    elif kernel.style == "batch":
        printer = BatchPrinter(kernel, size_index, grain, in_place)
    elif kernel.style == "scan":
        printer = ScanPrinter(kernel, size_index, grain, in_place)
    elif kernel.style == "scatter":
        printer = ScatterPrinter(kernel, size_index, grain, in_place)
    elif kernel.style == "columns":
        printer = ColumnPrinter(kernel, size_index, grain, in_place)
        if ChunkedColumnPrinter.fits(kernel, printer):
            printer = ChunkedColumnPrinter(kernel, size_index, grain, in_place)
    elif kernel.columns:
        printer = CrossedPrinter(kernel, size_index, grain, in_place)
    else:
        printer = RowPrinter(kernel, size_index, grain, in_place)
        if WholePrinter.fits(kernel, printer):
            printer = WholePrinter(kernel, size_index, grain, in_place)
    return printer.print()
