"""Which methods an operator of two operands asks, in which order: CPython's slots, told by the names of methods.

A class has a *number slot* for an operator where it has a method of the program's for the operator or for its
reflected form; so have the builtin numbers, sets and dicts, and texts for `%`. Lists, tuples, texts and deques join and
repeat by *sequence slots*, which are asked behind all number slots, and which a method of the program's leaves empty.
"""

from __future__ import annotations

import collections
import types
from dataclasses import dataclass
from typing import Any

import torch

from ..guards.guard_set import MISSING
from ..polyfills import MODELLED_ORIGINALS
from ..values import Interpreter, TraceContext, Value, is_subtype, type_name, unsupported

_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
_SEQUENCES = (list, tuple, str, bytes, collections.deque)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A method that may answer; `found` is what its name leads to in the class of `left`."""

    method: str
    found: Any
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Names:
    """The names of an operator's methods; `inplace` is None where it is not an assignment."""

    normal: str
    reflected: str
    inplace: str | None


def by_program(found: Any) -> bool:
    """Whether what a class has under a name is Python's rather than C's."""
    return found is not MISSING and type(found) not in _C_METHODS and not (
        isinstance(found, types.FunctionType) and found in MODELLED_ORIGINALS)


def asks_program(context: TraceContext, names: Names, a: Value, b: Value) -> bool:
    """Whether a method in Python has a say in an operator."""
    return _in_python(context, a, names.normal, names.reflected, names.inplace) or \
        _in_python(context, b, names.normal, names.reflected)


def _in_python(context: TraceContext, value: Value, *names: str | None) -> bool:
    return bool(value.cls.__flags__ & _HEAP_TYPE) and value.tensor is None and any(
        name is not None and by_program(context.class_lookup(value.cls, name)) for name in names)


def sequence_type(value: Value) -> type | None:
    """The builtin sequence that a value is."""
    return next((kind for kind in _SEQUENCES if is_subtype(value.cls, kind)), None)


def _is_python_class(cls: type) -> bool:
    """Whether a class statement made it: its slot for `+=` on numbers holds what its base does to sequences."""
    return bool(cls.__flags__ & _HEAP_TYPE) and not cls.__flags__ & _IMMUTABLE_TYPE


def joins(names: Names) -> bool:
    return names.normal == "__add__"


def repeats(names: Names) -> bool:
    return names.normal == "__mul__"


def attempts(context: TraceContext, names: Names, a: Value, b: Value) -> list[Attempt]:
    """The number slots, in order."""
    order = [(names.normal, a, b)] if a.cls is b.cls else [(names.normal, a, b), (names.reflected, b, a)]
    if len(order) == 2 and is_subtype(b.cls, a.cls) and \
            context.class_lookup(b.cls, names.reflected) is not context.class_lookup(a.cls, names.reflected):
        order.reverse()
    if joins(names) or repeats(names):
        order = [one for one in order if sequence_type(one[1]) is None or
                 _in_python(context, one[1], names.normal, names.reflected)]
    if names.inplace is not None and (sequence_type(a) is None or joins(names) and _is_python_class(a.cls) or
                                      _in_python(context, a, names.inplace)):
        order.insert(0, (names.inplace, a, b))
    return [Attempt(method, context.class_lookup(left.cls, method), left, right) for method, left, right in order]


def sequence_attempt(context: TraceContext, names: Names, a: Value, b: Value) -> Attempt | None:
    """The sequence slot that is asked in the end."""
    if joins(names):
        return _sequence_slot(context, a, b, names, names.normal)
    if not repeats(names):
        return None
    found = _sequence_slot(context, a, b, names, names.normal, names.reflected)
    if found is not None or names.inplace is not None and (
            a.cls.__flags__ & _HEAP_TYPE or hasattr(a.cls, "__contains__")):
        return found  # a class that has any sequence slot, as have all that Python makes, repeats itself only
    return _sequence_slot(context, b, a, Names(names.normal, names.reflected, None), names.normal, names.reflected)


def _sequence_slot(context: TraceContext, left: Value, right: Value, names: Names, *methods: str) -> Attempt | None:
    if sequence_type(left) is None:
        return None
    for tried in ((names.inplace,), methods):
        found = [MISSING if name is None else context.class_lookup(left.cls, name) for name in tried]
        if found[0] is not MISSING and not any(map(by_program, found)):
            assert tried[0] is not None
            return Attempt(tried[0], found[0], left, right)
    return None


def refusal(one: Attempt, slot: bool) -> str | None:
    """A sequence's error for an operand that it can not be joined with or repeated by; None where it can. `slot`: the
    slot is asked, not the method, which has other words."""
    kind, left, right = sequence_type(one.left), one.left, one.right
    if one.method in ("__mul__", "__rmul__", "__imul__"):
        if (right.is_constant or right.expr is not None) and issubclass(right.cls, int):
            return None
        if hasattr(right.cls, "__index__"):
            raise unsupported(left, "repetition")  # as often as an object's `__index__` says
        return f"can't multiply sequence by non-int of type {type_name(right.cls)!r}" if slot else \
            f"{type_name(right.cls)!r} object cannot be interpreted as an integer"
    if kind is collections.deque or one.method == "__iadd__":
        return None  # the method says what it refuses
    if kind is right.base and kind in (list, tuple) or \
            kind in (str, bytes) and is_subtype(right.cls, kind):
        return None
    assert kind is not None
    if is_subtype(right.cls, kind) or kind is bytes and sequence_type(right) is None and \
            not right.is_constant and right.expr is None or left.cls is torch.Size:
        raise unsupported(right, "concatenation")
    if kind is bytes:
        return f"can't concat {type_name(right.cls)} to bytes"
    return f'can only concatenate {kind.__name__} (not "{type_name(right.cls)}") to {kind.__name__}'


def own_methods(interp: Interpreter, value: Value, *names: str) -> None:
    """A break where a program put methods of its own into torch's classes; else that it did not is guarded."""
    for name in names if value.tensor is not None else ():
        found = interp.context.class_lookup(value.cls, name)
        if isinstance(found, types.FunctionType) and not (found.__module__ or "").startswith("torch"):
            raise unsupported(value, f"{type_name(value.cls)}.{name}, which is the program's,")
