"""Symbolic sizes: sympy expressions over symbols that stand for input sizes and int inputs.

A `SizeEnv` belongs to one capture. It knows each symbol's value in the call being traced (its hint)
and its range, and it turns every question about sizes ("is s0 equal to 1?") into an answer plus,
where the answer is not a theorem, a relation that must hold for the compiled code to be used again.
Ints never reach sympy: code that meets static sizes pays nothing.

Questions are kept in two forms over the difference of the two sides, `d == 0` and `d < 0`, so that no
sympy relation is built, and nothing is solved or simplified, unless there is something to record.

Unbacked symbols (`u<k>`) stand for sizes that exist only when the graph runs: the number of elements that a mask
selects, an int that `.item()` read. Nothing guesses their values. A question about them that is no theorem raises
`SizeUnknown`, but for the questions of shape rules that have a usual answer (sizes that must match do, a size is
neither 0 nor 1): that answer becomes a check which the compiled graph makes as soon as it knows the sizes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .algebra import sympy
from .sizes_expr import (
    c_text,
    evaluate,
    expand,
    floordiv,
    mod,
    python_text,
    simplify,
    size_function,
)
from .spec import Dim, ScalarSpec, TensorSpec
from .trees import tree_leaves

__all__ = [
    "SizeCheckFailed", "SizeEnv", "SizeUnknown", "SymbolInfo", "c_text", "evaluate", "floordiv",
    "mod", "python_text", "simplify", "size_function",
]

Interval = tuple[float, float]

#: Ints that the graph computes are taken as sizes within these bounds, so that arithmetic on them fits 64 bits.
SCALAR_LIMIT = 1 << 31


class SizeUnknown(Exception):
    """A question about a size that only the run of the graph can answer."""


class SizeCheckFailed(RuntimeError):
    """The sizes of a call are not what the graph was made for: nothing was changed, and the call runs in another way.
    """


@dataclass(slots=True)
class SymbolInfo:
    """One symbol: its value in the traced call, its inclusive range, and where it is read from.

    `source` is opaque to the IR (the frontend's Source of a tensor or int); `dim` is the axis when the
    source is a tensor, else None. An unbacked symbol has no source, and its hint is an estimate: good for weighing
    costs, never for an answer.
    """

    hint: int
    source: Any
    dim: int | None
    low: int
    high: int | None = None
    unbacked: bool = False
    #: the program asked for it: pinning it to one value is an error
    marked: bool = False


@dataclass(slots=True)
class _Saved:
    """The environment's knowledge before a relation was recorded."""

    facts: dict[tuple[str, Any], bool]
    replacements: dict[sympy.Symbol, sympy.Expr]
    ranges: dict[sympy.Symbol, Interval]


def depends_on_data(size: Any) -> bool:
    """Whether a size mentions an unbacked symbol (of any environment)."""
    return isinstance(size, sympy.Basic) and any(str(symbol).startswith("u") for symbol in size.free_symbols)


class SizeEnv:
    """The symbols of one capture, and the relations that tracing took for granted."""

    def __init__(self) -> None:
        self.symbols: dict[sympy.Symbol, SymbolInfo] = {}
        #: all that was recorded: what inputs must fulfil, what the graph checks when it runs, what ops promise
        self.relations: list[sympy.Basic] = []
        #: user locations at which each relation was first needed, parallel to `relations`
        self.reasons: list[str] = []
        # parallel to `relations`: whether nobody needs to check it, as it follows from what an op does
        self._promised: list[bool] = []
        self._unbacked: set[sympy.Symbol] = set()
        #: what shape rules answered, by question; kept for as long as the facts behind the answers are
        self.answers: dict[Any, Any] = {}
        #: who asks when torch's shape code does, for reasons
        self.rule = "a shape rule"
        # whether questions are asked as if every unbacked size were at least 2
        self._generic = False
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

    def new_unbacked(self, estimate: int, low: int = 0, high: int | None = None) -> sympy.Symbol:
        """A fresh symbol `u<k>` for a number that exists only when the graph runs."""
        symbol = sympy.Symbol(f"u{len(self._unbacked)}", integer=True, positive=True if low > 0 else None,
                              nonnegative=True if low >= 0 else None)
        self.symbols[symbol] = SymbolInfo(estimate, None, None, low, high, unbacked=True)
        self._hints[symbol] = estimate
        self._unbacked.add(symbol)
        return symbol

    @property
    def has_unbacked(self) -> bool:
        """Whether any size exists only when the graph runs."""
        return bool(self._unbacked)

    @property
    def unbacked_count(self) -> int:
        """How many sizes that depend on data were named so far."""
        return len(self._unbacked)

    def is_unbacked(self, expr: Any) -> bool:
        """Whether an expression or relation mentions an unbacked symbol."""
        return bool(self._unbacked) and isinstance(expr, sympy.Basic) and not self._unbacked.isdisjoint(
            expr.free_symbols)

    def unbacked_in(self, expr: Any) -> set[sympy.Symbol]:
        """The unbacked symbols that an expression or relation mentions."""
        return self._unbacked & expr.free_symbols if self._unbacked and isinstance(expr, sympy.Basic) else set()

    def unbacked_in_all(self, value: Any) -> set[sympy.Symbol]:
        """The unbacked symbols inside nested arguments, or a spec."""
        found: set[sympy.Symbol] = set()
        if self._unbacked:
            self._collect(value, found)
        return found

    def _collect(self, value: Any, found: set[sympy.Symbol]) -> None:
        for leaf in tree_leaves(value):
            if isinstance(leaf, sympy.Basic):
                found |= self.unbacked_in(leaf)
            elif isinstance(leaf, TensorSpec):
                self._collect((leaf.shape, leaf.stride, leaf.offset), found)
            elif isinstance(leaf, ScalarSpec):
                self._collect(leaf.expr, found)

    def entry_relations(self) -> list[tuple[sympy.Basic, str]]:
        """The relations that the inputs must fulfil, with the reasons: the guards."""
        return [(relation, why) for relation, why, promised in zip(self.relations, self.reasons, self._promised,
                                                                   strict=True)
                if not promised and not self.is_unbacked(relation)]

    def run_time_checks(self) -> list[tuple[sympy.Basic, str]]:
        """The relations that the compiled graph must check when it knows its unbacked sizes, with the reasons."""
        if not self._unbacked:
            return []
        return [(relation, why) for relation, why, promised in zip(self.relations, self.reasons, self._promised,
                                                                   strict=True)
                if not promised and self.is_unbacked(relation)]

    def checkpoint(self) -> int:
        """A mark for `rollback`."""
        return len(self.relations)

    def rollback(self, mark: int) -> None:
        """Forget the relations recorded since `checkpoint()` returned `mark`, and what followed from them.
        Symbols stay."""
        if mark >= len(self.relations):
            return
        self.answers.clear()
        saved = self._saved[mark]
        self._facts, self._replacements, self._ranges = saved.facts, saved.replacements, saved.ranges
        del self.relations[mark:], self.reasons[mark:], self._promised[mark:], self._saved[mark:]

    def pinned_since(self, mark: int) -> bool:
        """Whether a symbol got one value since `checkpoint()` returned `mark`."""
        before = self._saved[mark].replacements if mark < len(self.relations) else self._replacements
        return any(value.is_Integer for symbol, value in self._replacements.items() if before.get(symbol) != value)

    def hint(self, expr: Dim) -> int:
        """The value of `expr` in the call being traced; an estimate where it mentions unbacked symbols."""
        if isinstance(expr, int):
            return expr
        return int(evaluate(expr, self._hints))

    def near_hint(self, expr: Dim, more: int) -> int:
        """The value of `expr` for symbols that are larger by `more` than in the call being traced."""
        if isinstance(expr, int):
            return expr
        return int(evaluate(expr, {symbol: value + more for symbol, value in self._hints.items()}))

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

        `relation` is a sympy relation, or And, Or, Not of such. SizeUnknown where the answer depends on data.
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
        return self._ask(kind, difference, reason, relation, negated, strict=True) != negated

    def require(self, relation: sympy.Basic | bool, reason: str = "") -> bool:
        """As `decide`, for what must hold lest the program raise: what depends on data is checked at run time."""
        if not self.is_unbacked(relation):
            return self.decide(relation, reason)
        if isinstance(relation, sympy.Not) and isinstance(relation.args[0], sympy.core.relational.Relational):
            relation = _negation(relation.args[0])
        if isinstance(relation, sympy.And):
            return all(self.require(part, reason) for part in relation.args)
        known = self.known(relation)
        if known is not None:
            return known
        if not isinstance(relation, sympy.core.relational.Relational):
            raise SizeUnknown(f"{relation} depends on data")
        kind, difference, negated = _question(relation)
        d = self._normal(difference)
        self._refuse_contradiction(kind, d, not negated, reason)
        self._record(relation, reason, kind, d, not negated)
        return True

    def _refuse_contradiction(self, kind: str, d: sympy.Expr, answer: bool, reason: str) -> None:
        """SizeUnknown where no value of the unbacked symbols gives this answer in the call being traced."""
        hints = {symbol: hint for symbol, hint in self._hints.items() if symbol not in self._unbacked}
        here = self._theorem(kind, self._normal(d.xreplace(hints)))
        if here is not None and here != answer:
            raise SizeUnknown(f"{reason or 'a size'}: what is usually so cannot be in this call")

    def learn(self, relation: sympy.Basic | bool) -> None:
        """Take note of what is so by construction, such as a bound that an operation keeps to."""
        if not isinstance(relation, sympy.core.relational.Relational) or self.known(relation) is not None:
            return
        kind, difference, negated = _question(relation)
        self._record(relation, "", kind, self._normal(difference), not negated, promised=True)

    @contextlib.contextmanager
    def generic(self) -> Iterator[None]:
        """Questions inside are answered as for unbacked sizes of at least 2: for what matters to no value, such as
        the strides of axes with one element."""
        before, self._generic = self._generic, True
        try:
            yield
        finally:
            self._generic = before

    @contextlib.contextmanager
    def assuming(self, hints: dict[sympy.Symbol, int]) -> Iterator[None]:
        """The call inside is one with these values of the symbols, as far as costs are weighed."""
        before, self._hints = self._hints, {**self._hints, **hints}
        try:
            yield
        finally:
            self._hints = before

    @contextlib.contextmanager
    def asked_by(self, op: str) -> Iterator[None]:
        """Questions of torch's shape code inside are those of `op`: reasons name it."""
        before, self.rule = self.rule, f"the shape rule of {op}"
        try:
            yield
        finally:
            self.rule = before

    @property
    def is_generic(self) -> bool:
        """Whether questions are inside of `generic()`: nothing that shape code takes for granted need be checked."""
        return self._generic

    def equal(self, a: Dim, b: Dim, reason: str = "") -> bool:
        """Whether two sizes are equal, recording the relation where that is not a theorem.

        Of unbacked sizes: they are, unless one side is 0 or 1. The graph checks the answer when it runs.
        """
        if type(a) is int and type(b) is int:
            return a == b
        if a is b or a == b:
            return True
        return self._ask("eq", a - b, reason, (a, b), strict=False)

    def less(self, a: Dim, b: Dim, reason: str = "") -> bool:
        """Whether a < b, recording the relation where that is not a theorem. SizeUnknown as `decide`."""
        if type(a) is int and type(b) is int:
            return a < b
        return self._ask("lt", a - b, reason, (a, b), strict=True)

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

    def pinned_marks(self) -> list[tuple[sympy.Symbol, int, list[str]]]:
        """The symbols that the program asked for and that took one value: symbol, value, and what mentions it."""
        found = []
        for symbol, info in self.symbols.items():
            value = self.canonical(symbol) if info.marked else symbol
            if isinstance(value, int):
                found.append((symbol, value, [f"{relation} ({why})" for relation, why in self.entry_relations()
                                              if symbol in relation.free_symbols]))
        return found

    def bounds(self, expr: Dim) -> Interval:
        """An interval that holds `expr` (interval arithmetic over sums, products, floor divisions)."""
        if isinstance(expr, int):
            return expr, expr
        expr = self._normal(expr)
        return (expr, expr) if isinstance(expr, int) else self._interval(expr)

    def specialize(self, expr: Dim, reason: str = "") -> int:
        """Pin a size to its value in this call (recorded, so that `explain` can list it). SizeUnknown where it depends
        on data."""
        expr = self.canonical(expr)
        if isinstance(expr, int):
            return expr
        if self.is_unbacked(expr):
            raise SizeUnknown(f"{reason or 'a plain int'}: the value of {expr} depends on data")
        value = self.hint(expr)
        self.equal(expr, value, reason)
        return value

    # -- questions: `d == 0` and `d < 0` for an expanded difference d

    def _normal(self, expr: Dim) -> Dim:
        expr = self.canonical(expr)
        return expr if isinstance(expr, int) else simplify(expand(expr))

    def _ask(self, kind: str, difference: Dim, reason: str, asked: Any, negated: bool = False,
             strict: bool = True) -> bool:
        d = self._normal(difference)
        answer = self._theorem(kind, d)
        if answer is not None:
            return answer
        if self.is_unbacked(d):
            if strict:
                raise SizeUnknown(f"{reason or 'a question about sizes'}: {_text_of(asked, kind)} depends on data")
            with self.generic():
                answer = self._theorem(kind, d) is not False
            self._refuse_contradiction(kind, d, answer, reason)
        else:
            value = evaluate(d, self._hints)  # of quotients not the whole part
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
            if not (coefficient.is_Integer and term.is_integer):  # 6/s0 is no multiple of 6
                return None
            if term.is_Integer:
                constant = int(term)
            else:
                factor = math.gcd(factor, int(coefficient))
        return False if factor > 1 and constant % factor else None

    def _record(self, fact: sympy.Basic, reason: str, kind: str, d: sympy.Expr, answer: bool,
                promised: bool = False) -> None:
        self._saved.append(_Saved(self._facts, self._replacements, self._ranges))
        self.relations.append(fact)
        self.reasons.append(reason)
        self._promised.append(promised)
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
        low: float
        high: float
        found = self._ranges.get(symbol)
        if found is not None:
            low, high = found
        else:
            info = self.symbols.get(symbol)
            if info is None:
                return -math.inf, math.inf
            low, high = info.low, math.inf if info.high is None else info.high
        if self._generic and symbol in self._unbacked:
            low = min(max(low, 2), high)
        return low, high

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
            if symbol in rest.free_symbols or symbol not in self._unbacked and self.is_unbacked(rest):
                continue  # what is known at entry is never told by what is not
            if abs(coefficient) == 1:
                candidates.append((symbol, expand(-rest * coefficient)))
            elif rest.is_Integer and int(rest) % int(coefficient) == 0:
                candidates.append((symbol, sympy.Integer(-int(rest) // int(coefficient))))
        if candidates:
            order = {symbol: (symbol in self._unbacked, i) for i, symbol in enumerate(self.symbols)}
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
        elif type(expr).__name__ == "FloorDiv":
            return self._floordiv_interval(*map(self._interval, expr.args))
        elif type(expr).__name__ == "Modulo":
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


def _text_of(asked: Any, kind: str) -> str:
    return f"{asked[0]} {'==' if kind == 'eq' else '<'} {asked[1]}" if isinstance(asked, tuple) else str(asked)


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
    "Equality": "Ne", "Unequality": "Eq", "StrictLessThan": "GreaterThan", "GreaterThan": "StrictLessThan",
    "LessThan": "StrictGreaterThan", "StrictGreaterThan": "LessThan",
}


def _negation(relation: sympy.Basic) -> sympy.Basic:
    return getattr(sympy, _OPPOSITE[type(relation).__name__])(relation.lhs, relation.rhs, evaluate=False)
