"""Raising, handling, `with`."""

from __future__ import annotations

import types
from typing import Any

from ..breaks import GraphBreak
from ..guards.guard_set import MISSING
from ..interpreter.frame import PUSHED, Frame, TracedException
from ..values import (
    ExceptionValue,
    ExcInfoValue,
    Interpreter,
    MethodValue,
    TracebackValue,
    TupleValue,
    Value,
    const,
    type_name,
)
from .handlers import opcode


def as_exception(interp: Interpreter, value: Value, otherwise: str = "exceptions must derive from BaseException"
                 ) -> ExceptionValue:
    """The instance that `raise value` raises; a TypeError that says `otherwise` for other things."""
    if isinstance(value.opaque, type) and issubclass(value.obj, BaseException):
        value = interp.call_sync(value, [])
    if not value.is_exception:
        raise interp.throw(TypeError, otherwise)
    return value


@opcode("RAISE_VARARGS")
def _raise_varargs(interp: Interpreter, frame: Frame, ins: Any) -> None:
    if ins.arg == 0:
        if interp.handled is None or not interp.handled.is_exception:
            raise interp.throw(RuntimeError, "No active exception to reraise")
        raise TracedException(interp.handled)
    cause = frame.stack.pop() if ins.arg == 2 else None
    value = as_exception(interp, frame.stack.pop())
    if cause is not None:
        if cause.literal is not None:
            cause = as_exception(interp, cause, "exception causes must derive from BaseException")
        value.cause = cause
        value.suppress_context = True
    raise interp.raise_value(value)


@opcode("PUSH_EXC_INFO")
def _push_exc_info(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    frame.stack.append(ExcInfoValue(interp.handled, value))
    frame.stack.append(value)
    interp.handled = value
    interp.context.writes += 1


@opcode("POP_EXCEPT")
def _pop_except(interp: Interpreter, frame: Frame, ins: Any) -> None:
    saved: Any = frame.stack.pop()
    # a generator's handlers are over: what its caller handles now counts again
    outermost = frame.generator is not None and not frame.is_handling()
    interp.handled = frame.generator.outer if outermost else saved.previous  # type: ignore[union-attr]
    interp.context.writes += 1


@opcode("RERAISE")
def _reraise(interp: Interpreter, frame: Frame, ins: Any) -> None:
    raise TracedException(frame.stack.pop())


@opcode("CHECK_EXC_MATCH")
def _check_exc_match(interp: Interpreter, frame: Frame, ins: Any) -> None:
    classes: Any = frame.stack.pop()
    value = frame.stack[-1]
    kinds = classes.forced(interp) if classes.base is tuple else [classes]
    if not all(isinstance(k.opaque, type) and issubclass(k.obj, BaseException) for k in kinds):
        raise interp.throw(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    frame.stack.append(const(any(interp.context.pin(k) in interp.context.mro(value.cls) for k in kinds)))  # type: ignore[arg-type]


@opcode("BEFORE_WITH", pops=1)
def _before_with(interp: Interpreter, frame: Frame, ins: Any) -> None:
    manager = frame.stack[-1]
    enter = special(interp, manager, "__enter__")
    exit_ = special(interp, manager, "__exit__")
    if enter is None or exit_ is None:
        missed = "" if enter is None else " (missed __exit__ method)"
        what = f"object does not support the context manager protocol{missed}"
        raise interp.throw(TypeError, f"{type_name(manager.cls)!r} {what}")
    frame.stack.pop()
    frame.stack.append(exit_)
    result = interp.call(enter, [], {})
    if result is not PUSHED:
        frame.stack.append(result)


def special(interp: Interpreter, value: Value, name: str) -> Value | None:
    """A special method, looked up on the type and bound."""
    found = interp.context.class_lookup(value.cls, name)
    if found is MISSING:
        return None
    if isinstance(found, types.FunctionType):
        return MethodValue(interp.context.const_object(found), value)
    return interp.finish_sync(interp.getattr(value, name))


@opcode("WITH_EXCEPT_START")
def _with_except_start(interp: Interpreter, frame: Frame, ins: Any) -> None:
    exception = frame.stack[-1]
    exit_ = frame.stack[-4]
    result = interp.call(exit_,
                  [interp.context.const_object(exception.cls), exception, TracebackValue(exception.step)], {})
    if result is not PUSHED:
        frame.stack.append(result)


@opcode("CALL_INTRINSIC_1")
def _call_intrinsic_1(interp: Interpreter, frame: Frame, ins: Any) -> None:
    name = ins.arg.name
    value = frame.stack[-1]
    if name == "INTRINSIC_STOPITERATION_ERROR":
        frame.stack.pop()
        if issubclass(value.cls, StopIteration):
            value = interp.stop_iteration_error(value)
        frame.stack.append(value)
        return
    if name == "INTRINSIC_UNARY_POSITIVE":

        result = interp.unary("UNARY_POSITIVE", frame.stack.pop())
        if result is not PUSHED:
            frame.stack.append(result)
        return
    if name == "INTRINSIC_LIST_TO_TUPLE":
        frame.stack.pop()
        frame.stack.append(TupleValue(list(value.items)))  # type: ignore[attr-defined]
        return
    raise GraphBreak("opcode", name)


@opcode("CALL_INTRINSIC_2")
def _call_intrinsic_2(interp: Interpreter, frame: Frame, ins: Any) -> None:
    raise GraphBreak("opcode", ins.arg.name, tail=True)


