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
from .flex import FlexGradientPrinter, FlexPrinter
from .maps import MapPrinter
from .rows import CrossedPrinter, RowPrinter
from .scans import ScanPrinter
from .scatters import ScatterPrinter
from .whole import WholePrinter

#: By style; other kernels reduce rows, and perhaps their columns as well.
_PRINTERS: dict[str, type[KernelPrinter]] = {"map": MapPrinter, "batch": BatchPrinter, "scan": ScanPrinter,
                                             "scatter": ScatterPrinter, "columns": ColumnPrinter, "flex": FlexPrinter}


def print_kernel(
    kernel: Kernel, size_index: Callable[[sympy.Expr], int], grain: int, in_place: dict[Value, Value] | None = None
) -> KernelText:
    """The text of a kernel; see `KernelPrinter` for the arguments."""
    kind = _PRINTERS.get(kernel.style) or (CrossedPrinter if kernel.columns else RowPrinter)
    if kernel.attention is not None and kernel.attention.gradients is not None:
        kind = FlexGradientPrinter
    printer = kind(kernel, size_index, grain, in_place)
    if type(printer) is ColumnPrinter and ChunkedColumnPrinter.fits(kernel, printer):
        printer = ChunkedColumnPrinter(kernel, size_index, grain, in_place)
    if type(printer) is RowPrinter and WholePrinter.fits(kernel, printer):
        printer = WholePrinter(kernel, size_index, grain, in_place)
    return printer.print()
