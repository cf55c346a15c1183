"""Operators on Values: arithmetic, comparison, truth, length, hashing."""

from __future__ import annotations

import operator
import sys
import types
from typing import Any

import torch

from ..breaks import GraphBreak
from ..capture.computed_sizes import answer_of, number_of
from ..capture.known_numbers import decide, pin
from ..capture.tensor_flags import truth_of_flag
from ..capture.traced import TracedScalar
from ..guards.guard_set import MISSING
from ..models.builtins import symbolic_text
from ..models.builtins.modelled_types import changed
from ..models.builtins.plain_parts import answers, plain_part
from ..models.builtins.symbolic_text import text
from ..polyfills import construct
from ..values import (
    BINARY,
    COMPARE,
    SYMBOLS,
    UNARY,
    Interpreter,
    ScalarValue,
    SymValue,
    TupleValue,
    UnreadTuple,
    Value,
    compare_numbers,
    const,
    is_subtype,
    type_name,
    unsupported,
)
from .calls import (
    as_int,
    beside_tensor,
)
from .constant_folding import fold_constants
from .library_code import is_polyfill
from .operator_methods import (
    Attempt,
    Names,
    asks_program,
    attempts,
    refusal,
    sequence_attempt,
    sequence_type,
)


def binary(interp: Interpreter, name: str, a: Value, b: Value, inplace: bool = False) -> Any:
    """`a op b`; `name` is the BinaryOp's. A Value or PUSHED."""
    function, dunder, reflected, inplace_dunder = BINARY[name]
    if a.is_constant and b.is_constant:  # what refuses operands names the operator
        return fold_constants(interp, getattr(operator, inplace_dunder) if inplace else function, a.value, b.value)
    beside_tensor(interp, a, b, BINARY[name][1:])
    if a.is_boxed or b.is_boxed:
        left = plain_part(interp, a, dunder, inplace_dunder) if inplace else plain_part(interp, a, dunder)
        right = b.whole_plain_part(interp) if a.tensor is not None else plain_part(interp, b, reflected)
        if (a.is_recorded or b.is_recorded) and not left.is_boxed and not right.is_boxed:
            return binary(interp, name, left, right, inplace)
        result = None if a.is_number or a.is_recorded else a.arithmetic(interp, name, b, inplace)  # of flags
        return _operate(interp, name, a, b, inplace) if result is None else result
    result = a.arithmetic(interp, name, b, inplace)
    if result is None:
        result = b.reflected(interp, name, a, inplace)
    if result is None and not asks_program(interp.context, _names(name, inplace), a, b):
        result = _combined(interp, name, a, b, inplace)
    if result is not None:
        return result
    left, right = a.as_known(interp), b.as_known(interp)
    if left is not a or right is not b:
        return binary(interp, name, left, right, inplace)
    return _operate(interp, name, a, b, inplace)


def _combined(interp: Interpreter, name: str, a: Value, b: Value, inplace: bool) -> Any:
    """Operators of builtin containers and texts; None where they do not apply."""
    result = a.combine(interp, name, b, inplace)
    return b.combine_reflected(interp, name, a) if result is None else result


def _operate(interp: Interpreter, name: str, a: Value, b: Value, inplace: bool) -> Any:
    """An operator by the data model: the slots of both classes in turn, methods in Python among them."""
    context = interp.context
    if any(x.tensor is not None and y.is_modelled for x, y in ((a, b), (b, a))):
        raise unsupported(a, f"operator {SYMBOLS[name]}")  # C knows what a tensor makes of it
    names = _names(name, inplace)
    symbol = f"{SYMBOLS[name].split()[0]}=" if inplace else SYMBOLS[name]
    error = f"unsupported operand type(s) for {symbol}: {type_name(a.cls)!r} and {type_name(b.cls)!r}"
    methods: list[Value] = []
    last: Attempt | None = None
    refused: str | None = None
    for one in attempts(context, names, a, b):
        if isinstance(one.found, types.FunctionType):
            methods.append(TupleValue([context.const_object(one.found), one.left, one.right]))
        elif one.found is not MISSING and _answers_operator(interp, name, one):
            last = one
            refused = refusal(_seen_by_c(interp, one),
                              slot=False) if sequence_type(one.left) and name in _OF_SEQUENCES \
                else None
            break
    else:
        last = sequence_attempt(context, names, a, b)
        refused = None if last is None else refusal(_seen_by_c(interp, last), slot=True)
    if last is not None and refused is None:
        if not methods:
            return _by_c(interp, name, last)
        if name == "REMAINDER" or issubclass(last.left.cls, dict):  # a text may be the result itself
            raise unsupported(last.left, f"operator {SYMBOLS[name]}")
        seen = _seen_by_c(interp, last)
        methods.append(TupleValue([context.const_object(last.found), seen.left, seen.right]))
    if methods:
        return interp.call(context.const_object(construct.operate), [const(refused or error), *methods], {})
    raise interp.throw(TypeError, refused or error)


#: the operators for which sequences have slots of their own
_OF_SEQUENCES = ("ADD", "MULTIPLY")


def _names(name: str, inplace: bool) -> Names:
    _, dunder, reflected, inplace_dunder = BINARY[name]
    return Names(dunder, reflected, inplace_dunder if inplace else None)


def _seen_by_c(interp: Interpreter, one: Attempt) -> Attempt:
    return Attempt(one.method, one.found, one.left.whole_plain_part(interp), one.right.whole_plain_part(interp))


def _answers_operator(interp: Interpreter, name: str, one: Attempt) -> bool:
    """Whether a method in C answers, or raises, rather than says NotImplemented; a break where nobody knows."""
    if sequence_type(one.left) is not None and name in _OF_SEQUENCES:
        return True
    return one.left.answers_operator(interp, name, one.method, one.found, one.right)


def _by_c(interp: Interpreter, name: str, one: Attempt) -> Any:
    """The result of a method in C for operands that suit it."""
    _, _, reflected, inplace = BINARY[name]
    seen = _seen_by_c(interp, one)
    swapped = one.method == reflected
    if name == "REMAINDER" and sequence_type(one.right if swapped else one.left) in (str, bytes):
        return _formatted(interp, one.right, one.left) if swapped else _formatted(interp, one.left, one.right)
    if all(v.is_constant or v.is_computed or v.is_text for v in (seen.left, seen.right)):
        return binary(interp, name, seen.right, seen.left) if swapped else binary(interp, name, seen.left, seen.right)
    result = _combined(interp, name, seen.right, seen.left, False) if swapped else \
        _combined(interp, name, seen.left, seen.right, one.method == inplace)
    return interp.call(interp.context.const_object(one.found), [seen.left, seen.right],
                {}) if result is None else result


def _formatted(interp: Interpreter, template: Value, argument: Value) -> Value:
    """`template % argument`: argument is asked for its text, whatever its class."""
    plain = template.whole_plain_part(interp).as_known(interp)
    result = interp.format_percent(plain.value, argument)
    if isinstance(plain.value, str) and plain.value and "%" not in plain.value:
        return template  # a text without a place is the result itself
    return result


def unary(interp: Interpreter, opname: str, a: Value) -> Any:
    """`-a`, `+a`, `~a`."""
    _, dunder = UNARY[opname]
    result = a.unary(interp, opname)
    if result is not None:
        return result
    found = interp.context.class_lookup(a.cls, dunder)
    if isinstance(found, types.FunctionType):
        return interp.call(interp.context.const_object(found), [a], {})
    plain = plain_part(interp, a, dunder)
    if plain is not a and found is not MISSING:
        return unary(interp, opname, plain)
    if found is MISSING:
        symbol = {"UNARY_NEGATIVE": "-", "UNARY_POSITIVE": "+", "UNARY_INVERT": "~"}[opname]
        raise interp.throw(TypeError, f"bad operand type for unary {symbol}: {a.cls.__name__!r}")
    raise unsupported(a, opname)


# -- identity and comparison --------------------------------------------------------------------------------


#: types of which there may be two equal objects, or one, as it happens
_LITERALS = (int, float, complex, str, bytes, torch.device)


def same_object(interp: Interpreter, a: Value, b: Value) -> bool:
    """`a is b`."""
    if a is b:
        return True
    if a.cls is b.cls and a.cls in _LITERALS:
        return _same_literal(interp, a, b)
    known = a.is_same(interp, b)
    if known is not None:
        return known
    if a.cls is b.cls and (id(a) in interp.uncached or id(b) in interp.uncached):
        raise GraphBreak("unsupported_value", "identity of what a cached function gave for numbers that change")
    if a.source is not None and b.source is not None and type(a) is type(b):
        interp.context.guards.add(a.source, "distinct", None, interp.context.why)
        interp.context.guards.add(b.source, "distinct", None, interp.context.why)
    return False


def _same_literal(interp: Interpreter, a: Value, b: Value) -> bool:
    """Identity of numbers and texts. Which equal ones are one object is up to CPython, at each call anew."""
    if a.is_constant and b.is_constant and a.value != a.value and b.value != b.value:
        return _one_nan(interp, a, b)
    if is_polyfill(interp.frame.code):  # which asks `x is y or x == y`
        return a.is_constant and b.is_constant and a.value is b.value
    x, y = (interp.context.specialize(v.expr, "is") if v.expr is not None else v.value if v.is_constant
            else None for v in (a, b))
    if x is None or y is None:
        raise GraphBreak("unsupported_value", f"identity of {a.describe()} and {b.describe()}")
    if x != y:
        return False
    if type(x) is int and -5 <= x <= 256:
        return True
    if a.source is None and b.source is None and x is y and type(x) is not torch.device:
        return True
    if a.source is None or b.source is None or a.expr is not None or b.expr is not None:
        raise GraphBreak("unsupported_value", f"identity of two equal constants {x!r}")
    if x is y:
        interp.context.guard(a.source, "same", b.source)
        return True
    interp.context.guards.add(a.source, "distinct", b.source, interp.context.why)
    return False


def compare(interp: Interpreter, symbol: str, a: Value, b: Value) -> Any:
    """`a < b` and the like: a Value or PUSHED."""
    function = COMPARE[symbol][0]
    if a.is_constant and b.is_constant:
        return fold_constants(interp, function, a.value, b.value)
    beside_tensor(interp, a, b, COMPARE[symbol][1:])
    for value in (a, b):
        if isinstance(value, UnreadTuple):
            interp.context.pin(value)
    if a.is_boxed or b.is_boxed:
        answer = _compare_plain_parts(interp, symbol, a, b)
        if answer is not NotImplemented:
            return answer
    answer = a.compare(interp, symbol, b, False)
    if answer is None:
        answer = b.compare(interp, symbol, a, True)
    return _compare_attempts(interp, symbol, a, b) if answer is None else answer


def _is_boxed(left: Value, right: Value) -> bool:
    """Whether one is an instance of a class that is derived from a number or text."""
    return left.plain is not None or right.plain is not None


def _compare_plain_parts(interp: Interpreter, symbol: str, a: Value, b: Value) -> Any:
    """A comparison with an instance of a class derived from a number or text, or of a tensor with a member of an
    enumeration; NotImplemented for other members, which are compared as objects."""
    _, dunder, reflected = COMPARE[symbol]
    if not any(value.plain is not None or value.tensor is not None for value in (a, b)):
        return NotImplemented
    left = plain_part(interp, a, dunder)
    right = b.whole_plain_part(interp) if a.tensor is not None else plain_part(interp, b, reflected)
    is_asked = _is_boxed(left, right) or left is a and right is b
    return _compare_attempts(interp, symbol, a, b) if is_asked else compare(interp, symbol, left, right)


def _compare_attempts(interp: Interpreter, symbol: str, a: Value, b: Value) -> Any:
    """A comparison by the data model: the reflected method first for subclasses, NotImplemented."""
    _, dunder, reflected = COMPARE[symbol]
    attempts = [(interp.context.class_lookup(left.cls, method), left, right, method)
                for left, right, method in _order(interp, a, b, dunder, reflected)]
    for index, (found, left, right, method) in enumerate(attempts):
        if found is None or found is object.__ne__ and interp.context.class_lookup(left.cls, "__eq__") is None:
            raise interp.throw(TypeError, "'NoneType' object is not callable")
        if isinstance(found, types.FunctionType):
            handler = interp.context.const_object(found)
            rest = attempts[index + 1:]
            if not any(_answers(interp, symbol, *other) for other in rest):
                methods = [TupleValue([interp.context.const_object(f), x, y]) for f, x, y, _ in attempts[index:]
                           if isinstance(f, types.FunctionType)]
                return interp.call(interp.context.const_object(construct.compare), [const(symbol), a, b, *methods], {})
            result = interp.call_sync(handler, [left, right])
            if result.literal is not NotImplemented:
                return result
        elif _is_boxed(left, right) and answers(interp, method, left, right):
            x, y = left.whole_plain_part(interp), right.whole_plain_part(interp)
            return compare(interp, symbol, x, y) if left is a else compare(interp, symbol, y, x)
        elif symbol == "!=" and found is object.__ne__ and \
                isinstance(interp.context.class_lookup(left.cls, "__eq__"), types.FunctionType):
            result = interp.call_sync(interp.context.const_object(interp.context.class_lookup(left.cls, "__eq__")),
                                      [left, right])
            if result.literal is not NotImplemented:
                return const(not truth(interp, result))
        elif left.answers_comparisons and not left.is_known_object and index == 0:
            answer = compare_builtin(interp, symbol, a, b)
            if answer is not None:
                return answer
    answer = compare_builtin(interp, symbol, a, b)
    if answer is not None:
        return answer
    for value in (a, b):
        if value.is_instance and value.cls is int:  # the number of a hook
            raise unsupported(value, symbol)
    if symbol in ("==", "!="):
        return const(same_object(interp, a, b) == (symbol == "=="))
    raise interp.throw(TypeError, f"{symbol!r} not supported between instances of {a.cls.__name__!r} and "
                              f"{b.cls.__name__!r}")


def _answers(interp: Interpreter, symbol: str, found: Any, left: Value, right: Value, method: str) -> bool:
    """Whether a comparison method in C may say something else than NotImplemented about a user's object."""
    if _is_boxed(left, right) and not isinstance(found, types.FunctionType) and answers(interp, method, left, right):
        return True
    if found is None:
        return True  # it raises
    if found is getattr(object, method):
        return symbol == "!=" and isinstance(interp.context.class_lookup(left.cls, "__eq__"), types.FunctionType)
    return left.answers_comparisons and not isinstance(found, types.FunctionType) and found is not MISSING


def _order(interp: Interpreter, a: Value, b: Value, dunder: str, reflected: str) -> list[tuple[Value, Value, str]]:
    if a.cls is not b.cls and is_subtype(b.cls, a.cls):
        return [(b, a, reflected), (a, b, dunder)]
    return [(a, b, dunder), (b, a, reflected)]


def compare_builtin(interp: Interpreter, symbol: str, a: Value, b: Value) -> Value | None:
    """Comparison of two builtin objects of a kind."""
    answer = a.compare_same(interp, symbol, b)
    if answer is None:
        for value in (a, b):
            value.check_comparable(symbol)
    return answer


def equal(interp: Interpreter, a: Value, b: Value) -> bool:
    """Whether `a is b or a == b`, as containers compare their items."""
    if a is b:
        return True
    if a.tensor is not None:
        a.is_same(interp, b)
    return truth(interp, interp.finish_sync(compare(interp, "==", a, b))) or _one_nan(interp, a, b)


def _one_nan(interp: Interpreter, a: Value, b: Value) -> bool:
    """Whether two numbers that are not equal are one NaN all the same."""
    if not (a.is_number and b.is_number and a.cls is b.cls and a.cls in (float, complex)):
        return False
    if a.is_constant and b.is_constant:
        if a.value == a.value or b.value == b.value:
            return False
        interp.context.identify(a)
        interp.context.identify(b)
        return a.value is b.value
    for one, other in ((a, b), (b, a)):
        if one.scalar is not None and one.source is not None and other.source is not None:
            truth(interp, compare_numbers(interp, "==", one, one))  # this time it is no NaN
    return False


def truth(interp: Interpreter, value: Value) -> bool:
    """`bool(value)`; a break where it depends on data."""
    known = truth_or_number(interp, value)
    if isinstance(known, TracedScalar):
        answer = truth_of_flag(interp, known)
        if answer is None:
            raise GraphBreak("data_dependent_branch", "")
        return answer
    return known


def truth_or_number(interp: Interpreter, value: Value) -> bool | TracedScalar:
    """`bool(value)`; where it depends on data, the number in the graph that decides."""
    if value.asks_class(interp, "__bool__", "__len__"):
        for name in ("__bool__", "__len__"):
            found = interp.context.class_lookup(value.cls, name)
            if isinstance(found, types.FunctionType):
                result = interp.call_sync(interp.context.const_object(found), [value])
                if name == "__len__":
                    result = _checked_length(interp, result)
                elif result.scalar is None and result.cls is not bool:
                    raise interp.throw(TypeError, f"__bool__ should return bool, returned {result.cls.__name__}")
                return truth_or_number(interp, result)
            if found is not MISSING:
                break
    return value.truth(interp)


def truth_of_number(interp: Interpreter, traced: TracedScalar) -> bool | TracedScalar:
    """The truth of a number that the graph computes, where something is known of it; else the number."""
    known = decide(interp.builder, traced, f"a branch, {interp.loc()}")
    if known is None:
        known = answer_of(interp.builder, traced)
    return traced if known is None else known


def number_of_size(interp: Interpreter, expr: Any) -> ScalarValue:
    """A size as a number that the graph computes."""
    return ScalarValue(number_of(interp.builder, expr))


def joined(interp: Interpreter, *texts: Value) -> Value:
    """The texts in one."""
    return text(interp, symbolic_text.joined, *texts)


def known_number(interp: Interpreter, value: ScalarValue, what: str) -> Any:
    """The value of a number that the graph computes from what is known while tracing, guarded; None for others."""
    return pin(interp.builder, value.traced, f"{what}, {interp.loc()}")


def length(interp: Interpreter, value: Value) -> Value:
    """`len(value)`."""
    if value.is_constant:
        return fold_constants(interp, len, value.value)
    found = interp.context.class_lookup(value.cls, "__len__")
    if isinstance(found, types.FunctionType):
        return _checked_length(interp, interp.call_sync(interp.context.const_object(found), [value]))
    plain = plain_part(interp, value, "__len__")
    if plain is not value and found is not MISSING:
        return length(interp, plain.as_known(interp))
    return value.length(interp)


def _is_negative(interp: Interpreter, number: SymValue) -> bool:
    return truth(interp, interp.finish_sync(compare(interp, "<", number, const(0))))


def _checked_length(interp: Interpreter, found: Value) -> Value:
    """The result of a `__len__` in Python, as `len()` passes it on."""
    if found.expr is not None and not _is_negative(interp, found) or found.scalar is not None:
        return found  # a size, or a number that the graph computes
    number = as_int(interp, found, "len()")
    if number < 0:
        raise interp.throw(ValueError, "__len__() should return >= 0")
    if number > sys.maxsize:
        raise interp.throw(OverflowError, "cannot fit 'int' into an index-sized integer")
    return const(int(number))


def mutate(interp: Interpreter, value: Any) -> None:
    """Note that a list or set changed as a whole."""
    value.dirty = True
    interp.context.writes += 1
    if value.source is not None:
        interp.context.touch(value)
    elif value.base is list and value.owner is not None:
        changed(interp.context, value.owner)
