"""Context variables: what one says is a place with guards."""

from __future__ import annotations

import contextvars
from typing import Any

from ...breaks import GraphBreak
from ...guards.source import slot
from ...interpreter.callees import Args, Kwargs, builtin
from ...values import Interpreter, PyValue


class _Unset:
    """The marker of a context variable without a value."""


_UNSET = _Unset()


class _Current:
    """Reads a context variable, with its own default or without."""

    def __init__(self, with_default: bool) -> None:
        self.with_default = with_default
        self.__name__ = "get()" if with_default else "<value here>"

    def __get__(self, variable: Any, owner: type | None = None) -> Any:
        if not self.with_default:
            return variable.get(_UNSET)
        try:
            return variable.get()
        except LookupError:
            return _UNSET


_CURRENT, _CURRENT_OR_DEFAULT = _Current(False), _Current(True)


def _variable(args: Args) -> PyValue:
    variable = args[0]
    if type(variable.opaque) is not contextvars.ContextVar or variable.source is None:
        raise GraphBreak("unsupported_call", "a context variable that is made here")
    return variable


@builtin(contextvars.ContextVar.get)
def _get(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    variable = _variable(args)
    assert variable.source is not None
    reader = _CURRENT_OR_DEFAULT if len(args) < 2 else _CURRENT
    now, place = reader.__get__(variable.obj), slot(variable.source, reader)
    if now is not _UNSET:
        return interp.context.wrap(now, place)
    if len(args) < 2:
        raise GraphBreak("unsupported_call", "ContextVar.get() of a variable that is not set")
    interp.context.guard(place, "id", _UNSET)
    return args[1]
