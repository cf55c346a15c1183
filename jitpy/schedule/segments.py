"""Index-set splitting: an axis is cut where a condition or a remainder of it changes its form, and what is computed in
each segment is written without them. Concatenations, paddings, rolls and windows become loops over plain memory.

The method is that of compilers' loop splitting: Griebl, Feautrier and Lengauer, "Index Set Splitting", 2000.
"""

from __future__ import annotations

from typing import Any

from .expr import BOOL, Expr, ScalarBuilder, index_of, walk
from .index import Axis, Index, Quotient, Remainder

#: Comparisons of a position with a constant, and where behind the constant the answer changes.
_COMPARISONS = {"lt": 0, "ge": 0, "le": 1, "gt": 1}


def cuts(roots: list[Expr], axis: Axis, most: int) -> list[int]:
    """Where to cut an axis of known size, in order. None at all where it would take more than `most` cuts."""
    size = axis.size
    if not isinstance(size, int):
        return []
    found: set[int] = set()
    for expr in walk(roots):
        if axis not in expr.axes:
            continue
        if expr.op in _COMPARISONS:
            position, bound = expr.args
            if position.op == "index" and bound.op == "const" and _is_shifted(position.attr, axis):
                found.add(bound.attr - position.attr.const + _COMPARISONS[expr.op])
        index = index_of(expr)
        for part in _quotients(index) if index is not None else ():
            if _is_shifted(part.index, axis) and isinstance(part.divisor, int):
                first = part.index.const // part.divisor
                last = (part.index.const + size - 1) // part.divisor
                if last - first > most:
                    return []
                found.update(k * part.divisor - part.index.const for k in range(first + 1, last + 1))
    inside = sorted(cut for cut in found if 0 < cut < size)
    return inside if len(inside) <= most else []


def _is_shifted(index: Index, axis: Axis) -> bool:
    """Whether it is the axis plus a constant."""
    return index.terms == ((axis, 1),) and isinstance(index.const, int)


def _quotients(index: Index) -> list[Quotient]:
    return [atom for atom, _ in index.terms if isinstance(atom, Quotient)]


class Segment:
    """Expressions as they are for `low <= axis < high`. Unchanged parts are the same objects."""

    def __init__(self, axis: Axis, low: int, high: int) -> None:
        self.axis = axis
        self.low = low
        self.high = high
        self._make = ScalarBuilder()
        self._known: dict[Expr, Expr] = {}

    def expr(self, root: Expr) -> Expr:
        """The expression within the segment."""
        for expr in walk([root]):  # operands first
            if expr not in self._known:
                self._known[expr] = self._rewritten(expr) if self.axis in expr.axes else expr
        return self._known[root]

    def index(self, index: Index) -> Index:
        """The index within the segment."""
        result = Index((), index.const)
        for atom, coefficient in index.terms:
            result = result + self._atom(atom) * coefficient
        return index if result == index else result

    def _atom(self, atom: Any) -> Index:
        if isinstance(atom, Expr):
            return Index(((self.expr(atom), 1),))
        if isinstance(atom, Quotient):
            inner = self.index(atom.index)
            if _is_shifted(inner, self.axis) and isinstance(atom.divisor, int):
                first, last = (self.low + inner.const) // atom.divisor, (self.high - 1 + inner.const) // atom.divisor
                if first == last:
                    return inner - first * atom.divisor if isinstance(atom, Remainder) else Index((), first)
            return Index(((type(atom)(inner, atom.divisor), 1),))
        return Index(((atom, 1),))

    def _rewritten(self, expr: Expr) -> Expr:
        make = self._make
        args = tuple([self._known[arg] for arg in expr.args])
        if expr.op in _COMPARISONS:
            answer = self._answer(expr.op, *args)
            if answer is not None:
                return make.const(answer, BOOL)
        if expr.op == "load":
            value, index = expr.attr
            mask = args[0] if args else None
            if mask is not None and mask.op == "const":
                if not mask.attr:
                    return make.const(0, expr.dtype)
                mask = None
            attr: Any = (value, self.index(index))
            args = () if mask is None else (mask,)
        elif expr.op == "index":
            attr = self.index(expr.attr)
            if attr is not expr.attr:
                return make.index(attr)
        else:
            attr = expr.attr
        if args == expr.args and (attr is expr.attr or attr == expr.attr):
            return expr
        if expr.op in ("where", "logical_and", "logical_or", "logical_not"):
            return getattr(make, expr.op)(*args)
        return make.make(expr.op, args, expr.dtype, attr)

    def _answer(self, op: str, position: Expr, bound: Expr) -> bool | None:
        """The answer of a comparison throughout the segment, if it says one thing."""
        if position.op != "index" or bound.op != "const" or not _is_shifted(position.attr, self.axis):
            return None
        cut = bound.attr - position.attr.const + _COMPARISONS[op]
        if self.low < cut < self.high:
            return None
        below = self.high <= cut
        return below if op in ("lt", "le") else not below
