"""GPUs as targets: one Triton module a kernel, launched by the plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from ...ir.algebra import sympy
from ...ir.graph import Graph
from ...ir.spec import Dim
from ...runtime.gpu.kernel import GpuKernel
from ...runtime.gpu.load import has_clusters, has_float8
from ...runtime.plan import LaunchStep, Size, SizeRef, SlotRef, Step, Workspace
from ...schedule.fuse import Limits
from ...schedule.loops import Kernel
from ...schedule.products import Choice
from ...schedule.values import Value
from ..size_table import SizeTable
from ..target import Linked, Pointer, Printed
from .batches import print_batch, print_beside
from .crossed import print_crossed
from .emitter import KernelText, Partial, Program, comment_lines
from .flex import print_flex
from .maps import print_map
from .measured import MeasuredChoice
from .products import print_product
from .reductions import print_reduction
from .scans import print_scan
from .scatters import print_scatter
from .tiles import LONGEST_AHEAD

#: Kernels pay for arithmetic late, and need many programs. Small tensors made ahead for others stay in the cache.
LIMITS = Limits(few_rows=64, side_by_side=64, bytes_per_operation=0.05, bytes_per_kernel=1 << 22, cost=80,
                scatters="unordered", batch_operands=192, batch_result=1 << 21, crossed_points=1 << 24,
                crossed_rows=1024, crossed_bytes=1 << 16, crossed_columns=LONGEST_AHEAD)


def print_program(kernel: Kernel, in_place: dict[Value, Value], tune: bool = False, clusters: bool = False) -> Program:
    """A loop nest as launches, with `tune` also other launches to choose from, and with `clusters` for a GPU that has
    those. Raises NotCovered for operations that Triton lacks."""
    if kernel.style == "batch":
        return print_batch(kernel)
    if kernel.style == "beside":
        return print_beside(kernel, [print_program(part, in_place, tune, clusters) for part in kernel.parts])
    if kernel.style == "scan":
        return print_scan(kernel)
    if kernel.style == "product":
        return print_product(kernel, tune, clusters)
    if kernel.style == "flex":
        return print_flex(kernel)
    if kernel.style == "scatter":
        return print_scatter(kernel, in_place)
    if kernel.columns:
        return print_crossed(kernel)
    return print_reduction(kernel, tune, clusters) if kernel.reductions else print_map(kernel, tune)


@dataclass(slots=True)
class _Launches(Printed):
    """A printed kernel: its launches in order."""

    program: Program = field(default_factory=Program)


class TritonTarget:
    """The Triton backend's part of a plan for one device. With `tune`, launches have candidates to measure."""

    backend = "triton"

    def __init__(self, device: torch.device, tune: bool = False, products: str | None = None) -> None:
        """`products`: which matrix products become kernels: "all", "some" that pay, those that are "measured" to be
        faster, or "none"; None: by the device, as costs are known for Hopper only."""
        self.device = device
        usual = "none" if device.type != "cuda" or torch.version.hip else "measured" if tune else \
            "some" if torch.cuda.get_device_capability(device) == (9, 0) else "none"
        self.products = products or usual
        self.tune = tune
        self.clusters = has_clusters(device)
        self.limits = replace(LIMITS, float8=has_float8(device))
        #: whether a launch is in front: the first one waits for all that is, since later ones may read inputs early
        self._begun = False
        self._texts: dict[str, list[str]] = {}
        #: the text of each kernel, by what it is but for the names of values
        self._same: dict[str, str] = {}
        self.kernels: dict[GpuKernel, None] = {}

    def product_choice(self, graph: Graph) -> Choice | None:
        """Products whose costs are known for the device, or all that templates can compute."""
        if self.products == "measured":
            return MeasuredChoice(graph, measures=True)
        return None if self.products == "none" else Choice(graph, always=self.products == "all")

    def print_kernel(
        self, kernel: Kernel, size_index: Callable[[sympy.Expr], int], in_place: dict[Value, Value]
    ) -> Printed:
        """The kernel as Triton functions; equal ones are printed once."""
        program = print_program(kernel, in_place, self.tune, self.clusters)
        for text in itertools.chain(program.launches, *program.variations):
            text.source = self._same.setdefault(text.anonymous, text.source)
        for text in program.launches:
            if text.source not in self._texts:
                self._texts[text.source] = comment_lines(kernel, text)
        operands = [*kernel.reads, *kernel.writes]
        return _Launches(program.launches[0].name, operands, tuple(program.scratch), program=program)

    def steps(
        self,
        printed: Printed,
        pointers: Mapping[Value, Pointer],
        scratch: list[Workspace],
        size: Callable[[Dim], Size],
        writes: tuple[int, ...],
    ) -> list[Step]:
        """A launch for each function."""
        assert isinstance(printed, _Launches)
        found: list[Step] = []
        program = printed.program
        for number, text in enumerate(program.launches):
            arguments: list[SlotRef | Workspace | SizeRef | int | float] = []
            for parameter in text.parameters:
                if isinstance(parameter, Partial):
                    arguments.append(scratch[parameter.number])
                elif isinstance(parameter, Value):
                    arguments.append(pointers[parameter])
                else:
                    arguments.append(size(parameter))
            kernel = _gpu_kernel(text, self._begun)
            self.kernels[kernel] = None
            grid = tuple(size(n) for n in text.grid)
            others = program.variations[number] if number < len(program.variations) else []
            candidates = {_gpu_kernel(other, self._begun): tuple(size(n) for n in other.grid) for other in others}
            candidates.pop(kernel, None)
            self._begun |= all(type(n) is int and n > 0 for n in grid)  # others may be none
            name = f"{printed.title} [{number + 1}]" if number else printed.title
            found.append(LaunchStep(kernel, grid, tuple(arguments), name, writes,
                                    candidates=tuple(candidates.items())))
        return found

    def text(self, table: SizeTable) -> str:
        """Every kernel's module, with what it is for."""
        return "\n\n".join("\n".join([*comments, source]) for source, comments in self._texts.items())

    def link(self, table: SizeTable) -> Linked:
        """Nothing: kernels are compiled by the runtime."""
        return Linked()


def _gpu_kernel(text: KernelText, overlaps: bool) -> GpuKernel:
    """The kernel that the runtime compiles. Memory of tensors starts at multiples of 16 bytes, as a rule; launches
    check it."""
    divisible = text.divisible.union(name for name, kind in text.signature if kind.startswith("*"))
    return GpuKernel(text.source, text.name, tuple(text.signature), divisible=divisible, num_warps=text.warps,
                     fp_fusion=text.short, checks=text.checks, flush_tiny=text.short,
                     max_registers=text.registers, overlaps=overlaps, cluster=text.cluster,
                     num_stages=text.stages)
