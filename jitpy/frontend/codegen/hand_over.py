"""How compiled code hands over to resume functions, and objects whose end is noticed come over with it.

The arguments of a resume function are its own: nobody else holds them once it runs, so that an object ends where the
program lets it go. Compiled code keeps what it was given until it returns. So where an argument runs code of the
program's when it ends, and nobody else holds it, the resume function runs as plain Python.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from bytecode import Bytecode, Instr

from ... import config
from ...runtime.dispatch import native_runtime
from ..bytecode.suspended import left_half_way


class TailCall(tuple):
    """(exception, function, *arguments): what the compiled code of a resume function returns instead of calling the
    next one. So a loop with a break in it does not deepen Python's stack with every iteration."""

    __slots__ = ()


def hide_frames(function: types.FunctionType) -> None:
    """Keep a function's frames out of tracebacks and `sys._getframe()`: to CPython, a frame that has not come to RESUME
    does not exist yet."""
    view = Bytecode.from_code(function.__code__)
    for position, item in enumerate(view):
        if isinstance(item, Instr) and item.name == "RESUME":
            view[position] = Instr("NOP", location=item.location)
    function.__code__ = view.to_code()


def _run_to_end(call: tuple[Any, ...]) -> Any:
    """Call a resume function, and those that it hands over to. The first item is the exception that is to come, or
    None. AssertionError if it does not."""
    raises = None
    while True:
        expected, function, *arguments = call
        raises = expected or raises
        result = call = function(*arguments)
        if type(result) is not TailCall:
            break
    if raises is not None:
        raise AssertionError(f"jitpy: the program should have raised {raises!r}; it returned {result!r}")
    return result


def _let_go() -> None:
    """Drop the references that `run_to_end` holds to the arguments of the function that it called."""


hide_frames(_run_to_end)
_native = native_runtime() if config.native else None
run_to_end: Callable[[tuple[Any, ...]], Any] = _run_to_end if _native is None else _native.run_to_end
let_go: Callable[[], None] = _let_go if _native is None else _native.let_go
if _native is not None:
    _native.set_hand_over(TailCall, left_half_way)
