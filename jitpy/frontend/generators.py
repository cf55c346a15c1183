"""Generators made while tracing: resuming, sending, throwing, closing."""

from __future__ import annotations

import types
from typing import Any

from .breaks import GraphBreak
from .calls import builtin
from .executor import PUSHED, Executor, TracedException
from .values.base import NONE, ConstValue, ExceptionValue, Exhausted, GeneratorValue, PyValue, Value


def resume(ex: Executor, generator: GeneratorValue, sent: Value = NONE) -> Any:
    """Push the generator's frame so that it runs to its next yield; raises `Exhausted` if it has finished.

    The yielded value appears on the caller's stack. What happens when it returns is up to the frame's `finish`.
    """
    frame = generator.frame
    if generator.running:
        raise ex.throw(ValueError, "generator already executing")
    if frame is None:
        raise Exhausted
    if not generator.started:
        generator.started = True
        if not (isinstance(sent, ConstValue) and sent.value is None):
            generator.started = False
            raise ex.throw(TypeError, "can't send non-None value to a just-started generator")
    else:
        frame.push(sent)
    generator.running = True
    ex.world.writes += 1
    ex.push_frame(frame)
    return PUSHED


def stop_iteration(ex: Executor, value: Value) -> None:
    """`finish` of a generator frame resumed by `next` or `send`: its return raises StopIteration."""
    args = [] if isinstance(value, ConstValue) and value.value is None else [value]
    raise ex.raise_value(ExceptionValue(StopIteration, args))


class _Finished(Exception):
    def __init__(self, value: Value) -> None:
        self.value = value


def resume_sync(ex: Executor, generator: GeneratorValue, sent: Value = NONE) -> Value:
    """The next yielded value, waiting for it; raises `Exhausted` when the generator returns."""
    frame = generator.frame

    def finished(ex: Executor, value: Value) -> None:
        raise _Finished(value)

    if frame is not None:
        frame.finish = finished
    try:
        return ex.finish_sync(resume(ex, generator, sent))
    except _Finished:
        raise Exhausted from None


def _generator(ex: Executor, args: list[Value], what: str) -> GeneratorValue:
    if not args or not isinstance(args[0], GeneratorValue):
        raise GraphBreak("opaque_iterator", what)
    return args[0]


@builtin(types.GeneratorType.send)
def generator_send(ex: Executor, args: list[Value], kwargs: dict[str, Value]) -> Any:
    generator = _generator(ex, args, "send")
    if generator.frame is not None:
        generator.frame.finish = stop_iteration
    try:
        return resume(ex, generator, args[1])
    except Exhausted:
        raise ex.throw(StopIteration) from None


@builtin(types.GeneratorType.__next__)
def generator_next(ex: Executor, args: list[Value], kwargs: dict[str, Value]) -> Any:
    return generator_send(ex, [args[0], NONE], {})


@builtin(types.GeneratorType.throw)
def generator_throw(ex: Executor, args: list[Value], kwargs: dict[str, Value]) -> Any:
    generator = _generator(ex, args, "throw")
    exception = args[1]
    if isinstance(exception, PyValue) and isinstance(exception.obj, type):
        from .calls import call

        given = args[2] if len(args) > 2 else NONE
        if isinstance(given, ExceptionValue):
            exception = given
        else:
            exception = ex.finish_sync(call(ex, exception, [] if given is NONE else [given], {}))
    if not isinstance(exception, ExceptionValue):
        raise ex.throw(TypeError, "exceptions must be classes or instances deriving from BaseException, not "
                                  f"{exception.cls.__name__}")
    frame = generator.frame
    if frame is None:
        raise ex.raise_value(exception)
    if not generator.started:
        generator.frame = None
        raise ex.raise_value(exception)
    frame.finish = stop_iteration
    generator.running = True
    ex.world.writes += 1
    ex.push_frame(frame)
    # The exception appears at the yield: unwind from the generator's own frame.
    raise ex.raise_value(exception)


@builtin(types.GeneratorType.close)
def generator_close(ex: Executor, args: list[Value], kwargs: dict[str, Value]) -> Any:
    generator = _generator(ex, args, "close")
    frame = generator.frame
    if frame is None:
        return NONE
    if not generator.started:
        generator.frame = None
        return NONE
    if not any(ins.handler is not None for ins in frame.instructions[frame.ip - 1: frame.ip + 1]):
        generator.frame = None
        return NONE
    base = len(ex.frames)

    def finished(ex: Executor, value: Value) -> None:
        raise _Finished(value)

    frame.finish = finished
    generator.running = True
    ex.push_frame(frame)
    root_before, ex._sync_root = ex._sync_root, frame
    ex.sync_depth += 1
    try:
        exit_ = ex.make_exception(GeneratorExit)
        exit_.step = ex.step
        ex.unwind(exit_, base)
        ex.run_until(base)
    except _Finished:
        return NONE
    except TracedException as error:
        if issubclass(error.value.cls, (GeneratorExit, StopIteration)):
            return NONE
        raise
    finally:
        ex.sync_depth -= 1
        ex._sync_root = root_before
    raise ex.throw(RuntimeError, "generator ignored GeneratorExit")
