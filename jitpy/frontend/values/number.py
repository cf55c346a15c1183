"""Numbers that are not constants: symbolic sizes, numbers that the graph computes, numbers of hooks."""

from __future__ import annotations

from typing import Any

from ...ir.algebra import sympy
from ..guards.source import Source
from .base import Value


class SymValue(Value):
    """A symbolic int: `expr` over the capture's size symbols."""

    __slots__ = ("expr",)
    cls = int

    def __init__(self, expr: sympy.Expr, source: Source | None = None) -> None:
        self.source = source
        self.expr = expr


class ScalarValue(Value):
    """A number that the graph computes (`.item()` and arithmetic on it); `traced` is the graph builder's
    `TracedScalar`."""

    __slots__ = ("traced",)

    def __init__(self, traced: Any, source: Source | None = None) -> None:
        self.source = source
        self.traced = traced

    @property
    def cls(self) -> type:  # type: ignore[override]
        return self.traced.kind
