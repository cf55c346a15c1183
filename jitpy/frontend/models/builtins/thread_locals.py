"""Attributes of a `threading.local`: read and written through its `__dict__` of the running thread."""

from __future__ import annotations

import threading
from typing import Any

from ...guards.source import slot
from ...interpreter.attributes import no_attribute
from ...values import DictValue, Interpreter, PyValue, TraceContext, Value, const, unsupported
from ...values.attribute_rules import attributes_of


class _OfThread:
    """Reads the attributes that a `threading.local` has in the running thread."""

    __name__ = "<this thread's attributes>"

    def __get__(self, local: Any, owner: type | None = None) -> dict[str, Any]:
        attributes: dict[str, Any] = local.__dict__
        return attributes


_OF_THREAD = _OfThread()


def is_local(value: Value) -> bool:
    """Whether this is a plain `threading.local`."""
    return isinstance(value, PyValue) and type(value.obj) is threading.local and value.source is not None


def attributes_of_local(context: TraceContext, value: PyValue) -> DictValue:
    """Its attributes in this thread."""
    assert value.source is not None
    place = slot(value.source, _OF_THREAD)
    found = context.wrap(value.obj.__dict__, place)
    assert isinstance(found, DictValue)
    return found


def _is_own(value: PyValue, name: str) -> bool:
    """Whether an attribute is looked for in the `__dict__` of the running thread."""
    return is_local(value) and not hasattr(threading.local, name)


def _get(interp: Interpreter, value: PyValue, name: str) -> Any:
    if not _is_own(value, name):
        return NotImplemented
    found = interp.context.dict_get(attributes_of_local(interp.context, value), name)
    if found is None:
        raise interp.attribute_error(value, name)
    return found


def _set(interp: Interpreter, value: PyValue, name: str, new: Value) -> Any:
    if not _is_own(value, name):
        raise unsupported(value, f".{name} = ...")
    interp.context.dict_set(attributes_of_local(interp.context, value), name, new, const(name))
    return None


def _delete(interp: Interpreter, value: PyValue, name: str) -> Any:
    if not _is_own(value, name):
        raise unsupported(value, f"del .{name}")
    space = attributes_of_local(interp.context, value)
    if interp.context.dict_get(space, name) is None:
        raise interp.throw(AttributeError, no_attribute(value, name))
    interp.context.dict_delete(space, name)
    return None


attributes_of(threading.local, get=_get, set=_set, delete=_delete)
