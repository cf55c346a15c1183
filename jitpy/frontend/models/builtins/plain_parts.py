"""Instances of Python classes derived from int, float, complex, str and bytes, and members of enumerations of such.

To C code such an instance is a number, a text or bytes: its *plain part*. A C slot looks at that alone, so whatever
tracing knows about plain values holds for the instance too, unless its class has a method of its own for the slot.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from ...guards.guard_set import MISSING
from ...guards.source import ConstSource, Source, slot
from ...interpreter.plain_classes import is_plain_class
from ...values import BOXED_READERS, PLAIN_TYPES, BoxedValue, TraceContext, Value, base_of, const
from ...values.wrapping import wraps

if TYPE_CHECKING:
    from ...values import Interpreter

@wraps(*PLAIN_TYPES)
def _wrap_boxed(context: TraceContext, obj: Any, cls: type, source: Source) -> BoxedValue | None:
    """The Value of a live instance."""
    base = base_of(cls)
    if base is None or not is_plain_class(cls, base):
        return None
    reader = BOXED_READERS[base]
    plain = reader.__get__(obj)
    known = const(plain) if isinstance(source, ConstSource) else context.wrap(plain, slot(source, reader))
    return context.with_attrs(BoxedValue(cls, base, known, source, obj), obj)


def plain_part(interp: Interpreter, value: Value, *slots: str) -> Value:
    """The part that the C slots of these names see, where the class leaves all of them to its builtin base; other
    Values, and instances of classes with methods of their own, as they are."""
    if not value.is_boxed:
        return value
    found = [interp.context.class_lookup(value.cls, name) for name in slots]
    if all(one is MISSING or isinstance(one, _C_METHODS) for one in found):
        return value.whole_plain_part(interp)
    return value


_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)


def answers(interp: Interpreter, method: str, left: Value, right: Value) -> bool:
    """Whether the C slot of a plain left operand has an answer to a right one: not NotImplemented."""
    left, right = left.whole_plain_part(interp), right.whole_plain_part(interp)
    if left.cls not in (*PLAIN_TYPES, bool) or right.cls not in (*PLAIN_TYPES, bool):
        return False
    slot_of = getattr(left.cls, method, None)
    try:
        return slot_of is not None and slot_of(left.cls(), _sample(right)) is not NotImplemented
    except (ArithmeticError, ValueError, TypeError):
        return True


def _sample(value: Value) -> Any:
    return value.value if value.is_constant else value.cls(1)
