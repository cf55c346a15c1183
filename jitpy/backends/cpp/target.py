"""The CPU as a target: kernels as one C++ file, compiled to one library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from jitpy import config

from ...ir.algebra import sympy
from ...ir.graph import Graph
from ...ir.spec import Dim
from ...runtime.compiler import load_text_cached
from ...runtime.plan import CallStep, KernelStep, Size, Step, Workspace
from ...schedule.fuse import Limits
from ...schedule.loops import Kernel
from ...schedule.values import Value
from ..size_table import SizeTable
from ..target import Linked, Pointer, Printed
from .codegen import print_kernel
from .flags import compiler_flags
from .prelude import assemble

#: Points from which a kernel that reduces rows reduces their columns as well.
CROSSED_POINTS = 1 << 16


@dataclass(slots=True)
class _Function(Printed):
    """A printed function; `checks` says whether it looks for indices out of range."""

    checks: bool = False


class CppTarget:
    """The C++ backend's part of a plan."""

    backend = "cpp"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.limits = Limits(crossed_points=CROSSED_POINTS, float8=True)
        self._functions: dict[str, str] = {}
        self._bodies: list[str] = []
        self._steps: list[tuple[KernelStep, str]] = []
        self._checks: list[CallStep] = []

    def product_choice(self, graph: Graph) -> None:
        """None: the library's kernels know the processor's caches."""

    def print_kernel(
        self, kernel: Kernel, size_index: Callable[[sympy.Expr], int], in_place: dict[Value, Value]
    ) -> Printed:
        """The kernel as a C++ function; equal ones are printed once."""
        text = print_kernel(kernel, size_index, config.threads_grain, in_place)
        code = "\n".join(line for line in text.body.split("\n") if not line.startswith("//"))
        name = self._functions.get(code)
        if name is None:
            name = self._functions[code] = f"kernel{len(self._functions)}"
            self._bodies.append(text.body.replace("{name}", name))
        return _Function(name, text.operands, checks=any(e.op == "check" for e in kernel.stage))

    def steps(
        self,
        printed: Printed,
        pointers: Mapping[Value, Pointer],
        scratch: list[Workspace],
        size: Callable[[Dim], Size],
        writes: tuple[int, ...],
    ) -> list[Step]:
        """A call of the function and, where it checks indices, a step that raises."""
        assert isinstance(printed, _Function)
        step = KernelStep(0, tuple(pointers[value] for value in printed.operands), printed.title, writes)
        self._steps.append((step, printed.function))
        if not printed.checks:
            return [step]
        check = CallStep(_not_linked, (), {}, ())
        self._checks.append(check)
        return [step, check]

    def text(self, table: SizeTable) -> str:
        """The C++ file with every kernel; '' where there is none."""
        if not self._bodies:
            return ""
        body = "\n".join(self._bodies)
        if len(table):
            body += "\n" + table.c_functions("sizes") + "\n"
        if self._checks:
            body = body + "// index_error\n"
        return assemble(body, config.simd != "scalar")

    def link(self, table: SizeTable) -> Linked:
        """Compile the file, and put the functions' addresses into the steps. Raises CompilerError."""
        text = self.text(table)
        if not text:
            return Linked()
        library = load_text_cached(text, compiler_flags(config.simd))
        for step, name in self._steps:
            step.address = _address(library, name)
        table.link("sizes", lambda name: _address(library, name))
        for check in self._checks:
            check.function = _IndexCheck(library)
        return Linked(_address(library, "sizes") if len(table) else 0, [library])


def _not_linked() -> None:
    raise AssertionError("the index check runs before its library is loaded")


class _IndexCheck:
    """Raises IndexError if a kernel met an index out of range."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.flag = ctypes.c_int64.in_dll(library, "index_error")

    def __call__(self) -> None:
        if self.flag.value:
            self.flag.value = 0
            raise IndexError("index out of range in self")


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address
