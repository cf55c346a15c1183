"""Instances of Python classes derived from int, float, complex, str and bytes, and members of enumerations of such.

To C code such an instance is a number, a text or bytes: its *plain part*. A C slot looks at that alone, so whatever
tracing knows about plain values holds for the instance too, unless its class has a method of its own for the slot.
"""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any

from ...guards.guard_set import MISSING
from ...guards.source import ConstSource, Source, slot
from ...interpreter.plain_classes import is_plain_class
from ...values import BoxedValue, ConstValue, PyValue, TraceContext, Value, const
from ...values.wrapping import wraps

if TYPE_CHECKING:
    from ...values import Interpreter

#: The reader of the plain part of a real instance, by the builtin type below its class.
_READERS: dict[type, property] = {
    int: property(int.__int__), float: property(float.__float__), complex: property(complex.__complex__),
    str: property(str.__str__), bytes: property(bytes.__bytes__)}
PLAIN_TYPES = tuple(_READERS)

#: special methods of these types that say nothing about what C code does with the plain part
_ASIDE = frozenset({"__new__", "__init__", "__doc__", "__getattribute__", "__getnewargs__", "__sizeof__"})


def base_of(cls: type) -> type | None:
    """Which of the builtin types a class is derived from."""
    return next((base for base in PLAIN_TYPES if issubclass(cls, base)), None)


@wraps(*PLAIN_TYPES)
def _wrap_boxed(context: TraceContext, obj: Any, cls: type, source: Source) -> BoxedValue | None:
    """The Value of a live instance."""
    base = base_of(cls)
    if base is None or not is_plain_class(cls, base):
        return None
    reader = _READERS[base]
    plain = reader.__get__(obj)
    known = const(plain) if isinstance(source, ConstSource) else context.wrap(plain, slot(source, reader))
    return context.with_attrs(BoxedValue(cls, base, known, source, obj), obj)


def whole_plain_part(interp: Interpreter, value: Value) -> Value:
    """The part that C code sees when it looks into an object without asking its class; other Values as they are."""
    if isinstance(value, BoxedValue):
        return value.plain
    if isinstance(value, PyValue) and isinstance(value.obj, enum.Enum) and isinstance(value.obj, PLAIN_TYPES):
        base = base_of(value.cls)
        assert base is not None
        return const(_READERS[base].__get__(interp.context.pin(value)))
    return value


def plain_part(interp: Interpreter, value: Value, *slots: str) -> Value:
    """The part that the C slots of these names see, where the class leaves all of them to its builtin base; other
    Values, and instances of classes with methods of their own, as they are."""
    if not is_boxed(value):
        return value
    found = [interp.context.class_lookup(value.cls, name) for name in slots]
    if all(one is MISSING or isinstance(one, _C_METHODS) for one in found):
        return whole_plain_part(interp, value)
    return value


_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)


def is_boxed(value: Value) -> bool:
    """Whether a Value has a plain part that it is not itself."""
    return isinstance(value, BoxedValue) or isinstance(value, PyValue) and isinstance(value.obj, enum.Enum) and \
        isinstance(value.obj, PLAIN_TYPES)


def transparent_part(interp: Interpreter, value: Value) -> Value:
    """The plain part of an instance whose class has no special method of its own at all, so that no C code can tell the
    two apart by what it computes; other Values as they are."""
    if not isinstance(value, BoxedValue):
        return value
    return plain_part(interp, value, *(name for name, method in vars(value.base).items() if name.startswith("__") and
                                   isinstance(method, _C_METHODS) and name not in _ASIDE))


def answers(interp: Interpreter, method: str, left: Value, right: Value) -> bool:
    """Whether the C slot of a plain left operand has an answer to a right one: not NotImplemented."""
    left, right = whole_plain_part(interp, left), whole_plain_part(interp, right)
    if left.cls not in (*PLAIN_TYPES, bool) or right.cls not in (*PLAIN_TYPES, bool):
        return False
    slot_of = getattr(left.cls, method, None)
    try:
        return slot_of is not None and slot_of(left.cls(), _sample(right)) is not NotImplemented
    except (ArithmeticError, ValueError, TypeError):
        return True


def _sample(value: Value) -> Any:
    return value.value if isinstance(value, ConstValue) else value.cls(1)
