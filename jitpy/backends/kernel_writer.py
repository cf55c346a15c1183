"""The base of the kernel printers: names of operands and sizes, operators, index expressions.

C++ (`cpp/emitter.py`) and Triton (`triton/emitter.py`) differ in how a kernel's points are shared out, and in how
memory is read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..ir.algebra import sympy
from ..ir.spec import Dim
from ..schedule.loops import Kernel

#: Operators on scalars that both languages write alike.
OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "logical_and": "&",
    "logical_or": "|",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}


class KernelWriter:
    """The names in a kernel's text. `parameters` are operands by name, and what a target adds to them."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.parameters: dict[Any, str] = {value: f"in{k}" for k, value in enumerate(kernel.reads)}
        self.parameters.update((value, f"out{k}") for k, value in enumerate(kernel.writes))
        self.sizes: dict[sympy.Expr, str] = {}

    def size(self, size: Dim) -> str:
        """A size as text; symbolic ones have names."""
        if isinstance(size, int) or size.is_Integer:
            return self.number(int(size))
        return self.sizes.setdefault(size, f"n{len(self.sizes)}")

    def number(self, number: int) -> str:
        """A size that is known."""
        return str(number)


def sum_of(terms: Iterable[tuple[str, Dim]], const: Dim, size: Callable[[Dim], str]) -> str:
    """The sum of atoms, each times its step, and a constant."""
    parts = [_term(text, step, size) for text, step in terms]
    if not (type(const) is int and const == 0) or not parts:
        parts.append(size(const))
    text = parts[0]
    for part in parts[1:]:
        text += f" - {part[1:]}" if part.startswith("-") else f" + {part}"
    return text


def _term(text: str, step: Dim, size: Callable[[Dim], str]) -> str:
    if type(step) is int:
        return text if step == 1 else f"-{text}" if step == -1 else f"{text} * {step}"
    return f"{text} * {size(step)}"


__all__ = ["OPERATORS", "KernelWriter", "sum_of"]
