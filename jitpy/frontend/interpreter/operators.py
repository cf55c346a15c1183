"""Operators on Values: arithmetic, comparison, truth, length, hashing."""

from __future__ import annotations

import enum
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ...ir import sizes as size_rules
from ...ir.algebra import sympy
from ..breaks import GraphBreak
from ..capture.computed_sizes import answer_of, number_of
from ..capture.known_numbers import decide, pin
from ..capture.tensor_flags import truth_of_flag
from ..capture.traced import TracedScalar
from ..guards.guard_set import MISSING
from ..guards.source import ConstSource
from ..models.builtins.growing import number_of_items
from ..models.builtins.modelled_types import changed
from ..models.builtins.plain_parts import answers, is_boxed, plain_part, transparent_part, whole_plain_part
from ..models.builtins.symbolic_text import TextValue, format_percent, joined, text
from ..polyfills import construct
from ..values import (
    ArrayValue,
    BoxedValue,
    ConstValue,
    DictValue,
    DictViewValue,
    FunctionValue,
    Interpreter,
    ListValue,
    MethodValue,
    ModelledValue,
    ObjectValue,
    PyValue,
    RangeValue,
    ScalarValue,
    SetValue,
    SliceValue,
    SymValue,
    TensorValue,
    TracebackValue,
    TupleValue,
    UnreadTuple,
    Value,
    WeakReferenceValue,
    const,
    is_number,
    is_subtype,
    type_name,
    unsupported,
)
from .calls import (
    as_int,
    beside_tensor,
    is_index_sized,
    number_value,
    own_methods,
    range_items,
)
from .constant_folding import fold_numpy_numbers, lift
from .hash_keys import check_known, is_compared_by_c, set_keys
from .library_code import is_polyfill
from .operator_methods import (
    ASKED,
    BINARY,
    COMPARE,
    SYMBOLS,
    UNARY,
    Attempt,
    Names,
    asks_program,
    attempts,
    method_of_program,
    refusal,
    sequence_attempt,
    sequence_type,
)

_NUMBERS = (ConstValue, SymValue, ScalarValue)


def is_constant_number(value: Value) -> bool:
    """Whether this is a scalar of numpy's that the code holds on to."""
    return isinstance(value, PyValue) and is_number(value.obj) and isinstance(value.source, ConstSource)


def numpy_operations() -> Any:
    """The module that knows arrays: imported late, since it needs this one."""
    from ..models.arrays import array_operations as numpy_operations

    return numpy_operations


def binary(interp: Interpreter, name: str, a: Value, b: Value, inplace: bool = False) -> Any:
    """`a op b`; `name` is the BinaryOp's. A Value or PUSHED."""
    function, dunder, reflected, inplace_dunder = BINARY[name]
    written = getattr(operator, inplace_dunder) if inplace else function  # what refuses operands names the operator
    if isinstance(a, ConstValue) and isinstance(b, ConstValue):
        return fold_constants(interp, written, a.value, b.value)
    beside_tensor(interp, a, b, BINARY[name][1:])
    if is_boxed(a) or is_boxed(b):
        left = plain_part(interp, a, dunder, inplace_dunder) if inplace else plain_part(interp, a, dunder)
        right = whole_plain_part(interp, b) if isinstance(a, TensorValue) else plain_part(interp, b, reflected)
        if any(map(_is_of_torch_or_numpy, (a, b))) and not is_boxed(left) and not is_boxed(right):
            return binary(interp, name, left, right, inplace)
        flags = _flags(interp, function, BINARY[name][1:], a, b)
        return _operate(interp, name, a, b, inplace) if flags is None else flags
    if isinstance(a, ArrayValue) or isinstance(b, ArrayValue):
        return numpy_operations().operate(interp, name, a, b, inplace=inplace)
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        a, b = _plain_number(interp, a), _plain_number(interp, b)
        if isinstance(a, ConstValue) and isinstance(a.value, (str, bytes)):
            if name == "REMAINDER":
                return format_percent(interp, a.value, b)
            raise GraphBreak("unsupported_op", f"{a.cls.__name__} {SYMBOLS[name]} Tensor")
        if not isinstance(a, (ObjectValue, PyValue)) and not isinstance(b, (ObjectValue, PyValue)):
            if not isinstance(a, TensorValue) and isinstance(a, _NUMBERS) and _is_number(a):
                return _reflected_tensor(interp, name, function, b, a)
            return interp.record(written if isinstance(a, TensorValue) else function, [a, b], {})
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS) and _is_number(a) and _is_number(b):
        return _symbolic_binary(interp, name, function, a, b)
    if isinstance(a, (ConstValue, SymValue)) and isinstance(b, (ConstValue, SymValue)):
        return fold_constants(interp, written, _pin_number(interp, a, name), _pin_number(interp, b, name))
    folded = fold_numpy_numbers(interp, function, [a, b])
    if folded is not None:
        return folded
    if is_constant_number(a) and (is_constant_number(b) or isinstance(b, ConstValue)) or \
            is_constant_number(b) and isinstance(a, ConstValue):
        return numpy_operations().operate(interp, name, a, b)
    result = _flags(interp, function, BINARY[name][1:], a, b)
    if result is None and not asks_program(interp.context, _names(name, inplace), a, b):
        result = _container_binary(interp, name, a, b, inplace)
    if result is not None:
        return result
    left, right = known_text(interp, a), known_text(interp, b)
    if left is not a or right is not b:
        return binary(interp, name, left, right, inplace)
    return _operate(interp, name, a, b, inplace)


def _is_of_torch_or_numpy(value: Value) -> bool:
    return isinstance(value, (TensorValue, ArrayValue)) or isinstance(value, PyValue) and is_number(value.obj)


def _flags(interp: Interpreter, function: Callable[..., Any], names: tuple[str, ...], a: Value,
           b: Value) -> Value | None:
    """An operator of flags' members, which are pure."""
    if isinstance(a, PyValue) and isinstance(b, PyValue) and isinstance(a.obj, enum.Flag) and \
            not any(method_of_program(interp.context, value, *names) for value in (a, b)):
        return fold_constants(interp, function, interp.context.pin(a), interp.context.pin(b))
    return None


def _plain_number(interp: Interpreter, value: Value) -> Value:
    """To tensors, numbers of numpy's (but bools) are those of Python."""
    if isinstance(value, PyValue) and is_number(value.obj) and value.obj.dtype.kind != "b":
        number = interp.context.pin(value).item()
        return const(number) if type(number) in (int, float, complex) else value
    return value


#: what a tensor's reflected operators call
_REFLECTED = {"ADD": torch.Tensor.add, "MULTIPLY": torch.Tensor.mul, "SUBTRACT": torch.rsub}


def known_text(interp: Interpreter, value: Value) -> Value:
    """A text as the string that it is in this call, guarded (or a break); other values as they are. A break for a tuple
    that is not read."""
    if isinstance(value, UnreadTuple):
        interp.context.pin(value)
    return const(interp.context.pin(value)) if isinstance(value, TextValue) else value


def _reflected_tensor(interp: Interpreter, name: str, function: Callable[..., Any], tensor: Value,
                      number: Value) -> Any:
    """`number op tensor`."""
    if name == "TRUE_DIVIDE":
        return interp.record(torch.Tensor.mul, [interp.record(torch.Tensor.reciprocal, [tensor], {}), number], {})
    if name in _REFLECTED:
        return interp.record(_REFLECTED[name], [tensor, number], {})
    return interp.record(function, [number, tensor], {})


def _is_number(value: Value) -> bool:
    return not isinstance(value, ConstValue) or isinstance(value.value, (int, float, complex))


def fold_constants(interp: Interpreter, function: Callable[..., Any], *args: Any) -> Value:
    if function in (operator.lshift, operator.ilshift) and isinstance(args[1], int) and args[1] > 1 << 20:
        raise GraphBreak("unsupported_call", "a huge shift")
    try:
        result = function(*args)
    except Exception as error:
        raise interp.raise_real(error) from None
    return lift(interp, result)


def _symbolic_binary(interp: Interpreter, name: str, function: Callable[..., Any], a: Value, b: Value) -> Value:
    """Arithmetic on symbolic ints and on numbers that the graph computes."""
    a, b = _as_numbers(interp, name, a, b)
    if isinstance(a, ScalarValue) or isinstance(b, ScalarValue):
        with interp.recording(name):
            return number_value(interp.builder.scalar_op(function, interp.to_payload(a), interp.to_payload(b)))
    left = a.expr if isinstance(a, SymValue) else a.value  # type: ignore[attr-defined]
    right = b.expr if isinstance(b, SymValue) else b.value  # type: ignore[attr-defined]
    left, right = _without_bools(left, right)
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
    return fold_constants(interp, function, _pin_number(interp, a, name), _pin_number(interp, b, name))


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
    if not any(isinstance(v, SymValue) and sizes.is_unbacked(v.expr) for v in (a, b)):
        with_float = any(v.cls is float for v in (a, b))
        if any(isinstance(v, SymValue) for v in (a, b)) and (with_float or name == "TRUE_DIVIDE"):
            return _number_of_size(interp, a), _number_of_size(interp, b)
        return a, b
    if name in _SIZE_OPERATORS and all(isinstance(v, SymValue) or v.cls in (int, bool) for v in (a, b)) and not any(
            isinstance(v, ScalarValue) for v in (a, b)):
        if name not in ("FLOOR_DIVIDE", "REMAINDER") or isinstance(b, ConstValue) and b.value > 0:
            return a, b
    return as_number(interp, a), as_number(interp, b)


def _number_of_size(interp: Interpreter, value: Value) -> Value:
    return ScalarValue(number_of(interp.builder, value.expr)) if isinstance(value, SymValue) else value


def as_number(interp: Interpreter, value: Value) -> Value:
    """A size that depends on data as a number that the graph computes; other Values as they are."""
    if isinstance(value, SymValue) and interp.context.sizes.is_unbacked(value.expr):
        return ScalarValue(number_of(interp.builder, value.expr))
    return value


def sym(expr: Any) -> Value:
    """A Value for a size expression."""
    expr = size_rules.simplify(expr) if not isinstance(expr, int) else expr
    return ConstValue(expr) if isinstance(expr, int) else SymValue(expr)


def _pin_number(interp: Interpreter, value: Value, what: str) -> Any:
    return as_int(interp, value, what) if isinstance(value, SymValue) else value.value  # type: ignore[attr-defined]


def _container_binary(interp: Interpreter, name: str, a: Value, b: Value, inplace: bool) -> Any:
    """Operators of lists, tuples, sets, dicts and strings; None where they do not apply."""
    from ..models.builtins.sequence_methods import list_extend
    from ..models.builtins.sets import set_binary

    context = interp.context
    if name == "ADD":
        if isinstance(a, ListValue) and inplace:
            list_extend(interp, a, b)
            return a
        if isinstance(a, ListValue) and isinstance(b, ListValue):
            return ListValue(a.items + b.items)
        if isinstance(a, TupleValue) and isinstance(b, TupleValue):
            sizes = a.cls in (tuple, torch.Size) and b.cls in (tuple, torch.Size)
            return TupleValue(a.items + b.items, None, type(a.cls() + b.cls()) if sizes else tuple)
    if name == "MULTIPLY":
        for x, y in ((a, b), (b, a)):
            if isinstance(x, (ListValue, TupleValue)) and isinstance(y, (ConstValue, SymValue)) and \
                    issubclass(y.cls, int):
                times = as_int(interp, y, "repetition")
                if not is_index_sized(times):
                    raise interp.throw(OverflowError, "cannot fit 'int' into an index-sized integer")
                if inplace and x is a and isinstance(x, ListValue):
                    mutate(interp, x)
                    x.items = x.items * times
                    return x
                if isinstance(x, ListValue):
                    return ListValue(x.items * times)
                return TupleValue(x.items * times, None, type(torch.Size() * 1) if x.cls is torch.Size else tuple)
    if name == "ADD" and a.cls is b.cls is str and not (isinstance(a, ConstValue) and isinstance(b, ConstValue)):
        return text(interp, joined, a, b)
    if name == "REMAINDER" and isinstance(a, ConstValue) and isinstance(a.value, (str, bytes)):
        return format_percent(interp, a.value, b)
    if name in ("AND", "OR", "SUBTRACT", "XOR") and (
            isinstance(a, DictViewValue) or isinstance(a, SetValue) and isinstance(b, (SetValue, DictViewValue))):
        return set_binary(interp, name, a, b, inplace)
    if name == "OR" and isinstance(a, DictValue) and isinstance(b, DictValue) and a.cls is dict and b.cls is dict:
        target = a if inplace else DictValue()
        if not inplace:
            for key, item in context.dict_items(a):
                context.dict_set(target, key, item, context.dict_key_value(a, key))
        for key, item in context.dict_items(b):
            context.dict_set(target, key, item, context.dict_key_value(b, key))
        return target
    if name == "OR" and isinstance(a, PyValue) and isinstance(b, (PyValue, ConstValue)):
        right = b.value if isinstance(b, ConstValue) else context.pin(b)
        if isinstance(a.obj, type) or isinstance(a.obj, types.UnionType):
            return fold_constants(interp, operator.or_, context.pin(a), right)
    return None


def constant_of(interp: Interpreter, value: Value) -> Any:
    """The real object of a Value made of constants; otherwise a graph break."""
    value = transparent_part(interp, value)
    if isinstance(value, ConstValue):
        return value.value
    if isinstance(value, TupleValue):
        items = [constant_of(interp, interp.context.force(v)) for v in value.items]
        return tuple(items) if value.cls is tuple else torch.Size(items) if value.cls is torch.Size \
            else _refuse(value)
    if isinstance(value, ListValue) and value.cls is list:
        return [constant_of(interp, interp.context.force(v)) for v in value.items]
    if isinstance(value, DictValue) and value.cls is dict:
        return {k: constant_of(interp, v) for k, v in interp.context.plain_items(value)}
    if isinstance(value, SymValue):
        return as_int(interp, value, "formatting")
    if isinstance(value, ScalarValue):
        known = pin(interp.builder, value.traced, f"use as a constant, {interp.loc()}")
        if known is not None:
            return known
    if isinstance(value, TextValue) or isinstance(value, PyValue) and isinstance(
            value.obj, (type, enum.Enum, types.ModuleType)) and not method_of_program(interp.context, value, *ASKED):
        return interp.context.pin(value)
    return _refuse(value)


def _refuse(value: Value) -> Any:
    raise unsupported(value, "use as a constant")


def _operate(interp: Interpreter, name: str, a: Value, b: Value, inplace: bool) -> Any:
    """An operator by the data model: the slots of both classes in turn, methods in Python among them."""
    context = interp.context
    if any(isinstance(x, TensorValue) and isinstance(y, ModelledValue) for x, y in ((a, b), (b, a))):
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
        if name == "REMAINDER" or isinstance(last.left, DictValue):  # a text may be the result itself
            raise unsupported(last.left, f"operator {SYMBOLS[name]}")
        seen = _seen_by_c(interp, last)
        methods.append(TupleValue([context.const_object(last.found), seen.left, seen.right]))
    if methods:
        return interp.call(context.const_object(construct.operate), [const(refused or error), *methods], {})
    raise interp.throw(TypeError, refused or error)


#: the operators for which sequences have slots of their own
_OF_SEQUENCES = ("ADD", "MULTIPLY")

#: their C operators have answered already where they can, and say NotImplemented to anything else
_BUILTIN_OPERANDS = (ConstValue, SymValue, ScalarValue, TensorValue)


def _names(name: str, inplace: bool) -> Names:
    _, dunder, reflected, inplace_dunder = BINARY[name]
    return Names(dunder, reflected, inplace_dunder if inplace else None)


def _seen_by_c(interp: Interpreter, one: Attempt) -> Attempt:
    return Attempt(one.method, one.found, whole_plain_part(interp, one.left), whole_plain_part(interp, one.right))


def _answers_operator(interp: Interpreter, name: str, one: Attempt) -> bool:
    """Whether a method in C answers, or raises, rather than says NotImplemented; a break where nobody knows."""
    left, right = one.left, one.right
    if sequence_type(left) is not None and name in _OF_SEQUENCES:
        return True
    if isinstance(left, _BUILTIN_OPERANDS) or is_boxed(left):
        if isinstance(right, PyValue) and isinstance(right.obj, torch.Tensor):
            raise unsupported(left, f"operator {SYMBOLS[name]}")  # a tensor that the graph does not take
        return one.method == "__mod__" and sequence_type(left) in (str,
                                                                   bytes) or answers(interp, one.method, left, right)
    if isinstance(left, SetValue) and isinstance(right, SetValue) or isinstance(left, DictValue) and \
            isinstance(right, DictValue) and one.found is getattr(dict, one.method, None):
        return True
    if isinstance(left, SetValue) and not issubclass(right.cls, (set, frozenset)) or isinstance(left, DictValue) and \
            not issubclass(right.cls, dict) and one.method != "__ior__" or isinstance(left, (ListValue, TupleValue)):
        return False
    raise unsupported(left, f"operator {SYMBOLS[name]}")


def _by_c(interp: Interpreter, name: str, one: Attempt) -> Any:
    """The result of a method in C for operands that suit it."""
    _, _, reflected, inplace = BINARY[name]
    seen = _seen_by_c(interp, one)
    swapped = one.method == reflected
    if name == "REMAINDER" and sequence_type(one.right if swapped else one.left) in (str, bytes):
        return _formatted(interp, one.right, one.left) if swapped else _formatted(interp, one.left, one.right)
    if all(isinstance(v, (*_NUMBERS, TextValue)) for v in (seen.left, seen.right)):
        return binary(interp, name, seen.right, seen.left) if swapped else binary(interp, name, seen.left, seen.right)
    result = _container_binary(interp, name, seen.right, seen.left, False) if swapped else \
        _container_binary(interp, name, seen.left, seen.right, one.method == inplace)
    return interp.call(interp.context.const_object(one.found), [seen.left, seen.right],
                {}) if result is None else result


def _formatted(interp: Interpreter, template: Value, argument: Value) -> Value:
    """`template % argument`: argument is asked for its text, whatever its class."""
    plain = known_text(interp, whole_plain_part(interp, template))
    assert isinstance(plain, ConstValue)
    result = format_percent(interp, plain.value, argument)
    if isinstance(plain.value, str) and plain.value and "%" not in plain.value:
        return template  # a text without a place is the result itself
    return result


def unary(interp: Interpreter, opname: str, a: Value) -> Any:
    """`-a`, `+a`, `~a`."""
    function, dunder = UNARY[opname]
    own_methods(interp, a, dunder)
    if isinstance(a, ConstValue):
        return fold_constants(interp, function, a.value)
    if isinstance(a, ArrayValue):
        return numpy_operations().operate(interp, opname, a)
    if isinstance(a, TensorValue):
        return interp.record(function, [a], {})
    if isinstance(a, SymValue):
        if opname == "UNARY_NEGATIVE":
            return sym(-a.expr)
        if opname == "UNARY_POSITIVE":
            return a
        return sym(-a.expr - 1)
    if isinstance(a, ScalarValue):
        with interp.recording(opname):
            return number_value(interp.builder.scalar_op(function, a.traced))
    folded = fold_numpy_numbers(interp, function, [a])
    if folded is not None:
        return folded
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
    if isinstance(a, TensorValue) and isinstance(b, TensorValue):
        check_identity(interp, a, b)
    if a.cls is b.cls and a.cls in _LITERALS:
        return _same_literal(interp, a, b)
    if isinstance(a, ConstValue) and isinstance(b, ConstValue):
        return a.value is b.value
    if isinstance(a, WeakReferenceValue) and isinstance(b, WeakReferenceValue):
        raise unsupported(a, "is")  # an object may have one that serves all who ask for it
    if isinstance(a, TracebackValue) and isinstance(b, TracebackValue):
        raise unsupported(a, "is")  # every frame that an exception leaves puts another one in front
    if isinstance(a, (PyValue, FunctionValue)) and isinstance(b, (PyValue, FunctionValue)):
        x = interp.context.pin(a) if isinstance(a, PyValue) else a.real
        y = interp.context.pin(b) if isinstance(b, PyValue) else b.real
        return x is not None and x is y
    if a.cls is b.cls and (id(a) in interp.uncached or id(b) in interp.uncached):
        raise GraphBreak("unsupported_value", "identity of what a cached function gave for numbers that change")
    if a.source is not None and b.source is not None and type(a) is type(b):
        interp.context.guards.add(a.source, "distinct", None, interp.context.why)
        interp.context.guards.add(b.source, "distinct", None, interp.context.why)
    return False


def check_identity(interp: Interpreter, *tensors: TensorValue) -> None:
    """The program asks which object a tensor is. A break where eager's may be another one."""
    for tensor in tensors:
        interp.builder.speculation.check_identity(tensor.traced)


def _same_literal(interp: Interpreter, a: Value, b: Value) -> bool:
    """Identity of numbers and texts. Which equal ones are one object is up to CPython, at each call anew."""
    if isinstance(a, ConstValue) and isinstance(b, ConstValue) and a.value != a.value and b.value != b.value:
        return _one_nan(interp, a, b)
    if is_polyfill(interp.frame.code):  # which asks `x is y or x == y`
        return isinstance(a, ConstValue) and isinstance(b, ConstValue) and a.value is b.value
    x, y = (interp.context.specialize(v.expr, "is") if isinstance(v, SymValue) else v.value if isinstance(v, ConstValue)
            else None for v in (a, b))
    if x is None or y is None:
        raise GraphBreak("unsupported_value", f"identity of {a.describe()} and {b.describe()}")
    if x != y:
        return False
    if type(x) is int and -5 <= x <= 256:
        return True
    if a.source is None and b.source is None and x is y and type(x) is not torch.device:
        return True
    if a.source is None or b.source is None or isinstance(a, SymValue) or isinstance(b, SymValue):
        raise GraphBreak("unsupported_value", f"identity of two equal constants {x!r}")
    if x is y:
        interp.context.guard(a.source, "same", b.source)
        return True
    interp.context.guards.add(a.source, "distinct", None, interp.context.why)
    interp.context.guards.add(b.source, "distinct", None, interp.context.why)
    return False


#: opaque objects that no tensor is equal to
_NEVER_TENSORS = (type, types.ModuleType, types.BuiltinFunctionType, enum.Enum)


def compare(interp: Interpreter, symbol: str, a: Value, b: Value) -> Any:
    """`a < b` and the like: a Value or PUSHED."""
    function, dunder, reflected = COMPARE[symbol]
    if isinstance(a, ConstValue) and isinstance(b, ConstValue):
        return fold_constants(interp, function, a.value, b.value)
    beside_tensor(interp, a, b, COMPARE[symbol][1:])
    if isinstance(a, UnreadTuple) or isinstance(b, UnreadTuple):
        interp.context.pin(a if isinstance(a, UnreadTuple) else b)  # type: ignore[arg-type]
    if isinstance(a, BoxedValue) or isinstance(b, BoxedValue):
        left = plain_part(interp, a, dunder)
        right = whole_plain_part(interp, b) if isinstance(a, TensorValue) else plain_part(interp, b, reflected)
        if not isinstance(left, BoxedValue) and not isinstance(right, BoxedValue):
            return compare(interp, symbol, left, right)
        return _compare_attempts(interp, symbol, a, b)
    if isinstance(a, ArrayValue) or isinstance(b, ArrayValue):
        return numpy_operations().operate(interp, symbol, a, b)
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        other = b if isinstance(a, TensorValue) else a
        if is_boxed(other):  # a member of an enumeration of numbers
            plain = whole_plain_part(interp, b) if other is b else plain_part(interp, a, dunder)
            if plain is not other:
                return compare(interp, symbol, a, plain) if other is b else compare(interp, symbol, plain, b)
            return _compare_attempts(interp, symbol, a, b)
        if isinstance(other, TensorValue) or isinstance(other, _NUMBERS) and _is_number(other):
            if isinstance(a, ScalarValue):  # which asks the tensor
                return interp.record(getattr(operator, reflected), [b, a], {})
            return interp.record(function, [a, b], {})
        if isinstance(other, PyValue) and not isinstance(other.obj, _NEVER_TENSORS):
            if not is_number(other.obj):
                raise unsupported(other, f"{symbol} with a tensor")
            return interp.record(function, [a, b], {})
        if symbol in ("==", "!=") and not isinstance(other, (ListValue, TupleValue, ObjectValue)):
            return const(symbol == "!=")
        raise GraphBreak("unsupported_op", f"Tensor {symbol} {other.cls.__name__}")
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return _compare_numbers(interp, symbol, function, a, b)
    if isinstance(a, (PyValue, FunctionValue)) and isinstance(b, (PyValue, FunctionValue, ConstValue)) or \
            isinstance(b, (PyValue, FunctionValue)) and isinstance(a, ConstValue):
        answer = _compare_objects(interp, function, a, b)
        if answer is not None:
            return answer
    return _compare_attempts(interp, symbol, a, b)


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
            if not (isinstance(result, ConstValue) and result.value is NotImplemented):
                return result
        elif (isinstance(left, BoxedValue) or isinstance(right, BoxedValue)) and answers(interp, method, left, right):
            x, y = whole_plain_part(interp, left), whole_plain_part(interp, right)
            return compare(interp, symbol, x, y) if left is a else compare(interp, symbol, y, x)
        elif symbol == "!=" and found is object.__ne__ and \
                isinstance(interp.context.class_lookup(left.cls, "__eq__"), types.FunctionType):
            result = interp.call_sync(interp.context.const_object(interp.context.class_lookup(left.cls, "__eq__")),
                                      [left, right])
            if not (isinstance(result, ConstValue) and result.value is NotImplemented):
                return const(not truth(interp, result))
        elif isinstance(left, (ListValue, TupleValue, DictValue, SetValue)) and index == 0:
            answer = compare_builtin(interp, symbol, a, b)
            if answer is not None:
                return answer
    answer = compare_builtin(interp, symbol, a, b)
    if answer is not None:
        return answer
    for value in (a, b):
        if isinstance(value, ObjectValue) and value.cls is int:  # the number of a hook
            raise unsupported(value, symbol)
    if symbol in ("==", "!="):
        return const(same_object(interp, a, b) == (symbol == "=="))
    raise interp.throw(TypeError, f"{symbol!r} not supported between instances of {a.cls.__name__!r} and "
                              f"{b.cls.__name__!r}")


def _answers(interp: Interpreter, symbol: str, found: Any, left: Value, right: Value, method: str) -> bool:
    """Whether a comparison method in C may say something else than NotImplemented about a user's object."""
    if isinstance(left, BoxedValue) or isinstance(right, BoxedValue):
        if not isinstance(found, types.FunctionType) and answers(interp, method, left, right):
            return True
    if found is None:
        return True  # it raises
    if found is getattr(object, method):
        return symbol == "!=" and isinstance(interp.context.class_lookup(left.cls, "__eq__"), types.FunctionType)
    return isinstance(left, (TupleValue, ListValue, DictValue, SetValue, PyValue)) and \
        not isinstance(found, types.FunctionType) and found is not MISSING


def _order(interp: Interpreter, a: Value, b: Value, dunder: str, reflected: str) -> list[tuple[Value, Value, str]]:
    if a.cls is not b.cls and is_subtype(b.cls, a.cls):
        return [(b, a, reflected), (a, b, dunder)]
    return [(a, b, dunder), (b, a, reflected)]


def _compare_numbers(interp: Interpreter, symbol: str, function: Callable[..., Any], a: Value, b: Value) -> Value:
    if isinstance(a, ScalarValue) or isinstance(b, ScalarValue):
        if not (_is_number(a) and _is_number(b)):
            return const(symbol == "!=")
        with interp.recording(symbol):
            return number_value(interp.builder.scalar_op(function, interp.to_payload(a), interp.to_payload(b)))
    left = a.expr if isinstance(a, SymValue) else a.value  # type: ignore[attr-defined]
    right = b.expr if isinstance(b, SymValue) else b.value  # type: ignore[attr-defined]
    if not all(isinstance(x, (int, float, sympy.Expr)) for x in (left, right)):
        if symbol in ("==", "!="):
            return const(symbol == "!=")
        return fold_constants(interp, function, _pin_number(interp, a, symbol), _pin_number(interp, b, symbol))
    if _is_vast(left) or _is_vast(right):
        return fold_constants(interp, function, _pin_number(interp, a, symbol), _pin_number(interp, b, symbol))
    if any(isinstance(x, float) for x in (left, right)):
        if not any(isinstance(x, sympy.Expr) for x in (left, right)):
            return fold_constants(interp, function, left, right)
        with interp.recording(symbol):
            return number_value(interp.builder.scalar_op(function, *(interp.to_payload(as_number(interp, v))
                                                                     for v in (a, b))))
    if any(interp.context.sizes.is_unbacked(x) for x in (left, right)):
        return _compare_computed(interp, symbol, function, a, b)
    return const(interp.context.sizes.decide(_size_relation(symbol, left, right),
                                             f"{left} {symbol} {right} at {interp.loc()}"))


_SIZE_RELATIONS = {"<": "Lt", "<=": "Le", "==": "Eq", "!=": "Ne", ">": "Gt", ">=": "Ge"}


def _size_relation(symbol: str, left: Any, right: Any) -> Any:
    return getattr(sympy, _SIZE_RELATIONS[symbol])(*_without_bools(left, right))


def _compare_computed(interp: Interpreter, symbol: str, function: Callable[..., Any], a: Value, b: Value) -> Value:
    """A comparison with a size that depends on data: known, or a truth value that the graph computes."""
    known = interp.context.sizes.known(_size_relation(symbol, interp.to_payload(a), interp.to_payload(b)))
    if known is not None:
        return const(known)
    return _compare_numbers(interp, symbol, function, as_number(interp, a), as_number(interp, b))


def _compare_objects(interp: Interpreter, function: Callable[..., Any], a: Value, b: Value) -> Value | None:
    """Classes, modules, functions, enum members: by identity, unless their class defines more."""
    def real(v: Value) -> Any:
        if isinstance(v, ConstValue):
            return v.value
        if isinstance(v, PyValue):
            return interp.context.pin(v)
        return v.real if v.real is not None else v  # type: ignore[attr-defined]

    x, y = real(a), real(b)
    if all(is_compared_by_c(o) for o in (x, y)):
        return fold_constants(interp, function, x, y)
    return None


def compare_builtin(interp: Interpreter, symbol: str, a: Value, b: Value) -> Value | None:
    """Comparison of builtin containers."""
    context = interp.context
    if isinstance(a, ListValue) and isinstance(b, ListValue) or isinstance(a, TupleValue) and isinstance(b, TupleValue):
        xs = [context.force(v) for v in a.items]
        ys = [context.force(v) for v in b.items]
        if symbol in ("==", "!="):
            if len(xs) != len(ys):
                return const(symbol == "!=")
            return const(all(equal(interp, x, y) for x, y in zip(xs, ys, strict=True)) == (symbol == "=="))
        for x, y in zip(xs, ys, strict=False):
            if not equal(interp, x, y):
                return interp.finish_sync(compare(interp, symbol, x, y))
        return const(COMPARE[symbol][0](len(xs), len(ys)))
    if symbol in ("==", "!=") and all(isinstance(v, DictViewValue) and v.kind == "items" for v in (a, b)):
        a, b = a.of, b.of  # type: ignore[attr-defined]
    if isinstance(a, DictValue) and isinstance(b, DictValue) and symbol in ("==", "!="):
        xs_, ys_ = dict(context.dict_items(a)), dict(context.dict_items(b))
        check_known(a, (*xs_, *ys_))
        same = xs_.keys() == ys_.keys() and all(equal(interp, v, ys_[k]) for k, v in xs_.items())
        return const(same == (symbol == "=="))
    if isinstance(a, (SetValue, DictViewValue)) and isinstance(b, (SetValue, DictViewValue)):
        return const(COMPARE[symbol][0](set(set_keys(interp, a)), set(set_keys(interp, b))))
    if isinstance(a, RangeValue) and isinstance(b, RangeValue) and symbol in ("==", "!="):
        xs = range_items(interp, a)
        ys = range_items(interp, b)
        return const(([x.value for x in xs] == [y.value for y in ys]) == (symbol == "=="))  # type: ignore[attr-defined]
    if isinstance(a, SliceValue) and isinstance(b, SliceValue):
        if symbol not in ("==", "!="):
            raise unsupported(a, symbol)
        same = all(equal(interp, getattr(a, n), getattr(b, n)) for n in ("start", "stop", "step"))
        return const(same == (symbol == "=="))
    if isinstance(a, MethodValue) and isinstance(b, MethodValue) and symbol in ("==", "!="):
        same = equal(interp, a.func, b.func) and same_object(interp, a.self, b.self)
        return const(same == (symbol == "=="))
    if isinstance(a, PyValue) and not is_compared_by_c(a.obj) or isinstance(b, PyValue) and \
            not is_compared_by_c(b.obj):
        raise unsupported(a if isinstance(a, PyValue) else b, symbol)
    return None


def equal(interp: Interpreter, a: Value, b: Value) -> bool:
    """Whether `a is b or a == b`, as containers compare their items."""
    if a is b:
        return True
    if isinstance(a, TensorValue) and isinstance(b, TensorValue):
        check_identity(interp, a, b)
    return truth(interp, interp.finish_sync(compare(interp, "==", a, b))) or _one_nan(interp, a, b)


def _one_nan(interp: Interpreter, a: Value, b: Value) -> bool:
    """Whether two numbers that are not equal are one NaN all the same."""
    if not (isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS) and a.cls is b.cls and a.cls in (float, complex)):
        return False
    if isinstance(a, ConstValue) and isinstance(b, ConstValue):
        if a.value == a.value or b.value == b.value:
            return False
        interp.context.identify(a)
        interp.context.identify(b)
        return a.value is b.value
    for one, other in ((a, b), (b, a)):
        if isinstance(one, ScalarValue) and one.source is not None and other.source is not None:
            truth(interp, _compare_numbers(interp, "==", operator.eq, one, one))  # this time it is no NaN
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
    if isinstance(value, ConstValue):
        if value.value is NotImplemented:
            return True
        return bool(value.value)
    if isinstance(value, SymValue):
        return interp.context.sizes.decide(sympy.Ne(value.expr, 0), f"truth at {interp.loc()}")
    if isinstance(value, ScalarValue):
        known = decide(interp.builder, value.traced, f"a branch, {interp.loc()}")
        if known is None:
            known = answer_of(interp.builder, value.traced)
        return value.traced if known is None else known
    if isinstance(value, ArrayValue):
        raise GraphBreak("data_dependent_branch", "the truth of a numpy array")
    if isinstance(value, PyValue) and is_number(value.obj):
        return bool(interp.context.pin(value))
    if isinstance(value, TensorValue):
        own_methods(interp, value, "__bool__")
        with interp.recording("bool"):
            result = interp.builder.call(torch.Tensor.__bool__, (value.traced,), {}, interp.loc())
        assert isinstance(result, (bool, TracedScalar))
        return result
    if isinstance(value, (ListValue, TupleValue, DictValue, SetValue, RangeValue, DictViewValue, ObjectValue)) or \
            isinstance(value, PyValue) and method_of_program(interp.context, value, "__bool__", "__len__"):
        for name in ("__bool__", "__len__"):
            found = interp.context.class_lookup(value.cls, name)
            if isinstance(found, types.FunctionType):
                result = interp.call_sync(interp.context.const_object(found), [value])
                if name == "__bool__" and not (isinstance(result, ScalarValue) or result.cls is bool):
                    raise interp.throw(TypeError, f"__bool__ should return bool, returned {result.cls.__name__}")
                return truth_or_number(interp, result if name == "__bool__" else _checked_length(interp, result))
            if isinstance(value, BoxedValue) and found is not MISSING:
                return truth_or_number(interp, value.plain)
            if found is not MISSING and name == "__bool__":
                raise unsupported(value, "truth")
            if found is not MISSING:
                return truth_or_number(interp, length(interp, value))
        return True
    if not isinstance(value, PyValue) or not hasattr(value.cls, "__bool__") and not hasattr(value.cls, "__len__"):
        return True
    if isinstance(value.obj, (type, enum.Enum, str)):
        return bool(interp.context.pin(value))
    raise unsupported(value, "truth")


def length(interp: Interpreter, value: Value) -> Value:
    """`len(value)`."""
    if isinstance(value, ConstValue):
        return fold_constants(interp, len, value.value)
    found = interp.context.class_lookup(value.cls, "__len__")
    if isinstance(found, types.FunctionType):
        return _checked_length(interp, interp.call_sync(interp.context.const_object(found), [value]))
    plain = plain_part(interp, value, "__len__")
    if plain is not value and found is not MISSING:
        return length(interp, known_text(interp, plain))
    if isinstance(value, (ListValue, TupleValue, DictValue, SetValue)):
        return number_of_items(interp.context, value)
    if isinstance(value, DictViewValue):
        return number_of_items(interp.context, value.of)
    if isinstance(value, RangeValue):
        if isinstance(value.stop, SymValue) and isinstance(value.start, ConstValue) and value.start.value == 0 \
                and isinstance(value.step, ConstValue) and value.step.value == 1:
            return const(0) if _is_negative(interp, value.stop) else value.stop
        return const(len(range_items(interp, value)))
    if isinstance(value, ArrayValue):
        return numpy_operations().length(interp, value)
    if isinstance(value, TensorValue):
        sizes = value.traced.spec.shape
        return sym(sizes[0]) if sizes else interp.record(torch.Tensor.__len__, [value], {})
    if found is MISSING:
        raise interp.throw(TypeError, f"object of type {value.cls.__name__!r} has no len()")
    raise unsupported(value, "len()")


def _is_negative(interp: Interpreter, number: SymValue) -> bool:
    return truth(interp, interp.finish_sync(compare(interp, "<", number, const(0))))


def _checked_length(interp: Interpreter, found: Value) -> Value:
    """The result of a `__len__` in Python, as `len()` passes it on."""
    if isinstance(found, SymValue) and not _is_negative(interp, found) or isinstance(found, ScalarValue):
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
    elif isinstance(value, ListValue) and value.owner is not None:
        changed(interp.context, value.owner)
