"""Relations between symbolic sizes, evaluated exactly: as Python text, and as a program for the native stack machine.

Both compute with fractions, so that `floor(s0/2)` and `s0/s1 < 3` mean what they say. Relations that have no such text
are put to sympy. """

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from ..ir.algebra import sympy
from ..ir.sizes_expr import python_text

#: name of a sympy class -> (native operation, whether its operands change places)
_COMPARISONS: dict[str, tuple[str, int]] = {
    "Equality": ("eq", 0),
    "Unequality": ("ne", 0),
    "StrictLessThan": ("lt", 0),
    "LessThan": ("le", 0),
    "StrictGreaterThan": ("lt", 1),
    "GreaterThan": ("le", 1),
}
#: name of a sympy class -> native operation on two operands, or on one
_FOLDS = {"Add": "add", "Mul": "mul", "And": "and", "Or": "or", "Min": "min", "Max": "max", "FloorDiv": "floordiv",
          "Modulo": "mod", "Mod": "mod"}
_UNARY = {"floor": "floor", "ceiling": "ceiling", "Abs": "abs", "Not": "not"}
_INT64 = 1 << 63
#: the native machine's stack; deeper expressions go to Python
_MAX_DEPTH = 48

#: the names that `Relation.text` uses
TEXT_NAMES: dict[str, Any] = {"Fraction": Fraction}


class _NotCovered(Exception):
    """This form of expression has no program here."""


class Relation:
    """A sympy relation (or another expression) as a function of the values of its `symbols`, in that order."""

    def __init__(self, expr: Any):
        self.expr = sympy.sympify(expr)
        self.symbols: tuple[sympy.Symbol, ...] = tuple(sorted(self.expr.free_symbols, key=str))

    @functools.cached_property
    def exact_text(self) -> str | None:
        """It in Python, by names of `TEXT_NAMES`; None where sympy must be asked."""
        if self.expr.has(sympy.Float) or not all(symbol.name.isidentifier() for symbol in self.symbols):
            return None
        try:
            return python_text(self.expr, exact=True)
        except TypeError:
            return None

    @property
    def text(self) -> str:
        return self.exact_text or str(self.expr)

    def __repr__(self) -> str:
        return self.text

    @functools.cached_property
    def value(self) -> Callable[..., Any]:
        """`value(*values)`; ZeroDivisionError where it divides by zero."""
        if self.exact_text is None:
            return lambda *values: self.expr.subs(dict(zip(self.symbols, values, strict=True)))
        return eval(f"lambda {', '.join(map(str, self.symbols))}: {self.exact_text}", dict(TEXT_NAMES))  # type: ignore

    def __call__(self, *values: int) -> bool:
        """Whether the relation holds."""
        return bool(self.value(*values) == True)  # noqa: E712  (sympy's own truth, too)

    def program(self, slots: Mapping[sympy.Symbol, int]) -> tuple[tuple[str, int], ...] | None:
        """Instructions for `sizes_program.cpp`; None where the relation has a form that it does not know."""
        out: list[tuple[str, int]] = []
        try:
            _emit(self.expr, slots, out, 0)
        except _NotCovered:
            return None
        return tuple(out)


def _emit(expr: Any, slots: Mapping[sympy.Symbol, int], out: list[tuple[str, int]], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise _NotCovered
    kind = type(expr).__name__
    if expr.is_Integer or expr in (sympy.true, sympy.false):
        value = int(expr) if expr.is_Integer else int(bool(expr))
        if not -_INT64 <= value < _INT64:
            raise _NotCovered
        out.append(("const", value))
    elif expr.is_Rational:
        _emit(sympy.Integer(expr.p), slots, out, depth)
        _emit(sympy.Integer(expr.q), slots, out, depth + 1)
        out += [("invert", 0), ("mul", 0)]
    elif expr.is_Symbol:
        out.append(("symbol", slots[expr]))
    elif kind in _COMPARISONS:
        name, swapped = _COMPARISONS[kind]
        for i, arg in enumerate(reversed(expr.args) if swapped else expr.args):
            if arg.is_Boolean and not arg.is_Symbol:  # sympy's Eq and Ne also compare truth values
                raise _NotCovered
            _emit(arg, slots, out, depth + i)
        out.append((name, swapped))
    elif kind in _FOLDS:
        for i, arg in enumerate(expr.args):
            _emit(arg, slots, out, depth + bool(i))
            if i:
                out.append((_FOLDS[kind], 0))
    elif kind in _UNARY:
        _emit(expr.args[0], slots, out, depth)
        out.append((_UNARY[kind], 0))
    elif kind == "Pow" and expr.exp.is_Integer and abs(expr.exp) <= 64:
        _emit(expr.base, slots, out, depth)
        if abs(expr.exp) != 1:
            out.append(("power", abs(int(expr.exp))))
        if expr.exp < 0:
            out.append(("invert", 0))
    else:
        raise _NotCovered


def value_text(expr: Any, names: dict[str, Any]) -> str:
    """An expression for the (integer) value of a size; what has no text is put to sympy, through a name in `names`."""
    size = Relation(expr)
    if size.exact_text is not None:
        return size.exact_text if expr.is_Symbol else f"int({size.exact_text})"
    name = f"size_{len(names)}"
    names[name] = lambda *values: int(size.value(*values))
    return f"{name}({', '.join(map(str, size.symbols))})"
