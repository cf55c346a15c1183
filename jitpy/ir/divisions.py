"""`a // b` and `a % b` on size expressions, as functions of sympy: to be imported once there are expressions.

sympy's own `floor` and `Mod` try hard to simplify, which takes milliseconds; `FloorDiv` and `Modulo` do
what is cheap: they cancel common factors and take out the terms that divide.
"""

from __future__ import annotations

from typing import Any

import sympy

from .sizes_expr import content, divide_by, divide_terms, python_text


class FloorDiv(sympy.Function):  # type: ignore[misc]
    """`a // b` on integers as Python has it (rounded down); b is not 0."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        if b.is_Integer:
            if b == 1:
                return a
            if a.is_Integer and b != 0:
                return sympy.Integer(int(a) // int(b))
        if a == 0:
            return sympy.S.Zero
        if a == b:
            return sympy.S.One
        whole, rest = divide_terms(a, b)
        if whole != 0:
            return whole + (cls(rest, b) if rest != 0 else 0)
        if b.is_Integer and int(b) > 1:
            if isinstance(a, cls) and a.args[1].is_Integer and int(a.args[1]) > 0:
                return cls(a.args[0], a.args[1] * b)
            common = content(a, int(b))
            if common > 1:
                return cls(divide_by(a, common), sympy.Integer(int(b) // common))
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        return True if a.is_nonnegative and b.is_positive else None

    def _sympystr(self, printer: Any) -> str:
        # with its parentheses: sympy does not know that // binds as * does
        return python_text(self, enclosed=True)

    _pythoncode = _sympystr


class Modulo(sympy.Function):  # type: ignore[misc]
    """`a % b` on integers as Python has it (the sign of b); b is not 0."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        if a.is_Integer and b.is_Integer and b != 0:
            return sympy.Integer(int(a) % int(b))
        if a == 0 or a == b or b == 1:
            return sympy.S.Zero
        if isinstance(a, cls) and a.args[1] == b:
            return a
        whole, rest = divide_terms(a, b)
        if whole != 0:
            return cls(rest, b)
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[1].is_positive else None

    def _sympystr(self, printer: Any) -> str:
        # with its parentheses: sympy does not know that // binds as * does
        return python_text(self, enclosed=True)

    _pythoncode = _sympystr
