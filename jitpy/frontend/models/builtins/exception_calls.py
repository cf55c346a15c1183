"""Exceptions that are being handled, and those that compiled code makes."""

from __future__ import annotations

import sys
from typing import Any

from ...breaks import GraphBreak
from ...codegen.frame_code import Emitter, builds
from ...guards.source import constant
from ...interpreter.callees import Args, Kwargs, builtin
from ...values import NONE, ExceptionValue, Interpreter, TupleValue
from .exception_state import base_in_c, state_names


def _nothing_handled(module: Any) -> bool:
    """Guard predicate: the callers of the frame handle no exception."""
    return sys.exc_info()[1] is None


def being_handled(interp: Interpreter, what: str) -> ExceptionValue | None:
    """The exception that the program handles, None where there is none; guarded."""
    if interp.handled is not None and interp.handled.is_exception:
        return interp.handled
    if interp.handled is not None or not _nothing_handled(sys):
        raise GraphBreak("unsupported_call", f"{what} while the caller handles an exception")
    interp.context.guard(constant(sys, "sys"), "python", _nothing_handled)
    return None


@builtin(sys.exc_info)
def exc_info(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = being_handled(interp, "sys.exc_info()")
    if value is None:
        return TupleValue([NONE, NONE, NONE])
    return TupleValue([interp.context.const_object(value.cls), value, interp.getattr(value, "__traceback__")])


@builtin(sys.exception)
def exception(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return being_handled(interp, "sys.exception()") or NONE


# -- what compiled code makes -----------------------------------------------------------------------------------


@builds(ExceptionValue)
def _build(emitter: Emitter, value: ExceptionValue) -> None:
    later = state_names(value.cls)  # C would make more of the arguments
    emitter.make(value, base_in_c(value.cls).__new__, lambda: emitter.const_object(value.cls),
                 *(() if later else value.args))
    if later:
        emitter.set_attribute(value, "args", lambda: emitter.emit("BUILD_TUPLE", emitter.load_many(value.args)))
    for name, member in value.members.items():
        emitter.set_attribute(value, name, member)
    for name in ("cause", "context"):
        other = getattr(value, name)
        if other is not None:
            emitter.set_attribute(value, f"__{name}__", other)
    if value.suppress_context != (value.cause is not None):  # as whoever wrote `__cause__` left it
        emitter.set_attribute(value, "__suppress_context__", lambda: emitter.const(value.suppress_context))
    emitter.fill_attrs(value)
