"""Symbolic sizes: sympy expressions over symbols that stand for input sizes and int inputs.

A `SizeEnv` belongs to one capture. It knows each symbol's value in the call being traced (its hint)
and its range, and it turns every question about sizes ("is s0 equal to 1?") into an answer plus,
where the answer is not a theorem, a relation that must hold for the compiled code to be used again.
Ints never reach sympy: code that meets static sizes pays nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import sympy

from .spec import Dim


@dataclass(slots=True)
class SymbolInfo:
    """One symbol: its value in the traced call, its inclusive range, and where it is read from.

    `source` is opaque to the IR (the frontend's Source of a tensor or int); `dim` is the axis when the
    source is a tensor, else None.
    """

    hint: int
    source: Any
    dim: int | None
    low: int
    high: int | None = None


class SizeEnv:
    """The symbols of one capture, and the relations that tracing took for granted."""

    def __init__(self) -> None:
        self.symbols: dict[sympy.Symbol, SymbolInfo] = {}
        self.relations: list[sympy.Basic] = []
        #: user locations at which each relation was first needed, parallel to `relations`
        self.reasons: list[str] = []
        self._known: dict[sympy.Basic, bool] = {}

    def new_symbol(
        self, hint: int, source: Any, dim: int | None = None, low: int = 2, high: int | None = None
    ) -> sympy.Symbol:
        """A fresh symbol `s<k>`. Sizes get `low=2`: 0 and 1 behave differently and stay constants."""
        symbol = sympy.Symbol(f"s{len(self.symbols)}", integer=True, positive=True if low > 0 else None,
                              nonnegative=True if low >= 0 else None)
        self.symbols[symbol] = SymbolInfo(hint, source, dim, low, high)
        return symbol

    def hint(self, expr: Dim) -> int:
        """The value of `expr` in the call being traced."""
        if isinstance(expr, int):
            return expr
        value = expr.subs({s: info.hint for s, info in self.symbols.items()})
        return int(value)

    def hints(self, exprs: tuple[Dim, ...]) -> tuple[int, ...]:
        return tuple(self.hint(e) for e in exprs)

    def decide(self, relation: sympy.Basic | bool, reason: str = "") -> bool:
        """Answer a yes/no question about sizes, and record the relation if it is not always so."""
        if relation is True or relation is False:
            return relation
        known = self.known(relation)
        if known is not None:
            return known
        answer = bool(relation.subs({s: info.hint for s, info in self.symbols.items()}))
        fact = relation if answer else sympy.Not(relation)
        self.relations.append(fact)
        self.reasons.append(reason)
        self._known[relation] = answer
        self._known[sympy.Not(relation)] = not answer
        return answer

    def known(self, relation: sympy.Basic | bool) -> bool | None:
        """The answer where it is a theorem given ranges and earlier relations, else None."""
        if relation is True or relation == sympy.true:
            return True
        if relation is False or relation == sympy.false:
            return False
        found = self._known.get(relation)
        if found is not None:
            return found
        if isinstance(relation, (sympy.Eq, sympy.Ne, sympy.StrictLessThan, sympy.LessThan,
                                 sympy.StrictGreaterThan, sympy.GreaterThan)):
            low, high = self.bounds(relation.lhs - relation.rhs)
            answer: bool | None = None
            if isinstance(relation, sympy.Eq):
                answer = False if low > 0 or high < 0 else (True if low == high == 0 else None)
            elif isinstance(relation, sympy.Ne):
                answer = True if low > 0 or high < 0 else (False if low == high == 0 else None)
            elif isinstance(relation, sympy.StrictLessThan):
                answer = True if high < 0 else (False if low >= 0 else None)
            elif isinstance(relation, sympy.LessThan):
                answer = True if high <= 0 else (False if low > 0 else None)
            elif isinstance(relation, sympy.StrictGreaterThan):
                answer = True if low > 0 else (False if high <= 0 else None)
            elif isinstance(relation, sympy.GreaterThan):
                answer = True if low >= 0 else (False if high < 0 else None)
            return answer
        return None

    def bounds(self, expr: Dim) -> tuple[float, float]:
        """An interval that holds `expr` (interval arithmetic over sums and products)."""
        if isinstance(expr, int):
            return expr, expr
        expr = sympy.expand(expr)
        return self._interval(expr)

    def _interval(self, expr: sympy.Basic) -> tuple[float, float]:
        if expr.is_Integer:
            return int(expr), int(expr)
        if expr.is_Symbol and expr in self.symbols:
            info = self.symbols[expr]
            return info.low, math.inf if info.high is None else info.high
        if expr.is_Add:
            pairs = [self._interval(a) for a in expr.args]
            return sum(p[0] for p in pairs), sum(p[1] for p in pairs)
        if expr.is_Mul:
            low, high = 1.0, 1.0
            for arg in expr.args:
                a, b = self._interval(arg)
                corners = [x * y if x and y else 0 for x in (low, high) for y in (a, b)]
                low, high = min(corners), max(corners)
            return low, high
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            a, b = self._interval(expr.base)
            if a >= 0:
                return a ** int(expr.exp), b ** int(expr.exp)
        return -math.inf, math.inf

    def equal(self, a: Dim, b: Dim, reason: str = "") -> bool:
        """Whether two sizes are equal, recording the relation where that is not a theorem."""
        if type(a) is int and type(b) is int:
            return a == b
        if a is b or a == b:
            return True
        return self.decide(sympy.Eq(a, b), reason)

    def specialize(self, expr: Dim, reason: str = "") -> int:
        """Pin a size to its value in this call (recorded, so that `explain` can list it)."""
        if isinstance(expr, int):
            return expr
        if expr.is_Integer:
            return int(expr)
        value = self.hint(expr)
        self.equal(expr, value, reason)
        return value


def simplify(expr: Dim) -> Dim:
    """An int wherever the expression is one."""
    if isinstance(expr, int):
        return expr
    return int(expr) if expr.is_Integer else expr


def floordiv(a: Dim, b: Dim) -> Dim:
    """Python's floor division on sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    quotient = sympy.cancel(sympy.sympify(a) / b)
    if quotient.is_integer and all(c.is_Integer for c in sympy.Poly(quotient, *quotient.free_symbols).coeffs()) \
            if quotient.is_polynomial() and quotient.free_symbols else quotient.is_Integer:
        return simplify(quotient)
    return sympy.floor(sympy.sympify(a) / b)


def mod(a: Dim, b: Dim) -> Dim:
    """Python's modulo on sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return simplify(sympy.Mod(a, b))
