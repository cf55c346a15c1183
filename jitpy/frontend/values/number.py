"""Numbers that are not constants: symbolic sizes, numbers that the graph computes, numbers of hooks."""

from __future__ import annotations

from typing import Any

from ...ir.algebra import sympy
from ..guards.source import Source
from .base import Interpreter, Value, unsupported
from .constant import const


class SymValue(Value):
    """A symbolic int: `expr` over the capture's size symbols."""

    __slots__ = ("expr",)
    is_rebuilt = True
    cls = int
    is_atomic = True

    def __init__(self, expr: sympy.Expr, source: Source | None = None) -> None:
        self.source = source
        self.expr = expr

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        return _part_of_number(self, name)


class ScalarValue(Value):
    """A number that the graph computes (`.item()` and arithmetic on it); `traced` is the graph builder's
    `TracedScalar`."""

    __slots__ = ("traced",)
    is_atomic = True

    def __init__(self, traced: Any, source: Source | None = None) -> None:
        self.source = source
        self.traced = traced

    @property
    def cls(self) -> type:  # type: ignore[override]
        return self.traced.kind

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        return _part_of_number(self, name)


def _part_of_number(value: Value, name: str) -> Value:
    """`real`, `imag`, `numerator` or `denominator` of an int or float."""
    if value.cls not in (int, float) or name not in ("real", "imag", "numerator", "denominator"):
        raise unsupported(value, f".{name}")
    return value if name in ("real", "numerator") else const(value.cls(0) if name == "imag" else 1)
