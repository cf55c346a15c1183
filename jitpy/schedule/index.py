"""Index expressions: integer combinations of loop axes, with floor division and modulo where they do not cancel.

An `Index` is `const + sum(coefficient * atom)`. Coefficients and the constant are `Dim`s; an atom is an `Axis`, a
`Quotient`, a `Remainder`, or a scalar expression (an index read from memory). Arithmetic keeps the form canonical, so
that two equal positions compare equal: this is how fusion finds out that two computations meet at the same place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ..ir.algebra import sympy
from ..ir.sizes_expr import simplify
from ..ir.spec import Dim

_axis_numbers = itertools.count()


class Axis:
    """One loop axis: `0 <= axis < size`; `reduced` where results do not have it. Compared by identity."""

    __slots__ = ("size", "reduced", "number", "name")

    def __init__(self, size: Dim, reduced: bool = False) -> None:
        self.size = size
        self.reduced = reduced
        self.number = next(_axis_numbers)
        self.name = ""

    @property
    def order(self) -> tuple[int, int]:
        return (0, self.number)

    def bounds(self) -> tuple[Dim, Dim] | None:
        return 0, self.size - 1

    def all_axes(self) -> Iterator[Axis]:
        yield self

    def __repr__(self) -> str:
        return self.name or f"{'r' if self.reduced else 'i'}{self.number}"


class Quotient:
    """`index // divisor`, rounded down."""

    __slots__ = ("index", "divisor", "_hash")

    def __init__(self, index: Index, divisor: Dim) -> None:
        self.index = index
        self.divisor = divisor
        self._hash = hash((type(self).__name__, index, divisor))

    @property
    def order(self) -> tuple[int, int]:
        return (1, self._hash)

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is type(self)
            and self._hash == other._hash
            and self.divisor == other.divisor
            and self.index == other.index
        )

    def __hash__(self) -> int:
        return self._hash

    def bounds(self) -> tuple[Dim, Dim] | None:
        found = self.index.bounds()
        if found is None or not all(type(b) is int for b in (*found, self.divisor)):
            return None
        return found[0] // self.divisor, found[1] // self.divisor

    def all_axes(self) -> Iterator[Axis]:
        return self.index.all_axes()

    def __repr__(self) -> str:
        return f"({self.index})//{self.divisor}"


class Remainder(Quotient):
    """`index % divisor`, in `[0, divisor)`."""

    __slots__ = ()

    def bounds(self) -> tuple[Dim, Dim] | None:
        return 0, self.divisor - 1

    def __repr__(self) -> str:
        return f"({self.index})%{self.divisor}"


class Index:
    """`const + sum(coefficient * atom)`, canonical and immutable."""

    __slots__ = ("terms", "const", "_hash")

    def __init__(self, terms: tuple[tuple[Any, Dim], ...] = (), const: Dim = 0) -> None:
        self.terms = terms
        self.const = const
        self._hash = hash((terms, const))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Index)
            and self._hash == other._hash
            and self.const == other.const
            and self.terms == other.terms
        )

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Index | Dim) -> Index:
        if not isinstance(other, Index):
            return self if type(other) is int and other == 0 else Index(self.terms, simplify(self.const + other))
        if not other.terms:
            return self + other.const
        if not self.terms:
            return other + self.const
        return _build(self.terms + other.terms, self.const + other.const)

    __radd__ = __add__

    def __sub__(self, other: Index | Dim) -> Index:
        return self + (other * -1)

    def __rsub__(self, other: Dim) -> Index:
        return self * -1 + other

    def __mul__(self, factor: Dim) -> Index:
        if type(factor) is int:
            if factor == 1:
                return self
            if factor == 0:
                return ZERO
        return Index(tuple((atom, simplify(c * factor)) for atom, c in self.terms), simplify(self.const * factor))

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Dim) -> Index:
        if type(divisor) is int and divisor == 1:
            return self
        whole, rest = self._split(divisor)
        if rest.within(divisor):
            return whole
        return whole + Index(((Quotient(rest, divisor), 1),))

    def __mod__(self, divisor: Dim) -> Index:
        if type(divisor) is int and divisor == 1:
            return ZERO
        _, rest = self._split(divisor)
        if rest.within(divisor):
            return rest
        return Index(((Remainder(rest, divisor), 1),))

    def _split(self, divisor: Dim) -> tuple[Index, Index]:
        """`(whole, rest)` with `self == whole * divisor + rest`. The rest is not negative where `self` is not: compiled
        code divides towards zero."""
        whole, rest = [], []
        for atom, coefficient in self.terms:
            quotient = exact_quotient(coefficient, divisor)
            if quotient is None:
                rest.append((atom, coefficient))
            else:
                whole.append((atom, quotient))
        const, left = self.const, 0
        if type(const) is int and type(divisor) is int:
            const, left = divmod(const, divisor)
        else:
            quotient = exact_quotient(const, divisor)
            const, left = (0, self.const) if quotient is None else (quotient, 0)
        return _not_negative(self, Index(tuple(whole), const), Index(tuple(rest), left), divisor)

    def bounds(self) -> tuple[Dim, Dim] | None:
        """An inclusive range that holds the value, where one is known."""
        low = high = self.const
        for atom, coefficient in self.terms:
            found = atom.bounds()
            if found is None:
                return None
            if type(coefficient) is int and coefficient < 0:
                found = found[1], found[0]
            elif not isinstance(coefficient, int) and coefficient.is_nonnegative is not True:
                return None
            low, high = low + coefficient * found[0], high + coefficient * found[1]
        return low, high

    def within(self, size: Dim) -> bool:
        """Whether `0 <= self < size` is certain."""
        found = self.bounds()
        return found is not None and nonnegative(found[0]) and nonnegative(size - 1 - found[1])

    def all_axes(self) -> Iterator[Axis]:
        for atom, _ in self.terms:
            yield from atom.all_axes()

    def dims(self) -> Iterator[Dim]:
        """All sizes that it is made of."""
        yield self.const
        for term, factor in self.terms:
            yield factor
            if isinstance(term, Quotient):
                yield term.divisor
                yield from term.index.dims()

    def coefficient(self, axis: Axis) -> Dim | None:
        """The stride along `axis`: 0 if it does not occur, None if it occurs otherwise than as a plain term."""
        result: Dim = 0
        for atom, coefficient in self.terms:
            if atom is axis:
                result = coefficient
            elif axis in atom.all_axes():
                return None
        return result

    def replace(self, mapping: dict[Axis, Index], expression: Any = None) -> Index:
        """A copy with axes replaced; `expression(e)` rewrites scalar expressions used as indices."""
        result = Index((), self.const)
        for atom, coefficient in self.terms:
            if isinstance(atom, Axis):
                part = mapping.get(atom)
                result = result + (Index(((atom, coefficient),)) if part is None else part * coefficient)
            elif isinstance(atom, Remainder):
                result = result + (atom.index.replace(mapping, expression) % atom.divisor) * coefficient
            elif isinstance(atom, Quotient):
                result = result + (atom.index.replace(mapping, expression) // atom.divisor) * coefficient
            else:
                result = result + Index(((expression(atom) if expression else atom, coefficient),))
        return result

    def __repr__(self) -> str:
        parts = [f"{atom!r}" if c == 1 else f"{c}*{atom!r}" for atom, c in self.terms]
        if self.const != 0 or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


ZERO = Index()


def of(value: Any) -> Index:
    """An axis, an expression or a size as an index."""
    if isinstance(value, Index):
        return value
    if isinstance(value, (int, sympy.Expr)):
        return Index((), value)
    return Index(((value, 1),))


def _not_negative(index: Index, whole: Index, rest: Index, divisor: Dim) -> tuple[Index, Index]:
    """`index == whole * divisor + rest` with as many divisors moved to the rest as it may lack; everything, where that
    is not known."""
    found = rest.bounds()
    if found is not None and nonnegative(found[0]):
        return whole, rest
    if found is not None and type(found[0]) is int and type(divisor) is int:
        lacking = -(found[0] // divisor)
        return whole - lacking, rest + lacking * divisor
    return ZERO, index


def _build(terms: tuple[tuple[Any, Dim], ...], const: Dim) -> Index:
    found: dict[Any, Dim] = {}
    for atom, coefficient in terms:
        found[atom] = found[atom] + coefficient if atom in found else coefficient
    if len(found) != len(terms):
        found = {atom: simplify(c) for atom, c in found.items()}
    kept = {atom: c for atom, c in found.items() if not (type(c) is int and c == 0)}
    for atom in list(kept):
        # (x // k) * (c * k) + (x % k) * c is x * c
        if type(atom) is Remainder and atom in kept:
            partner = Quotient(atom.index, atom.divisor)
            coefficient = kept[atom]
            if partner in kept and simplify(kept[partner] - coefficient * atom.divisor) == 0:
                del kept[atom], kept[partner]
                rest = _build(tuple(kept.items()), const)
                return rest + atom.index * coefficient
    return Index(tuple(sorted(kept.items(), key=_term_order)), simplify(const))


def _term_order(term: tuple[Any, Dim]) -> tuple[int, int]:
    return term[0].order


def exact_quotient(value: Dim, divisor: Dim) -> Dim | None:
    """`value / divisor` where that is an integer whatever the symbols are, else None."""
    if type(value) is int and type(divisor) is int:
        return value // divisor if divisor and value % divisor == 0 else None
    if value == divisor:
        return 1
    if value == 0:
        return 0
    if not isinstance(divisor, int) and not sympy.sympify(value).free_symbols >= divisor.free_symbols:
        return None
    quotient = sympy.cancel(sympy.sympify(value) / divisor)
    numerator, denominator = quotient.as_numer_denom()
    if denominator == 1:
        return simplify(sympy.expand(numerator))
    return None


def nonnegative(value: Dim) -> bool:
    """Whether the size is certainly not negative."""
    if type(value) is int:
        return value >= 0
    return bool(sympy.expand(value).is_nonnegative)


def same(a: Dim, b: Dim) -> bool:
    """Whether two sizes are equal whatever the symbols are."""
    if type(a) is int and type(b) is int:
        return a == b
    return bool(a == b) or bool(sympy.expand(a - b) == 0)


def flatten(index: tuple[Index, ...], strides: tuple[Dim, ...]) -> Index:
    """The position in memory, in elements."""
    result = ZERO
    for part, stride in zip(index, strides, strict=True):
        result = result + part * stride
    return result


def unflatten(position: Index, shape: tuple[Dim, ...]) -> tuple[Index, ...]:
    """The row-major index of a flat position."""
    result: list[Index] = []
    for k in range(len(shape) - 1, -1, -1):
        size = shape[k]
        if type(size) is int and size == 1:
            result.append(ZERO)
        elif all(type(s) is int and s == 1 for s in shape[:k]):
            result.append(position)  # the outermost axis takes what is left
            position = ZERO
        else:
            result.append(position % size)
            position = position // size
    return tuple(reversed(result))
