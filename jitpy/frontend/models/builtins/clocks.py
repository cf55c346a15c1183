"""Clocks, and what a process says about itself."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from ...breaks import GraphBreak
from ...capture.front_calls import FrontCall, make, new_source, number_input
from ...guards.source import constant
from ...interpreter.calls import BUILTINS
from ...interpreter.interpreter import Executor
from ...values.base import PyValue, Value, const

Args = list[Value]
Kwargs = dict[str, Value]


def _is_first(ex: Executor) -> bool:
    """Whether no operation has been recorded yet."""
    return all(node.op.kind == "host" for node in ex.recorder.graph.nodes)


def _read(ex: Executor, function: Callable[..., Any], late: bool) -> Value:
    """`function()`, in front of the graph or behind it."""
    example = function()
    source = new_source(ex, function, late)
    position = len(ex.recorder.graph.nodes)
    make(ex, FrontCall(function, [], {}, (source,), step=ex.step_to_break(), position=position))
    if type(example) in (int, float):
        return number_input(ex.recorder, type(example), source, None)
    return PyValue(example, source, pinned=False)


def _clock(function: Callable[..., Any], name: str, read: Callable[..., Any] | None = None) -> None:
    def handler(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
        if args and read is None or kwargs:
            raise GraphBreak("unsupported_call", f"{name} with arguments")
        late = not _is_first(ex)
        if late and ex.sync_depth:
            raise GraphBreak("unsupported_call", f"{name} in a callback")
        return _read(ex, read or function, late)

    BUILTINS[function] = handler


for _name in ("time", "perf_counter", "monotonic", "process_time", "thread_time"):
    for _suffix in ("", "_ns"):
        _clock(getattr(time, _name + _suffix), f"time.{_name}{_suffix}")


def _number_of_thread(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return _read(ex, threading.get_ident, late=False)


BUILTINS[threading.get_ident] = _number_of_thread


def _of_any_call(function: Callable[..., Any], name: str) -> None:
    """What does not depend on when it is asked for."""

    def handler(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
        if args or kwargs:
            raise GraphBreak("unsupported_call", f"{name} with arguments")
        return _read(ex, function, late=False)

    BUILTINS[function] = handler


_of_any_call(uuid.uuid4, "uuid.uuid4")


class Answers:
    """Guard predicate: a function without arguments still says so."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, function: Callable[[], Any]) -> bool:
        return bool(function() == self.answer)

    def __repr__(self) -> str:
        return f"returns {self.answer!r}"


def _fact(function: Callable[[], Any], name: str) -> None:
    """What stays for the life of a process, or nearly."""

    def handler(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
        if args or kwargs:
            raise GraphBreak("unsupported_call", f"{name} with arguments")
        answer = function()
        ex.world.guard(constant(function, name), "python", Answers(answer))
        return const(answer)

    BUILTINS[function] = handler


for _name in ("getpid", "getppid", "cpu_count", "getcwd"):
    _fact(getattr(os, _name), f"os.{_name}")


