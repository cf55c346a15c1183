"""Generators made while tracing: resuming, sending, throwing, closing.

A generator has its own view of the exception being handled: `enter` and `suspend` switch `SymbolicInterpreter.handled`
as CPython switches its stack of exception states.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from ...breaks import GraphBreak
from ...bytecode.suspended import closing_runs_code
from ...interpreter.callees import builtin
from ...interpreter.frame import PUSHED, Frame, TracedException
from ...values import NONE, UNKNOWN, ExceptionValue, Exhausted, GeneratorValue, Interpreter, Value

_CLOSE_RETURNS = sys.version_info >= (3, 13)


def enter(interp: Interpreter, generator: GeneratorValue) -> None:
    """Push the suspended frame of a generator."""
    assert generator.frame is not None
    generator.running = True
    generator.outer = interp.handled
    if generator.handled is not None:
        interp.handled = generator.handled
    interp.context.writes += 1
    interp.push_frame(generator.frame)


def suspend(interp: Interpreter, frame: Frame) -> None:
    """Take the frame of a generator that yields off the frames."""
    generator = frame.generator
    assert generator is not None
    interp.pop_frame()
    generator.running = False
    generator.handled = interp.handled if frame.is_handling() else None
    interp.handled = generator.outer


def delegate_of(frame: Frame) -> Value | None:
    """The iterator to which a suspended frame delegates (`yield from`)."""
    at = frame.ip - 1
    if at > 0 and frame.instructions[at].name == "YIELD_VALUE" and frame.instructions[at - 1].name == "SEND":
        return frame.stack[-1]
    return None


def is_guarded(frame: Frame) -> bool:
    """Whether a suspended frame is inside `try` or `with` such that closing it runs code of its own."""
    return closing_runs_code(frame.instructions, frame.current.index, frame.globals.real or {})


def abandoned(interp: Interpreter) -> list[GeneratorValue]:
    """Generators left in a `try` or `with`: eager closes those that nothing refers to when it drops them."""
    return [g for g in interp.generators if g.frame is not None and not g.running and is_guarded(g.frame)]


def resume(interp: Interpreter, generator: GeneratorValue, sent: Value = NONE) -> Any:
    """Push the generator's frame so that it runs to its next yield; raises `Exhausted` if it has finished.

    The yielded value appears on the caller's stack. The action at its return is up to the frame's `finish`.
    """
    frame = generator.frame
    if generator.running:
        raise interp.throw(ValueError, "generator already executing")
    if frame is None:
        raise Exhausted
    if not generator.started:
        if sent.literal is not None:
            raise interp.throw(TypeError, "can't send non-None value to a just-started generator")
        generator.started = True
        interp.generators.append(generator)
    else:
        frame.push(sent)
    enter(interp, generator)
    return PUSHED


def stop_iteration(interp: Interpreter, value: Value) -> None:
    """`finish` of a generator frame resumed by `next` or `send`: its return raises StopIteration."""
    args = [] if value.literal is None else [value]
    raise interp.raise_value(ExceptionValue(StopIteration, args))


class _Finished(Exception):
    def __init__(self, value: Value) -> None:
        self.value = value


def resume_sync(interp: Interpreter, generator: GeneratorValue, sent: Value = NONE) -> Value:
    """The next yielded value, waiting for it; raises `Exhausted` when the generator returns."""
    frame = generator.frame

    def finished(interp: Interpreter, value: Value) -> None:
        raise _Finished(value)

    if frame is not None and not generator.running:
        frame.finish = finished
    try:
        return interp.finish_sync(resume(interp, generator, sent))
    except _Finished as finished_with:
        raise Exhausted(finished_with.value) from None


def _generator(interp: Interpreter, args: list[Value], what: str) -> GeneratorValue:
    if not args or not args[0].is_generator:
        raise GraphBreak("opaque_iterator", what)
    return args[0]


@builtin(types.GeneratorType.send)
def generator_send(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    generator = _generator(interp, args, "send")
    if generator.frame is not None and not generator.running:
        generator.frame.finish = stop_iteration
    try:
        return resume(interp, generator, args[1])
    except Exhausted:
        raise interp.throw(StopIteration) from None


@builtin(types.GeneratorType.__next__)
def generator_next(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    return generator_send(interp, [args[0], NONE], {})


def given_items(interp: Interpreter, given: Value) -> list[Value]:
    """The arguments of an exception, as C code that raises one takes them: none for None, the items of a tuple."""
    if given.literal is None:
        return []
    return given.listed(interp) or [] if given.base is tuple else [given]


@builtin(types.GeneratorType.throw)
def generator_throw(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    generator = _generator(interp, args, "throw")
    exception = args[1]
    if isinstance(exception.opaque, type) and \
            issubclass(exception.obj, BaseException):
        given = args[2] if len(args) > 2 else NONE
        if given.is_exception:
            exception = given
        else:
            exception = interp.finish_sync(interp.call(exception, given_items(interp, given), {}))
    if not exception.is_exception:
        raise interp.throw(TypeError, "exceptions must be classes or instances deriving from BaseException, not "
                                  f"{exception.cls.__name__}")
    frame = generator.frame
    if generator.running:
        raise interp.throw(ValueError, "generator already executing")
    if frame is None:
        raise interp.raise_value(exception)
    if not generator.started:
        generator.frame = None
        raise interp.raise_value(exception)
    _check_delegates(interp, frame)
    throw_into(interp, generator, exception, stop_iteration)


def _check_delegates(interp: Interpreter, frame: Frame) -> None:
    """Break, before anything is done, at a chain of `yield from` that ends in an iterator with a `throw` of its own."""
    delegate = delegate_of(frame)
    while delegate is not None and delegate.is_generator and delegate.frame is not None:
        delegate = delegate_of(delegate.frame)
    if delegate is not None and not delegate.is_generator:
        if delegate.opaque is not UNKNOWN or interp.context.has_slot(delegate.cls, "throw", "close", "__getattr__"):
            raise GraphBreak("generator", f"throw() to {delegate.describe()}")


def throw_into(interp: Interpreter, generator: GeneratorValue, exception: ExceptionValue,
               finish: Callable[[Interpreter, Value], None]) -> None:
    """Push a suspended generator, and those that it delegates to, and raise at the innermost yield."""
    frame = generator.frame
    assert frame is not None
    delegate = delegate_of(frame)
    leaves = issubclass(exception.cls, GeneratorExit)
    goes_on = delegate is not None and delegate.is_generator
    if leaves and goes_on:
        try:
            close(interp, delegate)
        except TracedException as error:
            exception = error.value
    frame.finish = finish
    enter(interp, generator)
    if not leaves and goes_on and delegate.frame is not None:
        frame.ip -= 1  # as if SEND had called the delegate
        throw_into(interp, delegate, exception, delegate_returned)
    # The exception appears at the yield: unwind from the generator's own frame.
    raise interp.raise_value(exception)


@builtin(types.GeneratorType.close)
def generator_close(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    generator = _generator(interp, args, "close")
    if generator.running:
        raise interp.throw(ValueError, "generator already executing")
    if generator.frame is not None:
        _check_delegates(interp, generator.frame)
    return close(interp, generator)


def close(interp: Interpreter, generator: GeneratorValue) -> Value:
    """`generator.close()`: GeneratorExit at its yield, to the end of what that runs."""
    frame = generator.frame
    if frame is None:
        return NONE
    interp.context.writes += 1
    if not generator.started or not is_guarded(frame) and delegate_of(frame) is None:
        generator.frame = None
        return NONE
    base = len(interp.frames)

    def finished(interp: Interpreter, value: Value) -> None:
        raise _Finished(value)

    root_before, interp._sync_root = interp._sync_root, frame
    interp.sync_depth += 1
    try:
        try:
            throw_into(interp, generator, interp.make_exception(GeneratorExit), finished)
        except TracedException as error:
            interp.unwind(error.value, base)
        interp.run_until(base)
    except _Finished as done:
        return done.value if _CLOSE_RETURNS else NONE
    except TracedException as error:
        if len(interp.frames) > base:
            raise
        if issubclass(error.value.cls, (GeneratorExit, StopIteration)):
            return NONE
        raise
    finally:
        interp.sync_depth -= 1
        interp._sync_root = root_before
    raise interp.throw(RuntimeError, "generator ignored GeneratorExit")


def delegate_returned(interp: Interpreter, value: Value) -> None:
    """A generator that `yield from` delegates to has returned."""
    frame = interp.frames[-1]
    leave_delegate(frame, frame.current, value)


def leave_delegate(frame: Frame, ins: Any, value: Value) -> None:
    """`yield from` is over: 3.11 replaces the receiver by the value, later versions leave that to END_SEND."""
    if not frame.send_keeps_receiver:
        frame.stack.pop()
    frame.stack.append(value)
    frame.ip = ins.target
