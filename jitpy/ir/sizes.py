"""Symbolic sizes: sympy expressions over symbols that stand for input sizes and int inputs.

A `SizeEnv` belongs to one capture. It knows each symbol's value in the call being traced (its hint)
and its range, and it turns every question about sizes ("is s0 equal to 1?") into an answer plus,
where the answer is not a theorem, a relation that must hold for the compiled code to be used again.
Ints never reach sympy: code that meets static sizes pays nothing.

Questions are kept in two forms over the difference of the two sides, `d == 0` and `d < 0`, so that no
sympy relation is built, and nothing is solved or simplified, unless there is something to record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy

from .sizes_expr import (
    FloorDiv,
    Modulo,
    c_text,
    evaluate,
    expand,
    floordiv,
    mod,
    python_text,
    simplify,
    size_function,
)
from .spec import Dim

__all__ = [
    "FloorDiv", "Modulo", "SizeEnv", "SymbolInfo", "c_text", "evaluate", "floordiv", "mod", "python_text", "simplify",
    "size_function",
]

Interval = tuple[float, float]


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


@dataclass(slots=True)
class _Saved:
    """What the environment knew before a relation was recorded."""

    facts: dict[tuple[str, Any], bool]
    replacements: dict[sympy.Symbol, sympy.Expr]
    ranges: dict[sympy.Symbol, Interval]


class SizeEnv:
    """The symbols of one capture, and the relations that tracing took for granted."""

    def __init__(self) -> None:
        self.symbols: dict[sympy.Symbol, SymbolInfo] = {}
        self.relations: list[sympy.Basic] = []
        #: user locations at which each relation was first needed, parallel to `relations`
        self.reasons: list[str] = []
        self._saved: list[_Saved] = []
        self._hints: dict[sympy.Symbol, int] = {}
        # answers that were recorded: ("eq" | "lt", difference) -> answer
        self._facts: dict[tuple[str, Any], bool] = {}
        # symbol -> what it is known to equal, in symbols that have no replacement themselves
        self._replacements: dict[sympy.Symbol, sympy.Expr] = {}
        # ranges narrowed by recorded relations
        self._ranges: dict[sympy.Symbol, Interval] = {}

    def new_symbol(
        self, hint: int, source: Any, dim: int | None = None, low: int = 2, high: int | None = None
    ) -> sympy.Symbol:
        """A fresh symbol `s<k>`. Sizes get `low=2`: 0 and 1 behave differently and stay constants."""
        symbol = sympy.Symbol(f"s{len(self.symbols)}", integer=True, positive=True if low > 0 else None,
                              nonnegative=True if low >= 0 else None)
        self.symbols[symbol] = SymbolInfo(hint, source, dim, low, high)
        self._hints[symbol] = hint
        return symbol

    def checkpoint(self) -> int:
        """A mark for `rollback`."""
        return len(self.relations)

    def rollback(self, mark: int) -> None:
        """Forget the relations recorded since `checkpoint()` returned `mark`, and what followed from them.
        Symbols stay."""
        if mark >= len(self.relations):
            return
        saved = self._saved[mark]
        self._facts, self._replacements, self._ranges = saved.facts, saved.replacements, saved.ranges
        del self.relations[mark:], self.reasons[mark:], self._saved[mark:]

    def hint(self, expr: Dim) -> int:
        """The value of `expr` in the call being traced."""
        if isinstance(expr, int):
            return expr
        return int(evaluate(expr, self._hints))

    def hints(self, exprs: Iterable[Dim]) -> tuple[int, ...]:
        return tuple(self.hint(e) for e in exprs)

    def canonical(self, expr: Dim) -> Dim:
        """`expr` with symbols that are known to be equal unified, and an int where it is known to be one."""
        if isinstance(expr, int):
            return expr
        if self._replacements:
            expr = expr.xreplace(self._replacements)
        return int(expr) if expr.is_Integer else expr

    def decide(self, relation: sympy.Basic | bool, reason: str = "") -> bool:
        """Answer a yes/no question about sizes, and record the relation if it is not always so.

        `relation` is a sympy relation, or And, Or, Not of such.
        """
        if relation is True or relation is False:
            return relation
        if isinstance(relation, sympy.Not):
            return not self.decide(relation.args[0], reason)
        if isinstance(relation, sympy.And):
            return all(self.decide(part, reason) for part in relation.args)
        if isinstance(relation, sympy.Or):
            return any(self.decide(part, reason) for part in relation.args)
        if relation == sympy.true or relation == sympy.false:
            return bool(relation)
        kind, difference, negated = _question(relation)
        return self._ask(kind, difference, reason, relation, negated) != negated

    def equal(self, a: Dim, b: Dim, reason: str = "") -> bool:
        """Whether two sizes are equal, recording the relation where that is not a theorem."""
        if type(a) is int and type(b) is int:
            return a == b
        if a is b or a == b:
            return True
        return self._ask("eq", a - b, reason, (a, b))

    def less(self, a: Dim, b: Dim, reason: str = "") -> bool:
        """Whether a < b, recording the relation where that is not a theorem."""
        if type(a) is int and type(b) is int:
            return a < b
        return self._ask("lt", a - b, reason, (a, b))

    def less_equal(self, a: Dim, b: Dim, reason: str = "") -> bool:
        """Whether a <= b, recording the relation where that is not a theorem."""
        return not self.less(b, a, reason)

    def known(self, relation: sympy.Basic | bool) -> bool | None:
        """The answer where it is a theorem given ranges and earlier relations, else None."""
        if relation is True or relation == sympy.true:
            return True
        if relation is False or relation == sympy.false:
            return False
        if isinstance(relation, (sympy.And, sympy.Or, sympy.Not)):
            answers = [self.known(part) for part in relation.args]
            if isinstance(relation, sympy.Not):
                return None if answers[0] is None else not answers[0]
            decisive = isinstance(relation, sympy.Or)
            if decisive in answers:
                return decisive
            return None if None in answers else not decisive
        if not isinstance(relation, sympy.core.relational.Relational):
            return None
        kind, difference, negated = _question(relation)
        answer = self._theorem(kind, self._normal(difference))
        return None if answer is None else answer != negated

    def bounds(self, expr: Dim) -> Interval:
        """An interval that holds `expr` (interval arithmetic over sums, products, floor divisions)."""
        if isinstance(expr, int):
            return expr, expr
        expr = self._normal(expr)
        return (expr, expr) if isinstance(expr, int) else self._interval(expr)

    def specialize(self, expr: Dim, reason: str = "") -> int:
        """Pin a size to its value in this call (recorded, so that `explain` can list it)."""
        if isinstance(expr, int):
            return expr
        if expr.is_Integer:
            return int(expr)
        value = self.hint(expr)
        self.equal(expr, value, reason)
        return value

    # -- questions: `d == 0` and `d < 0` for an expanded difference d

    def _normal(self, expr: Dim) -> Dim:
        expr = self.canonical(expr)
        return expr if isinstance(expr, int) else simplify(expand(expr))

    def _ask(self, kind: str, difference: Dim, reason: str, asked: Any, negated: bool = False) -> bool:
        d = self._normal(difference)
        answer = self._theorem(kind, d)
        if answer is not None:
            return answer
        value = self.hint(d)
        answer = value == 0 if kind == "eq" else value < 0
        if isinstance(asked, tuple):
            cls = sympy.Eq if kind == "eq" else sympy.StrictLessThan
            asked = cls(*map(sympy.sympify, asked), evaluate=False)
        self._record(asked if answer != negated else _negation(asked), reason, kind, d, answer)
        return answer

    def _theorem(self, kind: str, d: Dim) -> bool | None:
        if isinstance(d, int):
            return d == 0 if kind == "eq" else d < 0
        found = self._facts.get((kind, d))
        if found is not None:
            return found
        low, high = self._interval(d)
        if kind == "eq":
            if low > 0 or high < 0:
                return False
            return True if low == high == 0 else self._divisibility(d)
        if high < 0:
            return True
        return False if low >= 0 else None

    def _divisibility(self, d: sympy.Expr) -> bool | None:
        """False where `d == 0` fails modulo the common factor of the coefficients: 2*s0 - 2*s1 == 1."""
        if not d.is_Add:
            return None
        constant, factor = 0, 0
        for term in d.args:
            coefficient = term.as_coeff_Mul()[0]
            if not coefficient.is_Integer:
                return None
            if term.is_Integer:
                constant = int(term)
            else:
                factor = math.gcd(factor, int(coefficient))
        return False if factor > 1 and constant % factor else None

    def _record(self, fact: sympy.Basic, reason: str, kind: str, d: sympy.Expr, answer: bool) -> None:
        self._saved.append(_Saved(self._facts, self._replacements, self._ranges))
        self.relations.append(fact)
        self.reasons.append(reason)
        self._facts, self._replacements = dict(self._facts), dict(self._replacements)
        self._ranges = dict(self._ranges)
        self._facts[kind, d] = answer
        opposite = simplify(expand(-d))
        if kind == "eq":
            self._facts[kind, opposite] = answer
            if answer:
                # d == 0 bounds the symbols from both sides before one of them is replaced
                self._narrow(d - 1)
                self._narrow(opposite - 1)
                self._substitute(d)
            else:
                self._exclude(d)
        elif answer:
            self._facts["lt", opposite] = self._facts["eq", d] = self._facts["eq", opposite] = False
            self._narrow(d)
        else:
            # not d < 0 is -d - 1 < 0
            self._facts["lt", simplify(opposite - 1)] = True
            self._narrow(opposite - 1)

    def _range(self, symbol: sympy.Symbol) -> Interval:
        found = self._ranges.get(symbol)
        if found is not None:
            return found
        info = self.symbols.get(symbol)
        if info is None:
            return -math.inf, math.inf
        return info.low, math.inf if info.high is None else info.high

    def _narrow(self, d: Dim) -> None:
        """Learn from `d < 0` the range of each symbol that occurs once, linearly."""
        if isinstance(d, int):
            return
        terms = d.args if d.is_Add else (d,)
        for term in terms:
            coefficient, symbol = term.as_coeff_Mul()
            if not (symbol.is_Symbol and coefficient.is_Integer):
                continue
            rest = d - term
            if symbol in rest.free_symbols:
                continue
            # coefficient * symbol <= -1 - rest
            limit = -1 - self._interval(rest)[0]
            if math.isinf(limit):
                continue
            low, high = self._range(symbol)
            if coefficient > 0:
                high = min(high, int(limit) // int(coefficient))
            else:
                low = max(low, -(int(limit) // -int(coefficient)))
            self._ranges[symbol] = (low, high)
            if low == high and symbol not in self._replacements:
                self._replace(symbol, sympy.Integer(low))

    def _exclude(self, d: sympy.Expr) -> None:
        """Learn from `d != 0`: a symbol is not the value at an end of its range."""
        symbols = d.free_symbols
        if len(symbols) != 1:
            return
        symbol = next(iter(symbols))
        coefficient, constant = d.coeff(symbol, 1), d.coeff(symbol, 0)
        if not (coefficient.is_Integer and constant.is_Integer) or d != coefficient * symbol + constant:
            return
        value, remainder = divmod(-int(constant), int(coefficient))
        low, high = self._range(symbol)
        if remainder == 0 and value in (low, high):
            self._ranges[symbol] = (low + (value == low), high - (value == high))

    def _substitute(self, d: sympy.Expr) -> None:
        """Learn from `d == 0`: replace the youngest symbol that it gives as a polynomial of the others."""
        d = self._normal(d)
        if isinstance(d, int):
            return
        terms = d.args if d.is_Add else (d,)
        candidates = []
        for term in terms:
            coefficient, symbol = term.as_coeff_Mul()
            if not (symbol.is_Symbol and symbol in self.symbols and coefficient.is_Integer):
                continue
            rest = d - term
            if symbol in rest.free_symbols:
                continue
            if abs(coefficient) == 1:
                candidates.append((symbol, expand(-rest * coefficient)))
            elif rest.is_Integer and int(rest) % int(coefficient) == 0:
                candidates.append((symbol, sympy.Integer(-int(rest) // int(coefficient))))
        if candidates:
            order = {symbol: i for i, symbol in enumerate(self.symbols)}
            self._replace(*max(candidates, key=lambda pair: order[pair[0]]))

    def _replace(self, symbol: sympy.Symbol, expr: sympy.Expr) -> None:
        one = {symbol: expr}
        self._replacements = {s: e.xreplace(one) for s, e in self._replacements.items()}
        self._replacements[symbol] = expr

    def _interval(self, expr: sympy.Basic) -> Interval:
        if expr.is_Integer:
            return int(expr), int(expr)
        if expr.is_Symbol:
            return self._range(expr)
        if expr.is_Add:
            pairs = [self._interval(a) for a in expr.args]
            return sum(p[0] for p in pairs), sum(p[1] for p in pairs)
        if expr.is_Mul:
            low: float
            high: float
            low, high = 1, 1
            for arg in expr.args:
                a, b = self._interval(arg)
                corners = [x * y if x and y else 0 for x in (low, high) for y in (a, b)]
                low, high = min(corners), max(corners)
            return low, high
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            a, b = self._interval(expr.base)
            if a >= 0:
                return a ** int(expr.exp), b ** int(expr.exp)
        elif isinstance(expr, FloorDiv):
            return self._floordiv_interval(*map(self._interval, expr.args))
        elif isinstance(expr, Modulo):
            (a, b), (c, d) = map(self._interval, expr.args)
            if c > 0:
                return (a, b) if a >= 0 and b < c else (0, min(d - 1, b) if a >= 0 else d - 1)
        elif isinstance(expr, (sympy.Max, sympy.Min)):
            pairs = [self._interval(a) for a in expr.args]
            choose = max if isinstance(expr, sympy.Max) else min
            return choose(p[0] for p in pairs), choose(p[1] for p in pairs)
        return -math.inf, math.inf

    @staticmethod
    def _floordiv_interval(a: Interval, b: Interval) -> Interval:
        if b[0] <= 0:
            return -math.inf, math.inf
        corners = []
        for x in a:
            for y in b:
                if math.isinf(x):
                    corners.append(x)
                elif math.isinf(y):
                    corners.append(0 if x >= 0 else -1)
                else:
                    corners.append(int(x) // int(y))
        return min(corners), max(corners)


def _question(relation: sympy.Basic) -> tuple[str, Dim, bool]:
    """A relation as `(kind, difference, negated)`: the answer to `kind(difference)`, negated or not."""
    if not isinstance(relation, sympy.core.relational.Relational):
        raise TypeError(f"not a relation between sizes: {relation}")
    left, right = relation.lhs, relation.rhs
    if isinstance(relation, sympy.Eq):
        return "eq", left - right, False
    if isinstance(relation, sympy.Ne):
        return "eq", left - right, True
    if isinstance(relation, sympy.StrictLessThan):
        return "lt", left - right, False
    if isinstance(relation, sympy.StrictGreaterThan):
        return "lt", right - left, False
    if isinstance(relation, sympy.LessThan):
        return "lt", right - left, True
    if isinstance(relation, sympy.GreaterThan):
        return "lt", left - right, True
    raise TypeError(f"not a relation between sizes: {relation}")


_OPPOSITE = {
    sympy.Eq: sympy.Ne, sympy.Ne: sympy.Eq,
    sympy.StrictLessThan: sympy.GreaterThan, sympy.GreaterThan: sympy.StrictLessThan,
    sympy.LessThan: sympy.StrictGreaterThan, sympy.StrictGreaterThan: sympy.LessThan,
}


def _negation(relation: sympy.Basic) -> sympy.Basic:
    return _OPPOSITE[type(relation)](relation.lhs, relation.rhs, evaluate=False)
