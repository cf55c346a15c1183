"""Attributes of a `threading.local`: read and written through its `__dict__` of the running thread."""

from __future__ import annotations

import threading
from typing import Any

from ...guards.source import slot
from ...values import DictValue, PyValue, TraceContext, Value


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
