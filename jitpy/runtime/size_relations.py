"""Relations between symbolic sizes, evaluated exactly: as Python text, and as a program for the native stack machine.

Both compute with fractions, so that `floor(s0/2)` and `s0/s1 < 3` mean what they say. Relations that neither form
covers are put to sympy. """

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from ..ir.algebra import sympy

#: name of a sympy class -> (native operation, Python text of two operands)
_COMPARISONS: dict[str, tuple[str, bool, str]] = {
    "Equality": ("eq", False, "=="),
    "Unequality": ("ne", False, "!="),
    "StrictLessThan": ("lt", False, "<"),
    "LessThan": ("le", False, "<="),
    "StrictGreaterThan": ("lt", True, ">"),
    "GreaterThan": ("le", True, ">="),
}
_FOLDS: dict[str, tuple[str, str]] = {
    "Add": ("add", " + "),
    "Mul": ("mul", "*"),
    "And": ("and", " and "),
    "Or": ("or", " or "),
}
_CALLS: dict[str, tuple[str, str]] = {
    "floor": ("floor", "floor"),
    "ceiling": ("ceiling", "ceil"),
    "Abs": ("abs", "abs"),
    "Min": ("min", "min"),
    "Max": ("max", "max"),
}
#: of two operands
_DIVISIONS: dict[str, tuple[str, str]] = {
    "FloorDiv": ("floordiv", "//"),
    "Modulo": ("mod", "%"),
    "Mod": ("mod", "%"),
}
_INT64 = 1 << 63
#: the native machine's stack; deeper expressions go to Python
_MAX_DEPTH = 48

#: the names that `Relation.text` uses
TEXT_NAMES: dict[str, Any] = {"floor": math.floor, "ceil": math.ceil, "Fraction": Fraction}


class _NotCovered(Exception):
    """This form of expression has no program or text here."""


class Relation:
    """A sympy relation as a predicate over the values of its `symbols` (in that order)."""

    __slots__ = ("expr", "symbols", "text", "covered", "_function")

    def __init__(self, expr: Any):
        self.expr = sympy.sympify(expr)
        self.symbols: tuple[sympy.Symbol, ...] = tuple(sorted(self.expr.free_symbols, key=str))
        self._function: Callable[..., Any] | None = None
        try:
            self.text, self.covered = _text(self.expr), True
        except _NotCovered:
            self.text, self.covered = str(self.expr), False

    def __repr__(self) -> str:
        return self.text

    def __call__(self, *values: int) -> bool:
        """Whether the relation holds; ZeroDivisionError where it divides by zero."""
        if not self.covered:
            return self.expr.subs(dict(zip(self.symbols, values, strict=True))) == sympy.true
        if self._function is None:
            self._function = eval(f"lambda {', '.join(map(str, self.symbols))}: {self.text}", dict(TEXT_NAMES))
        return bool(self._function(*values))

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
        name, swapped, _ = _COMPARISONS[kind]
        first, second = reversed(expr.args) if swapped else expr.args
        _require_number(first)
        _require_number(second)
        _emit(first, slots, out, depth)
        _emit(second, slots, out, depth + 1)
        out.append((name, 0))
    elif kind in _FOLDS or kind in ("Min", "Max"):
        name = _FOLDS[kind][0] if kind in _FOLDS else _CALLS[kind][0]
        for i, arg in enumerate(expr.args):
            _emit(arg, slots, out, depth + bool(i))
            if i:
                out.append((name, 0))
    elif kind in _CALLS:
        _emit(expr.args[0], slots, out, depth)
        out.append((_CALLS[kind][0], 0))
    elif kind in _DIVISIONS:
        _emit(expr.args[0], slots, out, depth)
        _emit(expr.args[1], slots, out, depth + 1)
        out.append((_DIVISIONS[kind][0], 0))
    elif kind == "Not":
        _emit(expr.args[0], slots, out, depth)
        out.append(("not", 0))
    elif kind == "Pow" and expr.exp.is_Integer and abs(expr.exp) <= 64:
        _emit(expr.base, slots, out, depth)
        out.append(("power", abs(int(expr.exp))))
        if expr.exp < 0:
            out.append(("invert", 0))
    else:
        raise _NotCovered


def _require_number(expr: Any) -> None:
    """Eq and Ne also compare truth values in sympy."""
    if expr.is_Boolean and not expr.is_Symbol:
        raise _NotCovered


def _text(expr: Any) -> str:
    kind = type(expr).__name__
    if expr.is_Integer:
        return str(int(expr)) if expr >= 0 else f"({int(expr)})"
    if expr in (sympy.true, sympy.false):
        return str(bool(expr))
    if expr.is_Rational:
        return f"Fraction({expr.p}, {expr.q})"
    if expr.is_Symbol:
        if not expr.name.isidentifier():
            raise _NotCovered
        return expr.name
    if kind in _COMPARISONS:
        _require_number(expr.lhs)
        _require_number(expr.rhs)
        return f"{_operand(expr.lhs)} {_COMPARISONS[kind][2]} {_operand(expr.rhs)}"
    if kind in _FOLDS:
        return _FOLDS[kind][1].join(_operand(arg) for arg in expr.args)
    if kind in _CALLS:
        return f"{_CALLS[kind][1]}({', '.join(_text(arg) for arg in expr.args)})"
    if kind in _DIVISIONS:
        return f"{_operand(expr.args[0])} {_DIVISIONS[kind][1]} {_operand(expr.args[1])}"
    if kind == "Not":
        return f"not {_operand(expr.args[0])}"
    if kind == "Pow" and expr.exp.is_Integer and abs(expr.exp) <= 64:
        power = _operand(expr.base) if abs(expr.exp) == 1 else f"{_operand(expr.base)}**{abs(int(expr.exp))}"
        return power if expr.exp > 0 else f"(Fraction(1) / {power})"
    raise _NotCovered


def value_text(expr: Any, names: dict[str, Any]) -> str:
    """An expression for the (integer) value of a size; what has no text is put to sympy, through a name in `names`."""
    if expr.is_Symbol and expr.name.isidentifier():
        return expr.name
    try:
        return f"int({_text(expr)})"
    except _NotCovered:
        symbols = sorted(expr.free_symbols, key=str)
        name = f"size_{len(names)}"
        names[name] = lambda *values: int(expr.subs(dict(zip(symbols, values, strict=True))))
        return f"{name}({', '.join(map(str, symbols))})"


def _operand(expr: Any) -> str:
    text = _text(expr)
    return text if expr.is_Symbol or expr.is_Number else f"({text})"
