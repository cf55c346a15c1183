"""Generators that tracing made, rebuilt in plain Python.

One that was not started is made by calling its function. A suspended one is made by a resume function that is itself a
generator: it puts locals and stack back and jumps to the yield, so that sending, throwing and closing find the same
instruction, handlers and closure cells. The first `next` takes it there, running none of the user's code.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

from ..bytecode.code import n_params, param_names
from ..bytecode.resume_codes import Resumable
from ..interpreter.frame import Frame, first_argument
from ..interpreter.library_code import is_polyfill
from ..values import NULL, GeneratorValue, Value
from .frame_code import Emitter, builds, unreconstructable
from .resume import ResumePoint, resume_code

#: made while compiling, kept: a point is met again with every compilation of the code around it
_codes: dict[ResumePoint, types.CodeType] = {}


@builds(GeneratorValue)
def build_generator(emitter: Emitter, value: GeneratorValue) -> None:
    """Push the generator."""
    frame = value.frame
    if value.running or is_polyfill(value.func.code):
        raise unreconstructable(value, value.born)
    if frame is None:
        emitter.make(value, _finished, value.func, lambda: emitter.const(n_params(value.func.code)))
    elif not value.started:
        _call_function(emitter, value, frame)
    else:
        _resume(emitter, value, frame)


def _call_function(emitter: Emitter, value: GeneratorValue, frame: Frame) -> None:
    names = emitter.parts(value, [value.func, *(frame.locals[name] for name in param_names(frame.code))])
    if names is None:
        emitter.load(value)
        return
    emitter.make(value, _started, lambda: emitter.emit("LOAD_FAST", names[0]), lambda: emitter.load_tuple(names[1:]))


def _resume(emitter: Emitter, value: GeneratorValue, frame: Frame) -> None:
    if frame.is_handling():
        raise unreconstructable(value, value.born)  # it handles an exception, which only raising can put back
    bound = sorted(frame.locals)
    cells = sorted(frame.cells)
    layout = tuple("null" if v is NULL else "value" for v in frame.stack)
    space = frame.globals.real_dict
    first = first_argument(frame, emitter.context)
    point = ResumePoint(frame.code, frame.ip - 1, layout, tuple(bound), tuple(cells), id(space), yields=True,
                        first=first is not None)
    code = _codes.get(point)
    if code is None:
        try:
            code = _codes[point] = resume_code(point, {id(space): space})
        except Resumable:
            raise unreconstructable(value, value.born) from None
    arguments: list[Value] = [] if first is None else [first]
    arguments += [v for v in frame.stack if v is not NULL]
    arguments += [frame.locals[name] for name in bound]
    names = emitter.parts(value, [*(frame.cells[name] for name in cells), *arguments])
    if names is None:
        emitter.load(value)
        return
    value.func.settle()  # its names are those of the generator
    emitter.make(value, _suspended, lambda: emitter.const(code), lambda: emitter.const(space),
                 lambda: emitter.const((value.func.name, value.func.qualname)),
                 lambda: emitter.load_tuple(names[: len(cells)]), lambda: emitter.load_tuple(names[len(cells):]))


# -- run by compiled code -----------------------------------------------------------------------------------


def _suspended(code: types.CodeType, space: dict[str, Any], names: tuple[str, str], cells: tuple[Any, ...],
               values: tuple[Any, ...]) -> Any:
    """A generator at the yield to which `code` goes."""
    made = types.FunctionType(code, space, names[0], None, cells or None)(*values)
    made.__qualname__ = names[1]
    next(made)
    return made


def _started(function: types.FunctionType, values: tuple[Any, ...]) -> Any:
    """Call with a value for each parameter, `*args` and `**kwargs` as one each."""
    code = function.__code__
    n, n_kwonly = code.co_argcount, code.co_kwonlyargcount
    positional, rest = values[:n], values[n + n_kwonly:]
    keywords = dict(zip(code.co_varnames[n: n + n_kwonly], values[n: n + n_kwonly], strict=True))
    if code.co_flags & inspect.CO_VARKEYWORDS:
        keywords.update(rest[-1])
    if code.co_flags & inspect.CO_VARARGS:
        positional += rest[0]
    return function(*positional, **keywords)


def _finished(function: types.FunctionType, count: int) -> Any:
    """A generator of the function that has come to its end."""
    made = _started(function, ((),) * count)
    made.close()
    return made
