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
from ..capture.traced import TracedScalar
from ..guards.guard_set import MISSING
from ..guards.source import ConstSource
from ..models.arrays.array_values import ArrayValue, is_number
from ..models.builtins.growing import number_of_items
from ..models.builtins.modelled_types import changed
from ..models.builtins.plain_parts import answers, is_boxed, plain_part, transparent_part, whole_plain_part
from ..models.builtins.symbolic_text import TextValue, format_percent, joined, text
from ..models.tensors.computed_sizes import answer_of, number_of
from ..models.tensors.known_numbers import decide, pin
from ..models.tensors.tensor_flags import truth_of_flag
from ..polyfills import construct
from ..values.base import (
    BoxedValue,
    ConstValue,
    DictValue,
    DictViewValue,
    FunctionValue,
    ListValue,
    MethodValue,
    ObjectValue,
    PyValue,
    RangeValue,
    ScalarValue,
    SetValue,
    SliceValue,
    StandInValue,
    SymValue,
    TensorValue,
    TracebackValue,
    TupleValue,
    UnreadTuple,
    Value,
    WeakReferenceValue,
    const,
    is_subtype,
    type_name,
    unsupported,
)
from .calls import (
    as_int,
    beside_tensor,
    call,
    is_index_sized,
    number_value,
    own_methods,
    range_items,
    record,
    recording,
    to_payload,
)
from .constant_folding import fold_numpy_numbers, lift
from .hash_keys import check_known, is_compared_by_c, set_keys
from .interpreter import Executor, is_polyfill
from .operator_methods import (
    ASKED,
    Attempt,
    Names,
    asks_program,
    attempts,
    method_of_program,
    refusal,
    sequence_attempt,
    sequence_type,
)

#: BinaryOp name -> (operator function, dunder, reflected dunder, in-place dunder)
BINARY: dict[str, tuple[Callable[..., Any], str, str, str]] = {
    "ADD": (operator.add, "__add__", "__radd__", "__iadd__"),
    "SUBTRACT": (operator.sub, "__sub__", "__rsub__", "__isub__"),
    "MULTIPLY": (operator.mul, "__mul__", "__rmul__", "__imul__"),
    "TRUE_DIVIDE": (operator.truediv, "__truediv__", "__rtruediv__", "__itruediv__"),
    "FLOOR_DIVIDE": (operator.floordiv, "__floordiv__", "__rfloordiv__", "__ifloordiv__"),
    "REMAINDER": (operator.mod, "__mod__", "__rmod__", "__imod__"),
    "POWER": (operator.pow, "__pow__", "__rpow__", "__ipow__"),
    "MATRIX_MULTIPLY": (operator.matmul, "__matmul__", "__rmatmul__", "__imatmul__"),
    "LSHIFT": (operator.lshift, "__lshift__", "__rlshift__", "__ilshift__"),
    "RSHIFT": (operator.rshift, "__rshift__", "__rrshift__", "__irshift__"),
    "AND": (operator.and_, "__and__", "__rand__", "__iand__"),
    "OR": (operator.or_, "__or__", "__ror__", "__ior__"),
    "XOR": (operator.xor, "__xor__", "__rxor__", "__ixor__"),
}
_SYMBOLS = {"ADD": "+", "SUBTRACT": "-", "MULTIPLY": "*", "TRUE_DIVIDE": "/", "FLOOR_DIVIDE": "//", "REMAINDER": "%",
            "POWER": "** or pow()", "MATRIX_MULTIPLY": "@", "LSHIFT": "<<", "RSHIFT": ">>", "AND": "&", "OR": "|",
            "XOR": "^"}
UNARY = {"UNARY_NEGATIVE": (operator.neg, "__neg__"), "UNARY_POSITIVE": (operator.pos, "__pos__"),
         "UNARY_INVERT": (operator.invert, "__invert__")}
COMPARE = {"<": (operator.lt, "__lt__", "__gt__"), "<=": (operator.le, "__le__", "__ge__"),
           "==": (operator.eq, "__eq__", "__eq__"), "!=": (operator.ne, "__ne__", "__ne__"),
           ">": (operator.gt, "__gt__", "__lt__"), ">=": (operator.ge, "__ge__", "__le__")}
_NUMBERS = (ConstValue, SymValue, ScalarValue)


def is_constant_number(value: Value) -> bool:
    """Whether this is a scalar of numpy's that the code holds on to."""
    return isinstance(value, PyValue) and is_number(value.obj) and isinstance(value.source, ConstSource)


def numpy_operations() -> Any:
    """The module that knows arrays: imported late, since it needs this one."""
    from ..models.arrays import array_operations as numpy_operations

    return numpy_operations


def binary(ex: Executor, name: str, a: Value, b: Value, inplace: bool = False) -> Any:
    """`a op b`; `name` is the BinaryOp's. A Value or PUSHED."""
    function, dunder, reflected, inplace_dunder = BINARY[name]
    written = getattr(operator, inplace_dunder) if inplace else function  # what refuses operands names the operator
    if isinstance(a, ConstValue) and isinstance(b, ConstValue):
        return fold_constants(ex, written, a.value, b.value)
    beside_tensor(ex, a, b, BINARY[name][1:])
    if is_boxed(a) or is_boxed(b):
        left = plain_part(ex, a, dunder, inplace_dunder) if inplace else plain_part(ex, a, dunder)
        right = whole_plain_part(ex, b) if isinstance(a, TensorValue) else plain_part(ex, b, reflected)
        if any(map(_is_of_torch_or_numpy, (a, b))) and not is_boxed(left) and not is_boxed(right):
            return binary(ex, name, left, right, inplace)
        flags = _flags(ex, function, BINARY[name][1:], a, b)
        return _operate(ex, name, a, b, inplace) if flags is None else flags
    if isinstance(a, ArrayValue) or isinstance(b, ArrayValue):
        return numpy_operations().operate(ex, name, a, b, inplace=inplace)
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        a, b = _plain_number(ex, a), _plain_number(ex, b)
        if isinstance(a, ConstValue) and isinstance(a.value, (str, bytes)):
            if name == "REMAINDER":
                return format_percent(ex, a.value, b)
            raise GraphBreak("unsupported_op", f"{a.cls.__name__} {_SYMBOLS[name]} Tensor")
        if not isinstance(a, (ObjectValue, PyValue)) and not isinstance(b, (ObjectValue, PyValue)):
            if not isinstance(a, TensorValue) and isinstance(a, _NUMBERS) and _is_number(a):
                return _reflected_tensor(ex, name, function, b, a)
            return record(ex, written if isinstance(a, TensorValue) else function, [a, b], {})
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS) and _is_number(a) and _is_number(b):
        return _symbolic_binary(ex, name, function, a, b)
    if isinstance(a, (ConstValue, SymValue)) and isinstance(b, (ConstValue, SymValue)):
        return fold_constants(ex, written, _pin_number(ex, a, name), _pin_number(ex, b, name))
    folded = fold_numpy_numbers(ex, function, [a, b])
    if folded is not None:
        return folded
    if is_constant_number(a) and (is_constant_number(b) or isinstance(b, ConstValue)) or \
            is_constant_number(b) and isinstance(a, ConstValue):
        return numpy_operations().operate(ex, name, a, b)
    result = _flags(ex, function, BINARY[name][1:], a, b)
    if result is None and not asks_program(ex.world, _names(name, inplace), a, b):
        result = _container_binary(ex, name, a, b, inplace)
    if result is not None:
        return result
    left, right = known_text(ex, a), known_text(ex, b)
    if left is not a or right is not b:
        return binary(ex, name, left, right, inplace)
    return _operate(ex, name, a, b, inplace)


def _is_of_torch_or_numpy(value: Value) -> bool:
    return isinstance(value, (TensorValue, ArrayValue)) or isinstance(value, PyValue) and is_number(value.obj)


def _flags(ex: Executor, function: Callable[..., Any], names: tuple[str, ...], a: Value, b: Value) -> Value | None:
    """An operator of flags' members, which are pure."""
    if isinstance(a, PyValue) and isinstance(b, PyValue) and isinstance(a.obj, enum.Flag) and \
            not any(method_of_program(ex.world, value, *names) for value in (a, b)):
        return fold_constants(ex, function, ex.world.pin(a), ex.world.pin(b))
    return None


def _plain_number(ex: Executor, value: Value) -> Value:
    """To tensors, numbers of numpy's (but bools) are those of Python."""
    if isinstance(value, PyValue) and is_number(value.obj) and value.obj.dtype.kind != "b":
        number = ex.world.pin(value).item()
        return const(number) if type(number) in (int, float, complex) else value
    return value


#: what a tensor's reflected operators call
_REFLECTED = {"ADD": torch.Tensor.add, "MULTIPLY": torch.Tensor.mul, "SUBTRACT": torch.rsub}


def known_text(ex: Executor, value: Value) -> Value:
    """A text as the string that it is in this call, guarded (or a break); other values as they are. A break for a tuple
    that is not read."""
    if isinstance(value, UnreadTuple):
        ex.world.pin(value)
    return const(ex.world.pin(value)) if isinstance(value, TextValue) else value


def _reflected_tensor(ex: Executor, name: str, function: Callable[..., Any], tensor: Value, number: Value) -> Any:
    """`number op tensor`."""
    if name == "TRUE_DIVIDE":
        return record(ex, torch.Tensor.mul, [record(ex, torch.Tensor.reciprocal, [tensor], {}), number], {})
    if name in _REFLECTED:
        return record(ex, _REFLECTED[name], [tensor, number], {})
    return record(ex, function, [number, tensor], {})


def _is_number(value: Value) -> bool:
    return not isinstance(value, ConstValue) or isinstance(value.value, (int, float, complex))


def fold_constants(ex: Executor, function: Callable[..., Any], *args: Any) -> Value:
    if function in (operator.lshift, operator.ilshift) and isinstance(args[1], int) and args[1] > 1 << 20:
        raise GraphBreak("unsupported_call", "a huge shift")
    try:
        result = function(*args)
    except Exception as error:
        raise ex.raise_real(error) from None
    return lift(ex, result)


def _symbolic_binary(ex: Executor, name: str, function: Callable[..., Any], a: Value, b: Value) -> Value:
    """Arithmetic on symbolic ints and on numbers that the graph computes."""
    a, b = _as_numbers(ex, name, a, b)
    if isinstance(a, ScalarValue) or isinstance(b, ScalarValue):
        with recording(ex, name):
            return number_value(ex.recorder.scalar_op(function, to_payload(ex, a), to_payload(ex, b)))
    left = a.expr if isinstance(a, SymValue) else a.value  # type: ignore[attr-defined]
    right = b.expr if isinstance(b, SymValue) else b.value  # type: ignore[attr-defined]
    left, right = _without_bools(left, right)
    if all(isinstance(x, (int, sympy.Expr)) for x in (left, right)):
        if name in ("ADD", "SUBTRACT", "MULTIPLY"):
            return sym(function(left, right))
        if name in ("FLOOR_DIVIDE", "REMAINDER"):
            if not isinstance(right, int) or right > 0:
                if isinstance(right, int) or ex.world.sizes.decide(sympy.Gt(right, 0), f"{name} at {ex.loc()}"):
                    rule = size_rules.floordiv if name == "FLOOR_DIVIDE" else size_rules.mod
                    return sym(rule(left, right))
        if name == "POWER" and isinstance(right, int) and right >= 0:
            return sym(left ** right)
    return fold_constants(ex, function, _pin_number(ex, a, name), _pin_number(ex, b, name))


def _without_bools(left: Any, right: Any) -> tuple[Any, Any]:
    """Operands beside which sympy takes True for a number, not for a proposition."""
    return int(left) if isinstance(left, bool) else left, int(right) if isinstance(right, bool) else right


#: operators whose results on sizes are sizes
_SIZE_OPERATORS = {"ADD", "SUBTRACT", "MULTIPLY", "FLOOR_DIVIDE", "REMAINDER"}


def _as_numbers(ex: Executor, name: str, a: Value, b: Value) -> tuple[Value, Value]:
    """Sizes that depend on data are numbers of the graph where the result is no size."""
    sizes = ex.world.sizes
    if not any(isinstance(v, SymValue) and sizes.is_unbacked(v.expr) for v in (a, b)):
        with_float = any(v.cls is float for v in (a, b))
        if any(isinstance(v, SymValue) for v in (a, b)) and (with_float or name == "TRUE_DIVIDE"):
            return _number_of_size(ex, a), _number_of_size(ex, b)
        return a, b
    if name in _SIZE_OPERATORS and all(isinstance(v, SymValue) or v.cls in (int, bool) for v in (a, b)) and not any(
            isinstance(v, ScalarValue) for v in (a, b)):
        if name not in ("FLOOR_DIVIDE", "REMAINDER") or isinstance(b, ConstValue) and b.value > 0:
            return a, b
    return as_number(ex, a), as_number(ex, b)


def _number_of_size(ex: Executor, value: Value) -> Value:
    return ScalarValue(number_of(ex.recorder, value.expr)) if isinstance(value, SymValue) else value


def as_number(ex: Executor, value: Value) -> Value:
    """A size that depends on data as a number that the graph computes; other Values as they are."""
    if isinstance(value, SymValue) and ex.world.sizes.is_unbacked(value.expr):
        return ScalarValue(number_of(ex.recorder, value.expr))
    return value


def sym(expr: Any) -> Value:
    """A Value for a size expression."""
    expr = size_rules.simplify(expr) if not isinstance(expr, int) else expr
    return ConstValue(expr) if isinstance(expr, int) else SymValue(expr)


def _pin_number(ex: Executor, value: Value, what: str) -> Any:
    return as_int(ex, value, what) if isinstance(value, SymValue) else value.value  # type: ignore[attr-defined]


def _container_binary(ex: Executor, name: str, a: Value, b: Value, inplace: bool) -> Any:
    """Operators of lists, tuples, sets, dicts and strings; None where they do not apply."""
    from ..models.builtins.sequence_methods import list_extend
    from ..models.builtins.sets import set_binary

    world = ex.world
    if name == "ADD":
        if isinstance(a, ListValue) and inplace:
            list_extend(ex, a, b)
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
                times = as_int(ex, y, "repetition")
                if not is_index_sized(times):
                    raise ex.throw(OverflowError, "cannot fit 'int' into an index-sized integer")
                if inplace and x is a and isinstance(x, ListValue):
                    mutate(ex, x)
                    x.items = x.items * times
                    return x
                if isinstance(x, ListValue):
                    return ListValue(x.items * times)
                return TupleValue(x.items * times, None, type(torch.Size() * 1) if x.cls is torch.Size else tuple)
    if name == "ADD" and a.cls is b.cls is str and not (isinstance(a, ConstValue) and isinstance(b, ConstValue)):
        return text(ex, joined, a, b)
    if name == "REMAINDER" and isinstance(a, ConstValue) and isinstance(a.value, (str, bytes)):
        return format_percent(ex, a.value, b)
    if name in ("AND", "OR", "SUBTRACT", "XOR") and (
            isinstance(a, DictViewValue) or isinstance(a, SetValue) and isinstance(b, (SetValue, DictViewValue))):
        return set_binary(ex, name, a, b, inplace)
    if name == "OR" and isinstance(a, DictValue) and isinstance(b, DictValue) and a.cls is dict and b.cls is dict:
        target = a if inplace else DictValue()
        if not inplace:
            for key, item in world.dict_items(a):
                world.dict_set(target, key, item, world.dict_key_value(a, key))
        for key, item in world.dict_items(b):
            world.dict_set(target, key, item, world.dict_key_value(b, key))
        return target
    if name == "OR" and isinstance(a, PyValue) and isinstance(b, (PyValue, ConstValue)):
        right = b.value if isinstance(b, ConstValue) else world.pin(b)
        if isinstance(a.obj, type) or isinstance(a.obj, types.UnionType):
            return fold_constants(ex, operator.or_, world.pin(a), right)
    return None


def constant_of(ex: Executor, value: Value) -> Any:
    """The real object of a Value made of constants; otherwise a graph break."""
    value = transparent_part(ex, value)
    if isinstance(value, ConstValue):
        return value.value
    if isinstance(value, TupleValue):
        items = [constant_of(ex, ex.world.force(v)) for v in value.items]
        return tuple(items) if value.cls is tuple else torch.Size(items) if value.cls is torch.Size \
            else _refuse(value)
    if isinstance(value, ListValue) and value.cls is list:
        return [constant_of(ex, ex.world.force(v)) for v in value.items]
    if isinstance(value, DictValue) and value.cls is dict:
        return {k: constant_of(ex, v) for k, v in ex.world.plain_items(value)}
    if isinstance(value, SymValue):
        return as_int(ex, value, "formatting")
    if isinstance(value, ScalarValue):
        known = pin(ex.recorder, value.traced, f"use as a constant, {ex.loc()}")
        if known is not None:
            return known
    if isinstance(value, TextValue) or isinstance(value, PyValue) and isinstance(
            value.obj, (type, enum.Enum, types.ModuleType)) and not method_of_program(ex.world, value, *ASKED):
        return ex.world.pin(value)
    return _refuse(value)


def _refuse(value: Value) -> Any:
    raise unsupported(value, "use as a constant")


def _operate(ex: Executor, name: str, a: Value, b: Value, inplace: bool) -> Any:
    """An operator by the data model: the slots of both classes in turn, methods in Python among them."""
    world = ex.world
    if any(isinstance(x, TensorValue) and isinstance(y, StandInValue) for x, y in ((a, b), (b, a))):
        raise unsupported(a, f"operator {_SYMBOLS[name]}")  # C knows what a tensor makes of it
    names = _names(name, inplace)
    symbol = f"{_SYMBOLS[name].split()[0]}=" if inplace else _SYMBOLS[name]
    error = f"unsupported operand type(s) for {symbol}: {type_name(a.cls)!r} and {type_name(b.cls)!r}"
    methods: list[Value] = []
    last: Attempt | None = None
    refused: str | None = None
    for one in attempts(world, names, a, b):
        if isinstance(one.found, types.FunctionType):
            methods.append(TupleValue([world.const_object(one.found), one.left, one.right]))
        elif one.found is not MISSING and _answers_operator(ex, name, one):
            last = one
            refused = refusal(_seen_by_c(ex, one), slot=False) if sequence_type(one.left) and name in _OF_SEQUENCES \
                else None
            break
    else:
        last = sequence_attempt(world, names, a, b)
        refused = None if last is None else refusal(_seen_by_c(ex, last), slot=True)
    if last is not None and refused is None:
        if not methods:
            return _by_c(ex, name, last)
        if name == "REMAINDER" or isinstance(last.left, DictValue):  # a text may be the result itself
            raise unsupported(last.left, f"operator {_SYMBOLS[name]}")
        seen = _seen_by_c(ex, last)
        methods.append(TupleValue([world.const_object(last.found), seen.left, seen.right]))
    if methods:
        return call(ex, world.const_object(construct.operate), [const(refused or error), *methods], {})
    raise ex.throw(TypeError, refused or error)


#: the operators for which sequences have slots of their own
_OF_SEQUENCES = ("ADD", "MULTIPLY")

#: their C operators have answered already where they can, and say NotImplemented to anything else
_BUILTIN_OPERANDS = (ConstValue, SymValue, ScalarValue, TensorValue)


def _names(name: str, inplace: bool) -> Names:
    _, dunder, reflected, inplace_dunder = BINARY[name]
    return Names(dunder, reflected, inplace_dunder if inplace else None)


def _seen_by_c(ex: Executor, one: Attempt) -> Attempt:
    return Attempt(one.method, one.found, whole_plain_part(ex, one.left), whole_plain_part(ex, one.right))


def _answers_operator(ex: Executor, name: str, one: Attempt) -> bool:
    """Whether a method in C answers, or raises, rather than says NotImplemented; a break where nobody knows."""
    left, right = one.left, one.right
    if sequence_type(left) is not None and name in _OF_SEQUENCES:
        return True
    if isinstance(left, _BUILTIN_OPERANDS) or is_boxed(left):
        if isinstance(right, PyValue) and isinstance(right.obj, torch.Tensor):
            raise unsupported(left, f"operator {_SYMBOLS[name]}")  # a tensor that the graph does not take
        return one.method == "__mod__" and sequence_type(left) in (str, bytes) or answers(ex, one.method, left, right)
    if isinstance(left, SetValue) and isinstance(right, SetValue) or isinstance(left, DictValue) and \
            isinstance(right, DictValue) and one.found is getattr(dict, one.method, None):
        return True
    if isinstance(left, SetValue) and not issubclass(right.cls, (set, frozenset)) or isinstance(left, DictValue) and \
            not issubclass(right.cls, dict) and one.method != "__ior__" or isinstance(left, (ListValue, TupleValue)):
        return False
    raise unsupported(left, f"operator {_SYMBOLS[name]}")


def _by_c(ex: Executor, name: str, one: Attempt) -> Any:
    """What a method in C makes of operands that suit it."""
    _, _, reflected, inplace = BINARY[name]
    seen = _seen_by_c(ex, one)
    swapped = one.method == reflected
    if name == "REMAINDER" and sequence_type(one.right if swapped else one.left) in (str, bytes):
        return _formatted(ex, one.right, one.left) if swapped else _formatted(ex, one.left, one.right)
    if all(isinstance(v, (*_NUMBERS, TextValue)) for v in (seen.left, seen.right)):
        return binary(ex, name, seen.right, seen.left) if swapped else binary(ex, name, seen.left, seen.right)
    result = _container_binary(ex, name, seen.right, seen.left, False) if swapped else \
        _container_binary(ex, name, seen.left, seen.right, one.method == inplace)
    return call(ex, ex.world.const_object(one.found), [seen.left, seen.right], {}) if result is None else result


def _formatted(ex: Executor, template: Value, argument: Value) -> Value:
    """`template % argument`: argument is asked for its text, whatever its class."""
    plain = known_text(ex, whole_plain_part(ex, template))
    assert isinstance(plain, ConstValue)
    result = format_percent(ex, plain.value, argument)
    if isinstance(plain.value, str) and plain.value and "%" not in plain.value:
        return template  # a text without a place is the result itself
    return result


def unary(ex: Executor, opname: str, a: Value) -> Any:
    """`-a`, `+a`, `~a`."""
    function, dunder = UNARY[opname]
    own_methods(ex, a, dunder)
    if isinstance(a, ConstValue):
        return fold_constants(ex, function, a.value)
    if isinstance(a, ArrayValue):
        return numpy_operations().operate(ex, opname, a)
    if isinstance(a, TensorValue):
        return record(ex, function, [a], {})
    if isinstance(a, SymValue):
        if opname == "UNARY_NEGATIVE":
            return sym(-a.expr)
        if opname == "UNARY_POSITIVE":
            return a
        return sym(-a.expr - 1)
    if isinstance(a, ScalarValue):
        with recording(ex, opname):
            return number_value(ex.recorder.scalar_op(function, a.traced))
    folded = fold_numpy_numbers(ex, function, [a])
    if folded is not None:
        return folded
    found = ex.world.class_lookup(a.cls, dunder)
    if isinstance(found, types.FunctionType):
        return call(ex, ex.world.const_object(found), [a], {})
    plain = plain_part(ex, a, dunder)
    if plain is not a and found is not MISSING:
        return unary(ex, opname, plain)
    if found is MISSING:
        symbol = {"UNARY_NEGATIVE": "-", "UNARY_POSITIVE": "+", "UNARY_INVERT": "~"}[opname]
        raise ex.throw(TypeError, f"bad operand type for unary {symbol}: {a.cls.__name__!r}")
    raise unsupported(a, opname)


# -- identity and comparison --------------------------------------------------------------------------------


#: types of which there may be two equal objects, or one, as it happens
_LITERALS = (int, float, complex, str, bytes, torch.device)


def same_object(ex: Executor, a: Value, b: Value) -> bool:
    """`a is b`."""
    if a is b:
        return True
    if isinstance(a, TensorValue) and isinstance(b, TensorValue):
        check_identity(ex, a, b)
    if a.cls is b.cls and a.cls in _LITERALS:
        return _same_literal(ex, a, b)
    if isinstance(a, ConstValue) and isinstance(b, ConstValue):
        return a.value is b.value
    if isinstance(a, WeakReferenceValue) and isinstance(b, WeakReferenceValue):
        raise unsupported(a, "is")  # an object may have one that serves all who ask for it
    if isinstance(a, TracebackValue) and isinstance(b, TracebackValue):
        raise unsupported(a, "is")  # every frame that an exception leaves puts another one in front
    if isinstance(a, (PyValue, FunctionValue)) and isinstance(b, (PyValue, FunctionValue)):
        x = ex.world.pin(a) if isinstance(a, PyValue) else a.real
        y = ex.world.pin(b) if isinstance(b, PyValue) else b.real
        return x is not None and x is y
    if a.cls is b.cls and (id(a) in ex.uncached or id(b) in ex.uncached):
        raise GraphBreak("unsupported_value", "identity of what a cached function gave for numbers that change")
    if a.source is not None and b.source is not None and type(a) is type(b):
        ex.world.guards.add(a.source, "distinct", None, ex.world.why)
        ex.world.guards.add(b.source, "distinct", None, ex.world.why)
    return False


def check_identity(ex: Executor, *tensors: TensorValue) -> None:
    """The program asks which object a tensor is. A break where eager's may be another one."""
    for tensor in tensors:
        ex.recorder.bets.check_identity(tensor.traced)


def _same_literal(ex: Executor, a: Value, b: Value) -> bool:
    """Identity of numbers and texts. Which equal ones are one object is up to CPython, at each call anew."""
    if isinstance(a, ConstValue) and isinstance(b, ConstValue) and a.value != a.value and b.value != b.value:
        return _one_nan(ex, a, b)
    if is_polyfill(ex.frame.code):  # which asks `x is y or x == y`
        return isinstance(a, ConstValue) and isinstance(b, ConstValue) and a.value is b.value
    x, y = (ex.world.specialize(v.expr, "is") if isinstance(v, SymValue) else v.value if isinstance(v, ConstValue)
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
        ex.world.guard(a.source, "same", b.source)
        return True
    ex.world.guards.add(a.source, "distinct", None, ex.world.why)
    ex.world.guards.add(b.source, "distinct", None, ex.world.why)
    return False


#: opaque objects that no tensor is equal to
_NEVER_TENSORS = (type, types.ModuleType, types.BuiltinFunctionType, enum.Enum)


def compare(ex: Executor, symbol: str, a: Value, b: Value) -> Any:
    """`a < b` and the like: a Value or PUSHED."""
    function, dunder, reflected = COMPARE[symbol]
    if isinstance(a, ConstValue) and isinstance(b, ConstValue):
        return fold_constants(ex, function, a.value, b.value)
    beside_tensor(ex, a, b, COMPARE[symbol][1:])
    if isinstance(a, UnreadTuple) or isinstance(b, UnreadTuple):
        ex.world.pin(a if isinstance(a, UnreadTuple) else b)  # type: ignore[arg-type]
    if isinstance(a, BoxedValue) or isinstance(b, BoxedValue):
        left = plain_part(ex, a, dunder)
        right = whole_plain_part(ex, b) if isinstance(a, TensorValue) else plain_part(ex, b, reflected)
        if not isinstance(left, BoxedValue) and not isinstance(right, BoxedValue):
            return compare(ex, symbol, left, right)
        return _compare_attempts(ex, symbol, a, b)
    if isinstance(a, ArrayValue) or isinstance(b, ArrayValue):
        return numpy_operations().operate(ex, symbol, a, b)
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        other = b if isinstance(a, TensorValue) else a
        if is_boxed(other):  # a member of an enumeration of numbers
            plain = whole_plain_part(ex, b) if other is b else plain_part(ex, a, dunder)
            if plain is not other:
                return compare(ex, symbol, a, plain) if other is b else compare(ex, symbol, plain, b)
            return _compare_attempts(ex, symbol, a, b)
        if isinstance(other, TensorValue) or isinstance(other, _NUMBERS) and _is_number(other):
            if isinstance(a, ScalarValue):  # which asks the tensor
                return record(ex, getattr(operator, reflected), [b, a], {})
            return record(ex, function, [a, b], {})
        if isinstance(other, PyValue) and not isinstance(other.obj, _NEVER_TENSORS):
            if not is_number(other.obj):
                raise unsupported(other, f"{symbol} with a tensor")
            return record(ex, function, [a, b], {})
        if symbol in ("==", "!=") and not isinstance(other, (ListValue, TupleValue, ObjectValue)):
            return const(symbol == "!=")
        raise GraphBreak("unsupported_op", f"Tensor {symbol} {other.cls.__name__}")
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return _compare_numbers(ex, symbol, function, a, b)
    if isinstance(a, (PyValue, FunctionValue)) and isinstance(b, (PyValue, FunctionValue, ConstValue)) or \
            isinstance(b, (PyValue, FunctionValue)) and isinstance(a, ConstValue):
        answer = _compare_objects(ex, function, a, b)
        if answer is not None:
            return answer
    return _compare_attempts(ex, symbol, a, b)


def _compare_attempts(ex: Executor, symbol: str, a: Value, b: Value) -> Any:
    """A comparison by the data model: the reflected method first for subclasses, NotImplemented."""
    _, dunder, reflected = COMPARE[symbol]
    attempts = [(ex.world.class_lookup(left.cls, method), left, right, method)
                for left, right, method in _order(ex, a, b, dunder, reflected)]
    for index, (found, left, right, method) in enumerate(attempts):
        if found is None or found is object.__ne__ and ex.world.class_lookup(left.cls, "__eq__") is None:
            raise ex.throw(TypeError, "'NoneType' object is not callable")
        if isinstance(found, types.FunctionType):
            handler = ex.world.const_object(found)
            rest = attempts[index + 1:]
            if not any(_answers(ex, symbol, *other) for other in rest):
                methods = [TupleValue([ex.world.const_object(f), x, y]) for f, x, y, _ in attempts[index:]
                           if isinstance(f, types.FunctionType)]
                return call(ex, ex.world.const_object(construct.compare), [const(symbol), a, b, *methods], {})
            result = ex.call_sync(handler, [left, right])
            if not (isinstance(result, ConstValue) and result.value is NotImplemented):
                return result
        elif (isinstance(left, BoxedValue) or isinstance(right, BoxedValue)) and answers(ex, method, left, right):
            x, y = whole_plain_part(ex, left), whole_plain_part(ex, right)
            return compare(ex, symbol, x, y) if left is a else compare(ex, symbol, y, x)
        elif symbol == "!=" and found is object.__ne__ and \
                isinstance(ex.world.class_lookup(left.cls, "__eq__"), types.FunctionType):
            result = ex.call_sync(ex.world.const_object(ex.world.class_lookup(left.cls, "__eq__")), [left, right])
            if not (isinstance(result, ConstValue) and result.value is NotImplemented):
                return const(not truth(ex, result))
        elif isinstance(left, (ListValue, TupleValue, DictValue, SetValue)) and index == 0:
            answer = compare_builtin(ex, symbol, a, b)
            if answer is not None:
                return answer
    answer = compare_builtin(ex, symbol, a, b)
    if answer is not None:
        return answer
    for value in (a, b):
        if isinstance(value, ObjectValue) and value.cls is int:  # the number of a hook
            raise unsupported(value, symbol)
    if symbol in ("==", "!="):
        return const(same_object(ex, a, b) == (symbol == "=="))
    raise ex.throw(TypeError, f"{symbol!r} not supported between instances of {a.cls.__name__!r} and "
                              f"{b.cls.__name__!r}")


def _answers(ex: Executor, symbol: str, found: Any, left: Value, right: Value, method: str) -> bool:
    """Whether a comparison method in C may say something else than NotImplemented about a user's object."""
    if isinstance(left, BoxedValue) or isinstance(right, BoxedValue):
        if not isinstance(found, types.FunctionType) and answers(ex, method, left, right):
            return True
    if found is None:
        return True  # it raises
    if found is getattr(object, method):
        return symbol == "!=" and isinstance(ex.world.class_lookup(left.cls, "__eq__"), types.FunctionType)
    return isinstance(left, (TupleValue, ListValue, DictValue, SetValue, PyValue)) and \
        not isinstance(found, types.FunctionType) and found is not MISSING


def _order(ex: Executor, a: Value, b: Value, dunder: str, reflected: str) -> list[tuple[Value, Value, str]]:
    if a.cls is not b.cls and is_subtype(b.cls, a.cls):
        return [(b, a, reflected), (a, b, dunder)]
    return [(a, b, dunder), (b, a, reflected)]


def _compare_numbers(ex: Executor, symbol: str, function: Callable[..., Any], a: Value, b: Value) -> Value:
    if isinstance(a, ScalarValue) or isinstance(b, ScalarValue):
        if not (_is_number(a) and _is_number(b)):
            return const(symbol == "!=")
        with recording(ex, symbol):
            return number_value(ex.recorder.scalar_op(function, to_payload(ex, a), to_payload(ex, b)))
    left = a.expr if isinstance(a, SymValue) else a.value  # type: ignore[attr-defined]
    right = b.expr if isinstance(b, SymValue) else b.value  # type: ignore[attr-defined]
    if not all(isinstance(x, (int, float, sympy.Expr)) for x in (left, right)):
        if symbol in ("==", "!="):
            return const(symbol == "!=")
        return fold_constants(ex, function, _pin_number(ex, a, symbol), _pin_number(ex, b, symbol))
    if any(isinstance(x, float) for x in (left, right)):
        if not any(isinstance(x, sympy.Expr) for x in (left, right)):
            return fold_constants(ex, function, left, right)
        with recording(ex, symbol):
            return number_value(ex.recorder.scalar_op(function, *(to_payload(ex, as_number(ex, v)) for v in (a, b))))
    if any(ex.world.sizes.is_unbacked(x) for x in (left, right)):
        return _compare_computed(ex, symbol, function, a, b)
    return const(ex.world.sizes.decide(_size_relation(symbol, left, right), f"{left} {symbol} {right} at {ex.loc()}"))


_SIZE_RELATIONS = {"<": "Lt", "<=": "Le", "==": "Eq", "!=": "Ne", ">": "Gt", ">=": "Ge"}


def _size_relation(symbol: str, left: Any, right: Any) -> Any:
    return getattr(sympy, _SIZE_RELATIONS[symbol])(*_without_bools(left, right))


def _compare_computed(ex: Executor, symbol: str, function: Callable[..., Any], a: Value, b: Value) -> Value:
    """A comparison with a size that depends on data: known, or a truth value that the graph computes."""
    known = ex.world.sizes.known(_size_relation(symbol, to_payload(ex, a), to_payload(ex, b)))
    if known is not None:
        return const(known)
    return _compare_numbers(ex, symbol, function, as_number(ex, a), as_number(ex, b))


def _compare_objects(ex: Executor, function: Callable[..., Any], a: Value, b: Value) -> Value | None:
    """Classes, modules, functions, enum members: by identity, unless their class defines more."""
    def real(v: Value) -> Any:
        if isinstance(v, ConstValue):
            return v.value
        if isinstance(v, PyValue):
            return ex.world.pin(v)
        return v.real if v.real is not None else v  # type: ignore[attr-defined]

    x, y = real(a), real(b)
    if all(is_compared_by_c(o) for o in (x, y)):
        return fold_constants(ex, function, x, y)
    return None


def compare_builtin(ex: Executor, symbol: str, a: Value, b: Value) -> Value | None:
    """Comparison of builtin containers."""
    world = ex.world
    if isinstance(a, ListValue) and isinstance(b, ListValue) or isinstance(a, TupleValue) and isinstance(b, TupleValue):
        xs = [world.force(v) for v in a.items]
        ys = [world.force(v) for v in b.items]
        if symbol in ("==", "!="):
            if len(xs) != len(ys):
                return const(symbol == "!=")
            return const(all(equal(ex, x, y) for x, y in zip(xs, ys, strict=True)) == (symbol == "=="))
        for x, y in zip(xs, ys, strict=False):
            if not equal(ex, x, y):
                return ex.finish_sync(compare(ex, symbol, x, y))
        return const(COMPARE[symbol][0](len(xs), len(ys)))
    if symbol in ("==", "!=") and all(isinstance(v, DictViewValue) and v.kind == "items" for v in (a, b)):
        a, b = a.of, b.of  # type: ignore[attr-defined]
    if isinstance(a, DictValue) and isinstance(b, DictValue) and symbol in ("==", "!="):
        xs_, ys_ = dict(world.dict_items(a)), dict(world.dict_items(b))
        check_known(a, (*xs_, *ys_))
        same = xs_.keys() == ys_.keys() and all(equal(ex, v, ys_[k]) for k, v in xs_.items())
        return const(same == (symbol == "=="))
    if isinstance(a, (SetValue, DictViewValue)) and isinstance(b, (SetValue, DictViewValue)):
        return const(COMPARE[symbol][0](set(set_keys(ex, a)), set(set_keys(ex, b))))
    if isinstance(a, RangeValue) and isinstance(b, RangeValue) and symbol in ("==", "!="):
        xs = range_items(ex, a)
        ys = range_items(ex, b)
        return const(([x.value for x in xs] == [y.value for y in ys]) == (symbol == "=="))  # type: ignore[attr-defined]
    if isinstance(a, SliceValue) and isinstance(b, SliceValue):
        if symbol not in ("==", "!="):
            raise unsupported(a, symbol)
        same = all(equal(ex, getattr(a, n), getattr(b, n)) for n in ("start", "stop", "step"))
        return const(same == (symbol == "=="))
    if isinstance(a, MethodValue) and isinstance(b, MethodValue) and symbol in ("==", "!="):
        same = equal(ex, a.func, b.func) and same_object(ex, a.self, b.self)
        return const(same == (symbol == "=="))
    if isinstance(a, PyValue) and not is_compared_by_c(a.obj) or isinstance(b, PyValue) and \
            not is_compared_by_c(b.obj):
        raise unsupported(a if isinstance(a, PyValue) else b, symbol)
    return None


def equal(ex: Executor, a: Value, b: Value) -> bool:
    """Whether `a is b or a == b`, as containers compare their items."""
    if a is b:
        return True
    if isinstance(a, TensorValue) and isinstance(b, TensorValue):
        check_identity(ex, a, b)
    return truth(ex, ex.finish_sync(compare(ex, "==", a, b))) or _one_nan(ex, a, b)


def _one_nan(ex: Executor, a: Value, b: Value) -> bool:
    """Whether two numbers that are not equal are one NaN all the same."""
    if not (isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS) and a.cls is b.cls and a.cls in (float, complex)):
        return False
    if isinstance(a, ConstValue) and isinstance(b, ConstValue):
        if a.value == a.value or b.value == b.value:
            return False
        ex.world.identify(a)
        ex.world.identify(b)
        return a.value is b.value
    for one, other in ((a, b), (b, a)):
        if isinstance(one, ScalarValue) and one.source is not None and other.source is not None:
            truth(ex, _compare_numbers(ex, "==", operator.eq, one, one))  # this time it is no NaN
    return False


def truth(ex: Executor, value: Value) -> bool:
    """`bool(value)`; a break where it depends on data."""
    known = truth_or_number(ex, value)
    if isinstance(known, TracedScalar):
        answer = truth_of_flag(ex, known)
        if answer is None:
            raise GraphBreak("data_dependent_branch", "")
        return answer
    return known


def truth_or_number(ex: Executor, value: Value) -> bool | TracedScalar:
    """`bool(value)`; where it depends on data, the number in the graph that decides."""
    if isinstance(value, ConstValue):
        if value.value is NotImplemented:
            return True
        return bool(value.value)
    if isinstance(value, SymValue):
        return ex.world.sizes.decide(sympy.Ne(value.expr, 0), f"truth at {ex.loc()}")
    if isinstance(value, ScalarValue):
        known = decide(ex.recorder, value.traced, f"a branch, {ex.loc()}")
        if known is None:
            known = answer_of(ex.recorder, value.traced)
        return value.traced if known is None else known
    if isinstance(value, ArrayValue):
        raise GraphBreak("data_dependent_branch", "the truth of a numpy array")
    if isinstance(value, PyValue) and is_number(value.obj):
        return bool(ex.world.pin(value))
    if isinstance(value, TensorValue):
        own_methods(ex, value, "__bool__")
        with recording(ex, "bool"):
            result = ex.recorder.call(torch.Tensor.__bool__, (value.traced,), {}, ex.loc())
        assert isinstance(result, (bool, TracedScalar))
        return result
    if isinstance(value, (ListValue, TupleValue, DictValue, SetValue, RangeValue, DictViewValue, ObjectValue)) or \
            isinstance(value, PyValue) and method_of_program(ex.world, value, "__bool__", "__len__"):
        for name in ("__bool__", "__len__"):
            found = ex.world.class_lookup(value.cls, name)
            if isinstance(found, types.FunctionType):
                result = ex.call_sync(ex.world.const_object(found), [value])
                if name == "__bool__" and not (isinstance(result, ScalarValue) or result.cls is bool):
                    raise ex.throw(TypeError, f"__bool__ should return bool, returned {result.cls.__name__}")
                return truth_or_number(ex, result if name == "__bool__" else _checked_length(ex, result))
            if isinstance(value, BoxedValue) and found is not MISSING:
                return truth_or_number(ex, value.plain)
            if found is not MISSING and name == "__bool__":
                raise unsupported(value, "truth")
            if found is not MISSING:
                return truth_or_number(ex, length(ex, value))
        return True
    if not isinstance(value, PyValue) or not hasattr(value.cls, "__bool__") and not hasattr(value.cls, "__len__"):
        return True
    if isinstance(value.obj, (type, enum.Enum, str)):
        return bool(ex.world.pin(value))
    raise unsupported(value, "truth")


def length(ex: Executor, value: Value) -> Value:
    """`len(value)`."""
    if isinstance(value, ConstValue):
        return fold_constants(ex, len, value.value)
    found = ex.world.class_lookup(value.cls, "__len__")
    if isinstance(found, types.FunctionType):
        return _checked_length(ex, ex.call_sync(ex.world.const_object(found), [value]))
    plain = plain_part(ex, value, "__len__")
    if plain is not value and found is not MISSING:
        return length(ex, known_text(ex, plain))
    if isinstance(value, (ListValue, TupleValue, DictValue, SetValue)):
        return number_of_items(ex.world, value)
    if isinstance(value, DictViewValue):
        return number_of_items(ex.world, value.of)
    if isinstance(value, RangeValue):
        if isinstance(value.stop, SymValue) and isinstance(value.start, ConstValue) and value.start.value == 0 \
                and isinstance(value.step, ConstValue) and value.step.value == 1:
            return const(0) if _is_negative(ex, value.stop) else value.stop
        return const(len(range_items(ex, value)))
    if isinstance(value, ArrayValue):
        return numpy_operations().length(ex, value)
    if isinstance(value, TensorValue):
        sizes = value.traced.spec.shape
        return sym(sizes[0]) if sizes else record(ex, torch.Tensor.__len__, [value], {})
    if found is MISSING:
        raise ex.throw(TypeError, f"object of type {value.cls.__name__!r} has no len()")
    raise unsupported(value, "len()")


def _is_negative(ex: Executor, number: SymValue) -> bool:
    return truth(ex, ex.finish_sync(compare(ex, "<", number, const(0))))


def _checked_length(ex: Executor, found: Value) -> Value:
    """What a `__len__` in Python returns, as `len()` passes it on."""
    if isinstance(found, SymValue) and not _is_negative(ex, found) or isinstance(found, ScalarValue):
        return found  # a size, or a number that the graph computes
    number = as_int(ex, found, "len()")
    if number < 0:
        raise ex.throw(ValueError, "__len__() should return >= 0")
    if number > sys.maxsize:
        raise ex.throw(OverflowError, "cannot fit 'int' into an index-sized integer")
    return const(int(number))


def mutate(ex: Executor, value: Any) -> None:
    """Note that a list or set changed as a whole."""
    value.dirty = True
    ex.world.writes += 1
    if value.source is not None:
        ex.world.touch(value)
    elif isinstance(value, ListValue) and value.owner is not None:
        changed(ex.world, value.owner)
