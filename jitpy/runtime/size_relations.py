"""Relations between symbolic sizes, evaluated exactly: as Python text, and as a program for the native stack machine.

Both compute with fractions, so that `floor(s0/2)` and `s0/s1 < 3` mean what they say. Relations that neither form
covers are put to sympy. """

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from ..ir.algebra import sympy

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
#: native operation -> Python text; without parentheses around the operands where it is a call
_TEXTS = {
    "eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "le": "{} <= {}", "lt1": "{1} > {0}", "le1": "{1} >= {0}",
    "add": "{} + {}", "mul": "{}*{}", "and": "{} and {}", "or": "{} or {}", "floordiv": "{} // {}", "mod": "{} % {}",
    "not": "not {}", "invert": "Fraction(1) / {}", "floor": "floor({})", "ceiling": "ceil({})", "abs": "abs({})",
    "min": "min({}, {})", "max": "max({}, {})",
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
        return bool(self.value(*values))

    def value(self, *values: Any) -> Any:
        """The value of an expression that has a text."""
        if self._function is None:
            self._function = eval(f"lambda {', '.join(map(str, self.symbols))}: {self.text}", dict(TEXT_NAMES))
        return self._function(*values)

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


class _Symbols(dict[sympy.Symbol, sympy.Symbol]):
    """Symbols as their own slots."""

    def __missing__(self, symbol: sympy.Symbol) -> sympy.Symbol:
        if not symbol.name.isidentifier():
            raise _NotCovered
        return symbol


def _text(expr: Any) -> str:
    """The program's text in Python."""
    program: list[tuple[str, Any]] = []
    _emit(expr, _Symbols(), program, 0)
    stack: list[tuple[str, str]] = []  # texts, and the operations that need parentheses
    for name, arg in program:
        if name in ("const", "symbol"):
            stack.append((f"({arg})" if name == "const" and arg < 0 else str(arg), ""))
            continue
        template = f"{{}}**{arg}" if name == "power" else _TEXTS[f"{name}{arg or ''}"]
        count, is_call = template.count("{"), template.endswith(")")
        texts = [text if is_call or kind == "" or (kind, i, count) == (name, 0, 2) else f"({text})"
                 for i, (text, kind) in enumerate(stack[-count:])]
        stack[-count:] = [(template.format(*texts), "" if is_call else name)]
    return stack[0][0]


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
