"""What a kind of device adds to the shared planner: how kernels are printed, compiled and called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..ir.algebra import sympy
from ..ir.graph import Graph
from ..ir.spec import Dim
from ..runtime.plan import Size, SlotRef, Step, Workspace
from ..schedule.fuse import Limits
from ..schedule.loops import Kernel
from ..schedule.products import Choice
from ..schedule.values import Value
from .size_table import SizeTable

#: Where an operand of a kernel is.
Pointer = SlotRef | Workspace


@dataclass(slots=True)
class Printed:
    """A kernel of the graph as source. `function` names it in the source, `title` in profiles; `operands` are in the
    order of its parameters; `scratch` is the memory, in bytes, that it needs for itself (one entry an area)."""

    function: str
    operands: list[Value]
    scratch: tuple[int, ...] = ()
    title: str = ""


@dataclass(slots=True)
class Linked:
    """What compiling gave: the address of the size function (0: none) and what must live as long as the plan."""

    size_function: int = 0
    keep_alive: list[Any] = field(default_factory=list)


class Target(Protocol):
    """One target serves one graph: it gathers what is printed and compiles it at the end."""

    #: as `Pass.backend` has it
    backend: str
    device: torch.device
    limits: Limits

    def product_choice(self, graph: Graph) -> Choice | None:
        """Which matrix products of a graph become kernels; None: none do."""
        ...

    def print_kernel(
        self, kernel: Kernel, size_index: Callable[[sympy.Expr], int], in_place: dict[Value, Value]
    ) -> Printed:
        """Print one kernel; equal ones share a function. `size_index` is the number of a size in the size table,
        `in_place` the values written that share their memory with one that is read."""
        ...

    def steps(
        self,
        printed: Printed,
        pointers: Mapping[Value, Pointer],
        scratch: list[Workspace],
        size: Callable[[Dim], Size],
        writes: tuple[int, ...],
    ) -> list[Step]:
        """The steps that run the kernel once; `writes` are the slots of inputs that it writes to. A CallStep among
        them gets its slot from the planner."""
        ...

    def text(self, table: SizeTable) -> str:
        """All kernels' source; '' where there is none."""
        ...

    def link(self, table: SizeTable) -> Linked:
        """Compile everything and complete the steps. Raises CompilerError."""
        ...


__all__ = ["Linked", "Pointer", "Printed", "Target"]
