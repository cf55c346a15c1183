"""Instances of C types that tracing knows by a Python class with the same methods: see `polyfills/registry.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...guards.source import Source, attr, slot
from ...interpreter.growing import UnreadList
from ...polyfills import MODELLED_TYPES, ORIGINALS, Items, model_of
from ...values import ListValue, ModelledValue, TraceContext, Value
from ...values.attribute_rules import attributes_of
from ...values.wrapping import wraps

if TYPE_CHECKING:
    from ...values import Interpreter


@wraps(*(cls for cls, body in MODELLED_TYPES.items() if hasattr(body, "read") and not issubclass(cls, property)))
def _wrap(context: TraceContext, obj: Any, cls: type, source: Source) -> ModelledValue | None:
    """The Value of a live instance, or None where nothing of it may be looked into."""
    body = model_of(cls)
    readers = body.read
    value = ModelledValue(cls, body, source, obj)
    pinned = getattr(body, "pinned", False)
    if pinned and context.comes_anew(obj, source):
        return None
    if pinned:
        context.guard(source, "id", obj)
    for name in body.state:
        reader = readers[name]
        if pinned:
            value.hidden[name] = context.const_object(reader(obj))
        elif isinstance(reader, str):
            descriptor = vars(_original(cls))[reader]
            shadowed = context.class_lookup(cls, reader) is not descriptor
            path = slot(source, descriptor) if shadowed else attr(source, reader)
            value.hidden[name] = context.wrap(descriptor.__get__(obj), path)
        elif isinstance(reader, Items):
            hidden = ListValue(None, unread=UnreadList(context, obj, source, slot(source, reader)))
            hidden.owner = value
            value.hidden[name] = hidden
        else:
            value.hidden[name] = context.wrap(reader.__get__(obj), slot(source, reader))
    return context.with_attrs(value, obj)


def _original(cls: type) -> type:
    """The C type among the bases of a class that has a model."""
    return next(base for base in cls.__mro__ if base in MODELLED_TYPES)


def make_modelled(interp: Interpreter, cls: type, args: list[Value], kwargs: dict[str, Value]) -> ModelledValue:
    """The object that `cls(*args, **kwargs)` makes, for a C type with a model."""
    value = ModelledValue(cls, MODELLED_TYPES[cls])
    interp.call_sync(interp.context.const_object(value.body.__init__), [value, *args], kwargs)
    return value


def original_type(cls: type) -> type | None:
    """The C type that a class of `polyfills/` stands for."""
    original = ORIGINALS.get(cls)
    return original if original in MODELLED_TYPES else None


def store_hidden(interp: Interpreter, value: ModelledValue, name: str, new: Value) -> None:
    """Set an attribute that only the methods of the model see."""
    value.hidden[name] = new
    if new.base is list:
        new.owner = value  # type: ignore[attr-defined]
    changed(interp.context, value)


attributes_of(ModelledValue, set=store_hidden)


def changed(context: TraceContext, value: ModelledValue) -> None:
    """Note that the hidden state of a modelled instance changed."""
    value.dirty = True
    context.writes += 1
    if value.source is not None:
        context.touch(value)
