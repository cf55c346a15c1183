"""Generators that tracing made, rebuilt in plain Python.

One that was not started is made by calling its function. A suspended one is made by a resume function that is itself a
generator: it puts locals and stack back and jumps to the yield, so that sending, throwing and closing find the same
instruction, handlers and closure cells. The first `next` takes it there, running none of the user's code.

One to which nothing but a loop refers (on the stack of a frame that goes on behind a break) is passed on in parts: the
resume function makes it anew, and tracing goes on with it as if there had been no break.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

from ..bytecode.code import n_params, param_names
from ..bytecode.resume_codes import Resumable, origin_of
from ..interpreter.callees import builtin
from ..interpreter.frame import Frame, first_argument
from ..interpreter.library_code import is_polyfill
from ..models.builtins.iteration import EnumerateIterator, RestIterator, ZipIterator
from ..polyfills import iterators
from ..values import (
    NULL,
    FunctionValue,
    GeneratorValue,
    Interpreter,
    TraceContext,
    Value,
)
from .frame_code import Emitter, builds, unreconstructable
from .resume import Rebuild, Recipe, ResumePoint, rebuilt, resume_code, suspended

#: made while compiling, kept: a point is met again with every compilation of the code around it
_codes: dict[ResumePoint, types.CodeType] = {}


@builds(GeneratorValue)
def build_generator(emitter: Emitter, value: GeneratorValue) -> None:
    """Push the generator."""
    frame = value.frame
    if value.running or is_polyfill(value.func.code) and not value.is_hidden:
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
    emitter.make(value, suspended, lambda: emitter.const(code), lambda: emitter.const(space),
                 lambda: emitter.const((value.func.name, value.func.qualname)),
                 lambda: emitter.load_tuple(names[: len(cells)]), lambda: emitter.load_tuple(names[len(cells):]))


# -- passed on in parts ---------------------------------------------------------------------------------------


class Parts:
    """Takes an iterator apart: `recipe` says how it is made anew from `values`, without the iterators in `taken`.

    Generators of polyfills, which stand for iterators in C, go on as such: nobody sees them."""

    def __init__(self, context: TraceContext, value: Value) -> None:
        self.context = context
        self.values: list[Value] = []
        self.taken: list[Value] = []
        self.spaces: dict[int, dict[str, Any]] = {}
        self._numbers: dict[int, int] = {}
        self.recipe = self._recipe(value)

    @property
    def has_generator(self) -> bool:
        """Whether there is something to be gained: other iterators are read ahead as they are."""
        return any(value.is_generator for value in self.taken)

    def _recipe(self, value: Value) -> Recipe:
        number = self._numbers.get(id(value))
        if number is not None:
            return Recipe("same", number=number)
        found = self._generator(value) if value.is_generator else self._wrapper(value)
        if found is None:
            self.values.append(value)
            return _VALUE
        kind, inner, facts = found
        parts = tuple([self._recipe(self.context.force(part)) for part in inner])
        self._numbers[id(value)] = len(self.taken)
        self.taken.append(value)
        return Recipe(kind, parts, **facts)

    def _wrapper(self, value: Value) -> _Found | None:
        if type(value) is EnumerateIterator and value.source is None:
            return "enumerate", [value.iterator, value.count], {}
        if type(value) is ZipIterator and value.source is None:
            return "zip", value.iterators, {}
        return ("rest", [value.of], {}) if type(value) is RestIterator else None

    def _generator(self, value: GeneratorValue) -> _Found | None:
        frame = value.frame
        if is_polyfill(value.func.code) and value.func.code.co_filename != iterators.__file__:
            return None  # may hold what is real while tracing only
        if frame is None or value.running or not value.started or frame.is_handling() or \
                first_argument(frame, self.context) is not None:
            return None
        layout = tuple("null" if v is NULL else "value" for v in frame.stack)
        space = frame.globals.real_dict
        try:
            code, index = origin_of(frame.code, frame.ip - 1)
            point = ResumePoint(code, index, layout, tuple(sorted(frame.locals)), tuple(sorted(frame.cells)),
                                id(space), yields=True)
            if point not in _codes:
                _codes[point] = resume_code(point, {id(space): space})
        except Resumable:
            return None
        self.spaces[id(space)] = space
        value.func.settle()  # its names are those of the generator
        stack = [v for v in frame.stack if v is not NULL]
        inner = [*(frame.cells[name] for name in point.cells), *stack, *(frame.locals[name] for name in point.locals)]
        return "generator", inner, {"point": point, "names": (value.func.name, value.func.qualname), "cls": value.cls}


_Found = tuple[str, list[Any], dict[str, Any]]
_VALUE = Recipe("value")


@builtin(rebuilt)
def _traced_rebuilt(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    how, values = args
    found: Rebuild = how.real

    def combine(recipe: Recipe, parts: list[Value]) -> Value:
        if recipe.kind == "enumerate":
            return EnumerateIterator(*parts)
        if recipe.kind == "zip":
            return ZipIterator(parts)
        return RestIterator(*parts) if recipe.kind == "rest" else _traced_generator(interp, found, recipe, iter(parts))

    return found.build([interp.context.force(value) for value in values.items], combine)


def _traced_generator(interp: Interpreter, how: Rebuild, recipe: Recipe, parts: Iterator[Any]) -> GeneratorValue:
    point = recipe.point
    assert point is not None
    space, code = how.globals[point.globals_id], point.code
    cells = {name: next(parts) for name in point.cells}
    func = FunctionValue(code, space, name=recipe.names[0], qualname=recipe.names[1],
                         closure=[cells[name] for name in code.co_freevars])
    frame = Frame(func, code, interp.context.globals_of(space))
    frame.cells.update(cells)
    frame.stack += [NULL if kind == "null" else next(parts) for kind in point.layout]
    frame.locals.update((name, next(parts)) for name in point.locals)
    frame.ip = point.index + 1
    frame.resumable = False
    made = frame.generator = GeneratorValue(frame, interp.step, func)
    made.cls = recipe.cls
    made.started = made.is_hidden = True
    interp.generators.append(made)
    return made


# -- run by compiled code -----------------------------------------------------------------------------------


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
