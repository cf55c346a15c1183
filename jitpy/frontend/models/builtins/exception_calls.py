"""Exceptions that are being handled, notes, and groups of exceptions."""

from __future__ import annotations

import sys
from typing import Any

from ...breaks import GraphBreak
from ...codegen.frame_code import Emitter, builds
from ...guards.source import constant
from ...interpreter.callees import builtin
from ...polyfills import exceptions as polyfills
from ...values import NONE, WRAPPED_STEP, ConstValue, ExceptionValue, Interpreter, ListValue, PyValue, TupleValue, Value
from .exception_state import base_in_c, state_names
from .iteration import iterate

Args = list[Value]
Kwargs = dict[str, Value]


def _nothing_handled(module: Any) -> bool:
    """Guard predicate: the callers of the frame handle no exception."""
    return sys.exc_info()[1] is None


def being_handled(interp: Interpreter, what: str) -> ExceptionValue | None:
    """The exception that the program handles, None where there is none; guarded."""
    if isinstance(interp.handled, ExceptionValue):
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


# -- groups ---------------------------------------------------------------------------------------------------


def make_group(interp: Interpreter, cls: type, args: Args) -> ExceptionValue:
    """`BaseExceptionGroup.__new__(cls, message, exceptions)`."""
    listed = len(args) == 2 and isinstance(args[1], (TupleValue, ListValue))
    items = [interp.context.force(item) for item in iterate(interp, args[1])] if listed else []
    if not items or not isinstance(args[0], ConstValue) or type(args[0].value) is not str or \
            not all(isinstance(item, ExceptionValue) for item in items):
        raise GraphBreak("unsupported_call", f"{cls.__name__}() with arguments that it refuses")
    ordinary = all(issubclass(item.cls, Exception) for item in items)
    if cls is BaseExceptionGroup and ordinary:
        cls = ExceptionGroup
    if issubclass(cls, Exception) and not ordinary:
        raise GraphBreak("unsupported_call", f"{cls.__name__}() with arguments that it refuses")
    made = ExceptionValue(cls, list(args))
    made.group = (args[0], TupleValue(items))
    return made


@builtin(BaseExceptionGroup.__new__)
def group_new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    cls = interp.context.pin(args[0])  # type: ignore[arg-type]
    return make_group(interp, cls, args[1:])


def match_group(interp: Interpreter, value: Value, kinds: Value) -> tuple[Value, Value]:
    """What `except* kinds` does to an exception: (what is handled, what is left)."""
    if isinstance(value, ConstValue):
        return NONE, NONE
    assert isinstance(value, ExceptionValue)
    for kind in ([interp.context.force(k) for k in kinds.items] if isinstance(kinds, TupleValue) else [kinds]):
        refused = not isinstance(kind, PyValue) or not isinstance(kind.obj, type) or \
            not issubclass(kind.obj, BaseException) or issubclass(kind.obj, BaseExceptionGroup)
        if refused:
            raise GraphBreak("opcode", "except* with what is no class of exceptions", tail=True)
    found = interp.call_sync(interp.context.const_object(polyfills.match), [value, kinds])
    assert isinstance(found, TupleValue)
    matched, rest = (interp.context.force(item) for item in found.items)
    if isinstance(matched, ExceptionValue) and not issubclass(value.cls, BaseExceptionGroup):
        matched.step = WRAPPED_STEP
    return matched, rest


def left_over(interp: Interpreter, origin: Value, raised: list[Value]) -> Value:
    """What a `try` statement with `except*` raises in the end, where no handler has raised anything."""
    if len(raised) != 1 or not isinstance(origin, ExceptionValue):
        raise GraphBreak("opcode", "except* whose handler raises", tail=True)
    if isinstance(raised[0], ConstValue) or not issubclass(origin.cls, BaseExceptionGroup):
        return raised[0]
    return interp.call_sync(interp.context.const_object(polyfills.leave), [origin, raised[0]])


# -- what compiled code makes -----------------------------------------------------------------------------------


@builds(ExceptionValue)
def _build(emitter: Emitter, value: ExceptionValue) -> None:
    args = value.args if value.group is None else list(value.group)
    later = value.group is not None or state_names(value.cls)  # C would make more of the arguments
    emitter.call(base_in_c(value.cls).__new__, lambda: emitter.const_object(value.cls),
                 *((lambda a=a: emitter.load(a)) for a in args if value.group is not None or not later))
    emitter.remember(value)
    if later:
        emitter.emit("BUILD_TUPLE", emitter.load_many(value.args))
        emitter.load(value)
        emitter.emit("STORE_ATTR", "args")
    for name, member in value.members.items():
        emitter.load(member)
        emitter.load(value)
        emitter.emit("STORE_ATTR", name)
    for name in ("cause", "context"):
        other = getattr(value, name)
        if isinstance(other, Value):
            emitter.load(other)
            emitter.load(value)
            emitter.emit("STORE_ATTR", f"__{name}__")
    if value.suppress_context != isinstance(value.cause, Value):  # as whoever wrote `__cause__` left it
        emitter.const(value.suppress_context)
        emitter.load(value)
        emitter.emit("STORE_ATTR", "__suppress_context__")
    emitter.fill_attrs(value)
