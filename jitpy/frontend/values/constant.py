"""Constants: immutable objects that are known exactly."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ..guards.source import Source
from .base import Interpreter, TraceContext, Value, type_name, unsupported
from .iterators import SequenceIterator
from .operator_tables import UNARY


class ConstValue(Value):
    """An immutable Python constant (number, string, None, dtype, ...), known exactly."""

    __slots__ = ("value",)
    is_rebuilt = True
    is_atomic = True
    is_constant = True

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.source = source
        self.value = value

    @property
    def cls(self) -> type:  # type: ignore[override]
        return type(self.value)

    is_known_object = True

    @property
    def is_number(self) -> bool:  # type: ignore[override]
        return isinstance(self.value, (int, float, complex))

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        if backwards or not isinstance(self.value, (str, bytes)):
            return None
        return SequenceIterator([const(c) for c in self.value], type(iter(self.value)), self)

    def describe(self) -> str:
        return repr(self.value)

    def part_of_text(self, context: TraceContext) -> Any:
        return self.value

    def truth(self, interp: Interpreter) -> bool:
        return self.value is NotImplemented or bool(self.value)

    def length(self, interp: Interpreter) -> Value:
        return interp.fold(len, self.value)

    def unary(self, interp: Interpreter, name: str) -> Value:
        return interp.fold(UNARY[name][0], self.value)  # type: ignore[arg-type]

    def key(self, interp: Interpreter) -> Any:
        try:
            hash(self.value)
        except TypeError as error:
            raise interp.raise_real(error) from None
        if self.value != self.value:
            interp.context.identify(self)
        return self.value

    def real_object(self, interp: Interpreter) -> Any:
        return self.value

    def is_same(self, interp: Interpreter, other: Value) -> bool | None:
        return self.value is other.value if isinstance(other, ConstValue) else None

    def payload(self, interp: Interpreter) -> Any:
        return self.value

    def constant(self, interp: Interpreter) -> Any:
        return self.value

    def folded(self, interp: Interpreter) -> Any:
        return self.value

    def numpy_fake(self, interp: Interpreter, fake: Callable[[Any], Any]) -> Any:
        return self.value

    def combine(self, interp: Interpreter, name: str, other: Value, inplace: bool) -> Any:
        if name == "ADD" and self.cls is str and other.cls is str:
            return interp.joined(self, other)
        if name == "REMAINDER" and isinstance(self.value, (str, bytes)):
            return interp.format_percent(self.value, other)
        return None

    answers_operator = Value.answers_by_c

    def as_index(self, interp: Interpreter, what: str) -> int | None:
        return self.value if isinstance(self.value, int) else None

    def getitem(self, interp: Interpreter, key: Value) -> Value:
        return interp.fold(operator.getitem, self.value, key.subscript(interp))

    def setitem(self, interp: Interpreter, key: Value, new: Value) -> None:
        raise interp.throw(TypeError, f"{self.cls.__name__!r} object does not support item assignment")

    def contains(self, interp: Interpreter, item: Value) -> Value:
        item = item.whole_plain_part(interp).as_known(interp)
        if isinstance(item, ConstValue):
            return interp.fold(operator.contains, self.value, item.value)
        if self.cls is str:
            raise interp.throw(TypeError, f"'in <string>' requires string as left operand, not {type_name(item.cls)}")
        if self.cls is not bytes:
            raise interp.throw(TypeError, f"argument of type {self.cls.__name__!r} is not iterable")
        if hasattr(item.cls, "__index__") or item.may_be_buffer:
            raise unsupported(item, "in bytes")
        raise interp.throw(TypeError, f"a bytes-like object is required, not {type_name(item.cls)!r}")

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        return interp.context.const_object(getattr(self.value, name))


ConstValue.literal = ConstValue.value  # type: ignore[misc]  # the slot itself: faster than a property


#: exact types whose instances are constants: immutable, compared by value, no user code
CONST_TYPES: set[type] = {type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)}


def const(value: Any) -> ConstValue:
    return ConstValue(value)


NONE = ConstValue(None)
TRUE = ConstValue(True)
FALSE = ConstValue(False)
