"""The part that a kind of device adds to the shared planner: how kernels are printed, compiled and called."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..ir.algebra import sympy
from ..ir.graph import Graph
from ..ir.spec import Dim, TensorSpec
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
    """The result of compiling: the address of the size function (0: none) and what must live as long as the plan."""

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


class Generator(Protocol):
    """A code generator for one graph without gradients, and for the halves of one with them. Its methods raise
    NotCovered for what is left to eager kernels."""

    #: whether kernels compile elsewhere, so that those of a backward half may begin early
    begins_early: bool

    def prepare(self, graph: Graph) -> None:
        """Change the graph as the device wants it, before gradients are made."""
        ...

    def begin(self, graph: Graph) -> Callable[[], Callable[..., tuple[Any, ...]]]:
        """Plan a graph without gradients, whose kernels begin to compile; what is returned waits for them."""
        ...


def device_of(graph: Graph) -> torch.device | None:
    """The device that a graph's kernels run on (the CPU where it has no tensors); None for several.

    Programs for a GPU have some tensors on the CPU, such as numbers and an optimizer's counts of steps: what reads
    those is called op by op. Where these need gradients, the graph is left to torch.
    """
    specs = [spec for node in graph.all_nodes()
             for spec in (node.spec if isinstance(node.spec, tuple) else (node.spec,)) if isinstance(spec, TensorSpec)]
    devices = {spec.device: None for spec in specs}
    if len(devices) < 2:
        return next(iter(devices), torch.device("cpu"))
    others = [device for device in devices if device.type != "cpu"]
    if len(others) > 1 or others[0].type != "cuda":
        return None
    return None if any(spec.requires_grad and spec.device != others[0] for spec in specs) else others[0]


_warned: set[str] = set()


def warn_once(text: str, about: str = "") -> None:
    """Warn the user, once for each text (or what it is `about`)."""
    if (about or text) not in _warned:
        _warned.add(about or text)
        warnings.warn(f"jitpy: {text}", RuntimeWarning, stacklevel=3)


__all__ = ["Generator", "Linked", "Pointer", "Printed", "Target", "device_of", "warn_once"]
