"""Constants: immutable objects that are known exactly."""

from __future__ import annotations

from typing import Any

from ..guards.source import Source
from .base import Interpreter, Value
from .iterators import SequenceIterator


class ConstValue(Value):
    """An immutable Python constant (number, string, None, dtype, ...), known exactly."""

    __slots__ = ("value",)
    is_rebuilt = True
    is_atomic = True

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.source = source
        self.value = value

    @property
    def cls(self) -> type:  # type: ignore[override]
        return type(self.value)

    def iterate(self, interp: Interpreter, backwards: bool = False) -> Any:
        if backwards or not isinstance(self.value, (str, bytes)):
            return None
        return SequenceIterator([const(c) for c in self.value], type(iter(self.value)), self)

    def describe(self) -> str:
        return repr(self.value)

    def c_attribute(self, interp: Interpreter, name: str) -> Value:
        return interp.context.const_object(getattr(self.value, name))


#: exact types whose instances are constants: immutable, compared by value, no user code
CONST_TYPES: set[type] = {type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)}


def const(value: Any) -> ConstValue:
    return ConstValue(value)


NONE = ConstValue(None)
TRUE = ConstValue(True)
FALSE = ConstValue(False)
