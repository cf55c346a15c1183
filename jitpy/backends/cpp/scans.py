"""Running combinations along an axis: cumulative sums and products."""

from __future__ import annotations

import torch

from ...schedule.expr import Expr
from .columns import ColumnPrinter
from .emitter import Units
from .prelude import TYPES
from .reductions import combine_text, initial

#: Neighbouring scans that run side by side.
WIDTH = 256


class ScanPrinter(ColumnPrinter):
    """A running value per point of the parallel axes; float sums in float64, as eager has them."""

    def print_loops(self) -> Units:
        """A running value per point of the parallel axes; neighbouring ones side by side where memory allows."""
        kernel = self.kernel
        reduction, store = kernel.reductions[0], kernel.stores[0]
        along = kernel.reduced[0]
        dtype = torch.float64 if reduction.dtype.is_floating_point else reduction.dtype
        result = TYPES[reduction.result.dtype]
        vector = kernel.vector
        others = [a for a in kernel.parallel if a is not vector]
        if vector is None:
            with self.units(others) as units:
                name = self.fresh("a")
                self.text.add(f"{TYPES[dtype]} {name} = {initial(reduction.kind, dtype)};")
                with self.loop(along):
                    names: dict[Expr, str] = {}
                    self.emit([reduction.expr], names)
                    self.text.add(combine_text(reduction.kind, name, self.printer.ref(reduction.expr, names)))
                    names[reduction.result] = f"({result}){name}"
                    self.store(store.value, store.index, store.expr, names)
        else:
            with self.units(others, (vector, WIDTH)) as units:
                self.text.add(f"const int64_t lanes = {vector.name}_end - {vector.name}_begin;")
                lanes = self.declare_lanes(reduction, dtype, str(WIDTH), 0)
                with self.loop(along):
                    self.simd()
                    with self.lane_loop(vector):
                        names = {}
                        self.emit([reduction.expr], names)
                        self.text.add(
                            combine_text(reduction.kind, f"{lanes.name}[l]", self.printer.ref(reduction.expr, names))
                        )
                        names[reduction.result] = f"({result}){lanes.name}[l]"
                        self.store(store.value, store.index, store.expr, names)
        return units
