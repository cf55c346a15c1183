"""Clocks, and what a process says about itself."""

from __future__ import annotations

import operator
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from ...breaks import GraphBreak
from ...capture.front_calls import FrontCall, make, new_source, number_input
from ...guards.guard_set import Answers
from ...guards.source import constant
from ...interpreter.callees import Args, Kwargs, builtin
from ...values import Interpreter, PyValue, Value, const


def _is_first(interp: Interpreter) -> bool:
    """Whether no operation has been recorded yet."""
    return all(node.op.kind == "host" for node in interp.builder.graph.nodes)


def _read(interp: Interpreter, function: Callable[..., Any], late: bool) -> Value:
    """`function()`, in front of the graph or behind it."""
    example = function()
    source = new_source(interp, function, late)
    position = len(interp.builder.graph.nodes)
    make(interp, FrontCall(function, [], {}, (source,), step=interp.step_to_break(), position=position))
    if type(example) in (int, float):
        return number_input(interp.builder, type(example), source, None)
    return PyValue(example, source, pinned=False)


def _clock(function: Callable[..., Any], name: str, read: Callable[..., Any] | None = None) -> None:
    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if args and read is None or kwargs:
            raise GraphBreak("unsupported_call", f"{name} with arguments")
        late = not _is_first(interp)
        if late and interp.sync_depth:
            raise GraphBreak("unsupported_call", f"{name} in a callback")
        return _read(interp, read or function, late)

    builtin(function)(handler)


for _name in ("time", "perf_counter", "monotonic", "process_time", "thread_time"):
    for _suffix in ("", "_ns"):
        _clock(getattr(time, _name + _suffix), f"time.{_name}{_suffix}")


def _number_of_thread(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return _read(interp, threading.get_ident, late=False)


builtin(threading.get_ident)(_number_of_thread)


def _of_any_call(function: Callable[..., Any], name: str) -> None:
    """A value that does not depend on the time of the question."""

    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if args or kwargs:
            raise GraphBreak("unsupported_call", f"{name} with arguments")
        return _read(interp, function, late=False)

    builtin(function)(handler)


_of_any_call(uuid.uuid4, "uuid.uuid4")


def _fact(function: Callable[[], Any], name: str) -> None:
    """A value that stays for the life of a process, or nearly."""

    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if args or kwargs:
            raise GraphBreak("unsupported_call", f"{name} with arguments")
        answer = function()
        interp.context.guard(constant(function, name), "python", Answers(operator.call, answer))
        return const(answer)

    builtin(function)(handler)


for _name in ("getpid", "getppid", "cpu_count", "getcwd"):
    _fact(getattr(os, _name), f"os.{_name}")


