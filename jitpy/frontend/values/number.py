"""Numbers that are not constants: symbolic sizes, and numbers that the graph computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ...ir import sizes as size_rules
from ...ir.algebra import sympy
from ..breaks import GraphBreak
from ..guards.source import Source
from .base import Interpreter, TraceContext, Value, unsupported
from .constant import ConstValue, const
from .operator_tables import BINARY, COMPARE, UNARY


class ComputedNumberValue(Value):
    """A number that is no constant."""

    __slots__ = ()
    is_number = True
    is_computed = True

    def arithmetic(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        return symbolic_binary(interp, name, self, other) if other.is_number else None

    def reflected(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        return symbolic_binary(interp, name, other, self) if other.is_number else None

    answers_operator = Value.answers_by_c

    def compare(self, interp: Interpreter, symbol: str, other: Value, swapped: bool) -> Any:
        if not other.is_number and not isinstance(other, ConstValue):
            return None
        return compare_numbers(interp, symbol, *((other, self) if swapped else (self, other)))


class SymValue(ComputedNumberValue):
    """A symbolic int: `expr` over the capture's size symbols."""

    __slots__ = ("expr",)
    is_rebuilt = True
    cls = int
    is_atomic = True

    def __init__(self, expr: sympy.Expr, source: Source | None = None) -> None:
        self.source = source
        self.expr = expr

    def part_of_text(self, context: TraceContext) -> Any:
        if context.sizes.is_unbacked(self.expr):
            raise GraphBreak("unsupported_value", "a look at a text made of a size that depends on data")
        return context.specialize(self.expr, f"a text, {context.builder.loc}")

    def truth(self, interp: Interpreter) -> bool:
        return interp.context.sizes.decide(sympy.Ne(self.expr, 0), f"truth at {interp.loc()}")

    def converted(self, interp: Interpreter, function: Any) -> Value | None:
        if function is abs and interp.context.sizes.decide(self.expr < 0, f"abs() at {interp.loc()}"):
            return interp.from_payload(-self.expr)
        return self if function in (int, abs) else None

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        return _part_of_number(self, name)

    def unary(self, interp: Interpreter, name: str) -> Value:
        if name == "UNARY_POSITIVE":
            return self
        return sym(-self.expr if name == "UNARY_NEGATIVE" else -self.expr - 1)

    def arithmetic(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        if isinstance(other, ConstValue) and not other.is_number:
            return interp.fold(_written(name, inplace), self.as_index(interp, name), other.value)
        return super().arithmetic(interp, name, other, inplace)

    def reflected(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        if isinstance(other, ConstValue) and not other.is_number:
            return interp.fold(_written(name, inplace), other.value, self.as_index(interp, name))
        return super().reflected(interp, name, other, inplace)

    def key(self, interp: Interpreter) -> int:
        return interp.as_int(self, "hash()")

    def payload(self, interp: Interpreter) -> sympy.Expr:
        return self.expr

    def constant(self, interp: Interpreter) -> int:
        return interp.as_int(self, "formatting")

    def numpy_fake(self, interp: Interpreter, fake: Callable[[Any], Any]) -> Any:
        return interp.builder.sizes.hint(self.expr)

    def as_index(self, interp: Interpreter, what: str) -> int:
        number = interp.context.specialize(self.expr, f"{what} at {interp.loc()}")
        interp.context.specialized.append(f"{self.expr} at {what}, {interp.loc()}")
        return number


class ScalarValue(ComputedNumberValue):
    """A number that the graph computes (`.item()` and arithmetic on it); `traced` is the graph builder's
    `TracedScalar`."""

    __slots__ = ("traced",)
    is_atomic = True

    def __init__(self, traced: Any, source: Source | None = None) -> None:
        self.source = source
        self.traced = traced

    def part_of_text(self, context: TraceContext) -> Any:
        known = context.known_number(self.traced, f"a text, {context.builder.loc}")
        if known is None:
            raise GraphBreak("unsupported_value", "a look at a text made of a number that the graph computes")
        return known

    def converted(self, interp: Interpreter, function: Any) -> Value | None:
        with interp.recording(function.__name__):
            return interp.from_payload(interp.builder.scalar_op(function, self.traced))

    @property
    def cls(self) -> type:  # type: ignore[override]
        return self.traced.kind

    def truth(self, interp: Interpreter) -> Any:
        return interp.truth_of_number(self.traced)

    def unary(self, interp: Interpreter, name: str) -> Value:
        with interp.recording(name):
            return interp.from_payload(interp.builder.scalar_op(UNARY[name][0], self.traced))

    def payload(self, interp: Interpreter) -> Any:
        return self.traced

    def constant(self, interp: Interpreter) -> Any:
        known = interp.known_number(self, "use as a constant")
        return super().constant(interp) if known is None else known

    def numpy_fake(self, interp: Interpreter, fake: Callable[[Any], Any]) -> Any:
        return self.cls(1)

    def as_index(self, interp: Interpreter, what: str) -> int | None:
        known = interp.known_number(self, what)
        if known is None:
            known = interp.count_of_number(self.traced)
        if known is None:
            raise GraphBreak("data_dependent_branch", f"{what} needs the value of a tensor")
        return known if isinstance(known, int) else None


ScalarValue.scalar = ScalarValue.traced  # type: ignore[misc]  # the slot itself: faster than a property


def _written(name: str, inplace: bool) -> Any:
    """The function of an operator as the program wrote it: its name is in the errors."""
    return getattr(operator, BINARY[name][3]) if inplace else BINARY[name][0]


def count_value(count: Any) -> Value:
    """A Value for a number of items."""
    return ConstValue(int(count)) if isinstance(count, int) or count.is_Integer else SymValue(count)


def sym(expr: Any) -> Value:
    """A Value for a size expression."""
    expr = size_rules.simplify(expr) if not isinstance(expr, int) else expr
    return ConstValue(expr) if isinstance(expr, int) else SymValue(expr)


def symbolic_binary(interp: Interpreter, name: str, a: Value, b: Value) -> Value:
    """Arithmetic on symbolic ints and on numbers that the graph computes."""
    function = BINARY[name][0]
    a, b = _as_numbers(interp, name, a, b)
    if isinstance(a, ScalarValue) or isinstance(b, ScalarValue):
        with interp.recording(name):
            return interp.from_payload(interp.builder.scalar_op(function, a.payload(interp), b.payload(interp)))
    left, right = _without_bools(a.payload(interp), b.payload(interp))
    if all(isinstance(x, (int, sympy.Expr)) and not _is_vast(x) for x in (left, right)):
        if name in ("ADD", "SUBTRACT", "MULTIPLY"):
            return sym(function(left, right))
        if name in ("FLOOR_DIVIDE", "REMAINDER"):
            if not isinstance(right, int) or right > 0:
                if isinstance(right,
                              int) or interp.context.sizes.decide(sympy.Gt(right, 0), f"{name} at {interp.loc()}"):
                    rule = size_rules.floordiv if name == "FLOOR_DIVIDE" else size_rules.mod
                    return sym(rule(left, right))
        if name == "POWER" and isinstance(right, int) and right >= 0:
            return sym(left ** right)
    return interp.fold(function, _pinned(interp, a, name), _pinned(interp, b, name))


def _is_vast(number: Any) -> bool:
    """Whether an int has more bits than a size expression should have. Python refuses a text of 4300 digits."""
    return isinstance(number, int) and number.bit_length() > 1024


def _without_bools(left: Any, right: Any) -> tuple[Any, Any]:
    """Operands beside which sympy takes True for a number, not for a proposition."""
    return int(left) if isinstance(left, bool) else left, int(right) if isinstance(right, bool) else right


#: operators whose results on sizes are sizes
_SIZE_OPERATORS = {"ADD", "SUBTRACT", "MULTIPLY", "FLOOR_DIVIDE", "REMAINDER"}


def _as_numbers(interp: Interpreter, name: str, a: Value, b: Value) -> tuple[Value, Value]:
    """Sizes that depend on data are numbers of the graph where the result is no size."""
    sizes = interp.context.sizes
    if not any(v.expr is not None and sizes.is_unbacked(v.expr) for v in (a, b)):
        with_float = any(v.cls is float for v in (a, b))
        if any(v.expr is not None for v in (a, b)) and (with_float or name == "TRUE_DIVIDE"):
            return _number_of_size(interp, a), _number_of_size(interp, b)
        return a, b
    if name in _SIZE_OPERATORS and all(
            v.scalar is None and (v.expr is not None or v.cls in (int, bool)) for v in (a, b)):
        if name not in ("FLOOR_DIVIDE", "REMAINDER") or b.is_constant and b.literal > 0:
            return a, b
    return as_number(interp, a), as_number(interp, b)


def _number_of_size(interp: Interpreter, value: Value) -> Value:
    return interp.number_of_size(value.expr) if value.expr is not None else value


def as_number(interp: Interpreter, value: Value) -> Value:
    """A size that depends on data as a number that the graph computes; other Values as they are."""
    if isinstance(value, SymValue) and interp.context.sizes.is_unbacked(value.expr):
        return interp.number_of_size(value.expr)
    return value


def _pinned(interp: Interpreter, value: Value, what: str) -> Any:
    return value.as_index(interp, what) if isinstance(value, SymValue) else value.payload(interp)


def compare_numbers(interp: Interpreter, symbol: str, a: Value, b: Value) -> Value:
    """A comparison of numbers, of which one is symbolic, with each other or with a constant."""
    function = COMPARE[symbol][0]
    if isinstance(a, ScalarValue) or isinstance(b, ScalarValue):
        if not (a.is_number and b.is_number):
            return const(symbol == "!=")
        with interp.recording(symbol):
            return interp.from_payload(interp.builder.scalar_op(function, a.payload(interp), b.payload(interp)))
    left, right = a.payload(interp), b.payload(interp)
    if not all(isinstance(x, (int, float, sympy.Expr)) for x in (left, right)):
        if symbol in ("==", "!="):
            return const(symbol == "!=")
        return interp.fold(function, _pinned(interp, a, symbol), _pinned(interp, b, symbol))
    if _is_vast(left) or _is_vast(right):
        return interp.fold(function, _pinned(interp, a, symbol), _pinned(interp, b, symbol))
    if any(isinstance(x, float) for x in (left, right)):
        if not any(isinstance(x, sympy.Expr) for x in (left, right)):
            return interp.fold(function, left, right)
        with interp.recording(symbol):
            return interp.from_payload(interp.builder.scalar_op(function, *(as_number(interp, v).payload(interp)
                                                                     for v in (a, b))))
    if any(interp.context.sizes.is_unbacked(x) for x in (left, right)):
        return _compare_computed(interp, symbol, a, b)
    return const(interp.context.sizes.decide(_size_relation(symbol, left, right),
                                             f"{left} {symbol} {right} at {interp.loc()}"))


_SIZE_RELATIONS = {"<": "Lt", "<=": "Le", "==": "Eq", "!=": "Ne", ">": "Gt", ">=": "Ge"}


def _size_relation(symbol: str, left: Any, right: Any) -> Any:
    return getattr(sympy, _SIZE_RELATIONS[symbol])(*_without_bools(left, right))


def _compare_computed(interp: Interpreter, symbol: str, a: Value, b: Value) -> Value:
    """A comparison with a size that depends on data: known, or a truth value that the graph computes."""
    known = interp.context.sizes.known(_size_relation(symbol, a.payload(interp), b.payload(interp)))
    if known is not None:
        return const(known)
    return compare_numbers(interp, symbol, as_number(interp, a), as_number(interp, b))


def _part_of_number(value: Value, name: str) -> Value:
    """`real`, `imag`, `numerator` or `denominator` of an int or float."""
    if value.cls not in (int, float) or name not in ("real", "imag", "numerator", "denominator"):
        raise unsupported(value, f".{name}")
    return value if name in ("real", "numerator") else const(value.cls(0) if name == "imag" else 1)
