"""Rows and columns that the programs of a cluster share: neighbours in the grid that run at the same time, each of
which reduces a part.

What a program finds it writes to scratch memory; then all wait for the cluster, and each combines the parts of all. A
long row stays in registers that way, many programs share a multiprocessor, so that some load while others store, and a
column needs no second launch.
"""

from __future__ import annotations

from ...ir.spec import prod
from ...schedule.expr import walk
from ...schedule.loops import Kernel, Reduce
from .emitter import KernelText
from .reductions import ReductionEmitter, is_inner, stages_of
from .tiles import Launch


class ClusterEmitter(ReductionEmitter):
    """Reductions over the tile `r`, of which each program has a part; adds the scratch memory that it needs."""

    def __init__(self, kernel: Kernel, launch: Launch, stem: str, scratch: list[int]) -> None:
        super().__init__(kernel, launch, stem)
        self.scratch_bytes = scratch

    def shared(self) -> KernelText:
        """The one launch."""
        return self._rows() if self.launch.held else self._columns()

    def _rows(self) -> KernelText:
        """Each program holds its part of a row in registers. Stores come behind the last barrier."""
        kernel, stages = self.kernel, stages_of(self.kernel)
        self.begin_program(self.launch.cluster, neighbours=True)
        self.hold([e for e in walk(kernel.roots()) if e.op == "load" and set(kernel.axes) <= e.axes])
        inner = [s for s in kernel.stores if is_inner(s)]
        for stage in range(stages):
            reductions = [r for r in kernel.reductions if kernel.stage[r.expr] == stage]
            stores = inner if stage == stages - 1 else []
            if reductions or stores:
                found = self.in_stage(reductions, stores, "0", self.size(self.r.size))
                if found:
                    self._hand_in(found)
                    self._combine(list(found))
        self._store_results()
        return self._finish()

    def _columns(self) -> KernelText:
        """Each program walks its part of some columns; one of them stores what all have found."""
        kernel, size = self.kernel, self.launch.cluster
        self.begin_program(size, neighbours=True)
        inner = [s for s in kernel.stores if is_inner(s)]
        self._hand_in(self.in_stage(kernel.reductions, inner, *self.share(size)))
        with self.block("if part == 0:"):
            self._combine(kernel.reductions)
            self.stores([s for s in kernel.stores if not is_inner(s)])
        return self._finish()

    def _finish(self) -> KernelText:
        return self.finish((self.launch.cluster * prod(tuple(t.count for t in self.launch.tiles)),))

    def _store_results(self) -> None:
        """What has one element a row is stored by one program."""
        results = [s for s in self.kernel.stores if not is_inner(s)]
        if results:
            with self.block("if part == 0:"):
                self.stores(results)

    def _hand_in(self, found: dict[Reduce, list[str]]) -> None:
        """Write what this program has found, and wait for the others."""
        (x,) = self.launch.tiles
        self._first_area = len(self.scratch_bytes)
        for reduction, names in found.items():
            for name, dtype in zip(names, self.kept(reduction), strict=True):
                pointer = self.scratch(len(self.scratch_bytes), dtype)
                self.write(pointer, self._place("part"), name, self.masks([x]))
                assert type(x.size) is int
                self.scratch_bytes.append(self.launch.cluster * x.size * dtype.itemsize)
        self.add("wait_for_cluster()")

    def _combine(self, reductions: list[Reduce]) -> None:
        """Name the results of reductions, from the parts of all programs: read from the second level cache, which all
        multiprocessors share."""
        (x,) = self.launch.tiles
        masks = self.masks([x])
        self.add(f"p = tl.arange(0, {self.launch.cluster}){self.shape_suffix(self.r)}")
        number = self._first_area
        for reduction in reductions:
            running = []
            for dtype in self.kept(reduction):
                name = self.fresh("part_of_all")
                mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
                pointer = self.scratch(number, dtype)
                self.add(f'{name} = tl.load({pointer} + ({self._place("p")}){mask}, cache_modifier=".cg")')
                running.append(name)
                number += 1
            self.conclude(reduction, self.fold(reduction, running))

    def _place(self, part: str) -> str:
        """Where a part's results are in scratch memory: what is read together lies together."""
        (x,) = self.launch.tiles
        if x.block == 1:
            return f"{x.name} * {self.launch.cluster} + {part}"
        return f"{part} * {self.size(x.size)} + {x.name}"
