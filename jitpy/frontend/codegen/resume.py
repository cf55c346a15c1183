"""Resume functions: code objects that go on in the middle of a frame.

A `ResumePoint` names a place in a code object together with the shape of what is live there. Its function takes the
values of the stack, then the locals, then those of the inner frames, pushes the stack back and jumps. For a break in an
inlined callee the outer frames have resume points of their own: the outermost one calls the next inner one where the
original call was, so that handlers, loops and `with` blocks around the call still apply, and tracing it inlines the
inner one again.

Resume functions of resume functions do not nest: `origin_of` maps a place in a resume function to the original code.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bytecode import CellVar, FreeVar, Instr, Label, TryBegin, TryEnd
from bytecode.instr import InstrLocation

from ..bytecode.code import CodeTable, CodeView, view_of
from ..bytecode.resume_codes import Resumable, origins, plain
from .code_writer import CodeWriter, later, make_code
from .hand_over import TailCall, let_go, run_to_end

_PY311 = sys.version_info < (3, 12)
_PY313 = sys.version_info >= (3, 13)
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A place to go on: before instruction `index` of `code` (an original, never a resume function).

    layout    what the stack holds, bottom first: 'value' or 'null'
    locals    names of the bound local variables
    cells     names of the closure variables
    first     the frame's first argument is passed as the first one here too, where `super()` looks for it
    inner     the callee's resume point, whose result is pushed first; `index` is then the instruction after the call
    raises    an exception is passed last, and raised here instead of going on
    yields    `index` is the yield at which a generator is suspended: the function makes that generator, and its first
              `next` takes it to the yield
    until     it is plain Python, up to this place: what goes on there may be traced again; -1: to its end
    depth     how many stack entries there are at that place
    """

    code: types.CodeType
    index: int
    layout: tuple[str, ...]
    locals: tuple[str, ...]
    cells: tuple[str, ...]
    globals_id: int
    inner: ResumePoint | None = None
    raises: bool = False
    yields: bool = False
    first: bool = False
    until: int | None = None
    depth: int = 0

    def parameters(self, prefix: str = "") -> list[str]:
        """Parameter names: the first argument, own stack and locals, the inner point's values (and its closure), the
        exception."""
        names = [f"___{prefix}first"] if self.first else []
        names += [f"___{prefix}s{i}" for i, kind in enumerate(self.layout) if kind != "null"]
        names += [name if not prefix else f"___{prefix}l{i}" for i, name in enumerate(self.locals)]
        if self.inner is not None:
            if self.inner.cells:
                names.append(f"___{prefix}closure")
            names += self.inner.parameters(prefix + "i")
        elif self.raises:
            names.append(f"___{prefix}exc")
        return names


class LoopExit:
    """Plain Python calls it at the end of a loop: `(stack, cells, variables)` -> the call of what goes on there."""

    def __init__(self, point: ResumePoint, resume: Callable[[ResumePoint, bool, dict[int, Any]], Any],
                 globals_by_id: dict[int, dict[str, Any]]) -> None:
        assert point.until is not None
        self.point = ResumePoint(point.code, point.until, point.layout[:point.depth], (), point.cells,
                                 point.globals_id)
        self.resume = resume
        self.globals_by_id = globals_by_id
        self.names = sorted({*point.code.co_varnames}.difference(point.cells))
        self.targets: dict[tuple[str, ...], Any] = {}

    def __call__(self, stack: tuple[Any, ...], cells: tuple[Any, ...] | None, variables: dict[str, Any]) -> TailCall:
        bound = tuple([name for name in self.names if name in variables])
        target = self.targets.get(bound)
        if target is None:
            point = replace(self.point, locals=bound)
            target = self.targets[bound] = self.resume(point, True, self.globals_by_id)
        return TailCall((None, target, cells, *stack, *[variables[name] for name in bound]))


#: resume function's code -> where it goes on, and the globals by identity
_points: CodeTable[tuple[ResumePoint, dict[int, dict[str, Any]]]] = CodeTable()


def start_of(code: types.CodeType) -> tuple[types.CodeType, int] | None:
    """Where a resume function goes on, in its innermost frame; None for other code."""
    found = _points.get(code)
    if found is None:
        return None
    point = found[0]
    while point.inner is not None:
        point = point.inner
    return point.code, point.index


def start_in(code: types.CodeType) -> int:
    """The instruction of a resume function where it goes on: its prologue ends in a jump there."""
    found = origins.get(code)
    assert found is not None
    first = next(index for index, place in enumerate(found[1]) if place != -1)
    return view_of(code).instructions[first - 1].target


def raises_instead(code: types.CodeType) -> Callable[..., Any] | None:
    """For a resume function that goes on inside a `with` or a `try`: `raises(globals, cells)` makes its sibling that
    raises an exception there, its last argument, so that these blocks see it. None for other code."""
    found = _points.get(code)
    if found is None:
        return None
    start, spaces = found
    point: ResumePoint | None = start
    while point is not None:
        index, view = point.index if point.inner is None else point.index - 1, view_of(point.code)
        if view.instructions[index].handler is not None or point.inner is None and _behind_exits(view, index) > index:
            return functools.partial(_raise_instead, start, spaces)
        point = point.inner
    return None


#: what may lie between the place where a frame goes on and the call of an `__exit__`
_BETWEEN = frozenset({"NOP", "SWAP", "POP_TOP", "STORE_FAST", "JUMP_FORWARD"})


def _behind_exits(view: CodeView, index: int) -> int:
    """The place behind the calls of `__exit__(None, None, None)` that come next, or `index`: `with` blocks that a frame
    is about to leave handle no exception any more, and what fails later fails behind them."""
    found = at = index
    instructions = view.instructions
    call = ["LOAD_CONST"] * 3 + (["PRECALL", "CALL"] if _PY311 else ["CALL"])
    while at < len(instructions):
        names = [one.name for one in instructions[at:at + len(call)]]
        if names == call and all(one.arg is None for one in instructions[at:at + 3]) and \
                instructions[at + len(call) - 1].arg == 2:
            found = at = at + len(call)
        elif names[0] in _BETWEEN:
            at = instructions[at].target if names[0] == "JUMP_FORWARD" else at + 1
        else:
            break
    return found


def _raise_instead(point: ResumePoint, spaces: dict[int, dict[str, Any]], globals: dict[str, Any],
                   cells: tuple[Any, ...] | None) -> Any:
    code = resume_code(_raising(point), spaces)
    return types.FunctionType(code, globals, code.co_name, None, cells)


def _raising(point: ResumePoint) -> ResumePoint:
    return replace(point, raises=True) if point.inner is None else replace(point, inner=_raising(point.inner))


def resume_code(point: ResumePoint, globals_by_id: dict[int, dict[str, Any]],
                loop_exit: LoopExit | None = None) -> types.CodeType:
    """The code object of a resume function; `loop_exit` is called where it is plain Python no longer."""
    view = view_of(point.code)
    code = point.code
    if code.co_flags & _SUSPENDED and not (point.yields and code.co_flags & _SUSPENDED == inspect.CO_GENERATOR):
        raise Resumable("generators cannot be resumed")
    if not {*code.co_cellvars, *code.co_freevars} <= {*point.cells}:
        raise Resumable("a comprehension has put closure variables aside")
    parameters = point.parameters()
    line = view.instructions[min(point.index, len(view.instructions) - 1)].line or code.co_firstlineno
    target = Label()
    prologue = _prologue(point, target, line)
    places = [-1] * sum(isinstance(i, Instr) for i in prologue)
    items = _original_items(view, point, target, places, globals_by_id, line, loop_exit)
    made = make_code([*prologue, *items], code, parameters, [closure_name(code, name) for name in point.cells],
                     [name for name in point.cells if name in code.co_cellvars],
                     inspect.CO_NESTED | inspect.CO_GENERATOR)
    made = made.replace(co_stacksize=made.co_stacksize + code.co_stacksize)
    origins.set(made, (code, places))
    if not point.yields and not _raises(point):
        _points.set(made, (point, globals_by_id))
    if point.until is not None:
        plain.set(made, True)
    if len(view_of(made).instructions) != len(places):
        raise Resumable("the assembled code has other instructions than the original")
    return made


def _raises(point: ResumePoint) -> bool:
    return point.raises if point.inner is None else _raises(point.inner)


def closure_name(code: types.CodeType, name: str) -> str:
    """The free variable by which a resume function gets a closure variable. Those that the original makes are its own
    variables here too, because CPython tells the two apart where one is not bound: the prologue moves the cells."""
    return f"___{name}" if name in code.co_cellvars else name


def _prologue(point: ResumePoint, target: Label, line: int) -> list[Any]:
    writer = CodeWriter(InstrLocation(line, None, None, None))
    own = [name for name in point.cells if name in point.code.co_cellvars]
    if point.cells:
        writer.emit("COPY_FREE_VARS", len(point.cells))
    for name in own:
        writer.emit("MAKE_CELL", CellVar(name))  # `locals()` looks for these
    if point.yields:
        writer.emit("RETURN_GENERATOR")
        writer.emit("POP_TOP")
    writer.emit("RESUME", 0)
    if not point.yields:
        writer.call(let_go)
        writer.emit("POP_TOP")
    for name in own:
        writer.closure_cell(closure_name(point.code, name))
        writer.emit("STORE_FAST", name)
    for i, kind in enumerate(point.layout):
        if kind == "null":
            writer.emit("PUSH_NULL")
        else:
            writer.take(f"___s{i}")
    if point.yields:
        writer.const(None)  # what the first `next` gets
    writer.emit("JUMP_FORWARD", target)
    return writer.out


def _original_items(view: CodeView, point: ResumePoint, target: Label, places: list[int],
                    globals_by_id: dict[int, dict[str, Any]], line: int, loop_exit: LoopExit | None) -> list[Any]:
    """The original's instructions with the place to go on marked by `target`."""
    out: list[Any] = []
    index = -1
    # Inserted code belongs to the region of the instruction that was interrupted: the call for an outer frame
    # (inserted behind it), the instruction itself otherwise (inserted before it).
    at = point.index - 1 if point.inner is not None else point.index
    raises_at = _behind_exits(view, at) if point.inner is None and point.raises else -1
    for item in view.bytecode:
        if isinstance(item, (Label, TryBegin, TryEnd)):
            out.append(item)
            continue
        if not isinstance(item, Instr):
            continue
        index += 1
        if loop_exit is not None and index == point.until:
            block = _hand_on(point, loop_exit, line)
            out += block
            places += [-1] * len(block)
        if index == raises_at:
            where = view.bytecode[view.instructions[at].item].location
            _insert_raise(out, places, target if index == at else None, where, index)
        elif index == at and point.inner is None:
            if point.raises:
                out.append(target)
            elif _PY313 and item.name in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"):
                _insert_to_bool(out, places, target, line, index)
            else:
                out.append(target)
        if item.name in ("MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR"):
            if item.name == "MAKE_CELL" and index > _first_resume(view):
                raise Resumable("cells made inside a comprehension")
            item = Instr("NOP", lineno=item.lineno)
        parts = single(item)
        out += parts
        places += [index] + [-1] * (len(parts) - 1)  # nothing goes wrong in a second part
        if index == at and point.inner is not None:
            _insert_inner_call(out, places, point, target, globals_by_id, item.location, index)
    return out


def _hand_on(point: ResumePoint, loop_exit: LoopExit, line: int) -> list[Any]:
    """`return loop_exit(stack, cells, locals())`."""
    writer = CodeWriter(InstrLocation(line, None, None, None))
    entries = [f"___e{position}" for position in range(point.depth)]  # a NULL is stored, too: that unbinds the variable
    kept = [name for name, kind in zip(entries, point.layout, strict=False) if kind != "null"]

    def stack() -> None:
        for name in kept:
            writer.emit("LOAD_FAST", name)
        writer.emit("BUILD_TUPLE", len(kept))

    for name in reversed(entries):
        writer.emit("STORE_FAST", name)
    writer.call(loop_exit, stack, later(writer.closure_cells, point.cells, point.code.co_cellvars),
                later(writer.call, locals))
    writer.emit("RETURN_VALUE")
    return writer.out


def _first_resume(view: CodeView) -> int:
    for ins in view.instructions:
        if ins.name == "RESUME":
            return ins.index
    return 0


def single(item: Instr) -> list[Instr]:
    """An instruction as it is, combined ones (3.13) in their two parts: these hold small numbers of variables only, and
    variables have other numbers here. They name cells of the function as they name its locals."""
    if type(item.arg) is not tuple or not item.name.endswith("_FAST"):
        return [item.copy()]
    if any(isinstance(arg, FreeVar) for arg in item.arg):
        raise Resumable("a closure variable in a combined instruction")
    names = _PARTS[item.name]
    return [Instr(name, getattr(arg, "name", arg), location=item.location)
            for name, arg in zip(names, item.arg, strict=True)]


_PARTS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}


def _insert_to_bool(out: list[Any], places: list[int], target: Label, line: int, index: int) -> None:
    """Since 3.13 these instructions take a bool only; what is passed here may be anything."""
    skip = Label()
    out += [Instr("JUMP_FORWARD", skip, lineno=line), target, Instr("TO_BOOL", lineno=line), skip]
    places += [-1, index]


def _insert_raise(out: list[Any], places: list[int], target: Label | None, where: InstrLocation | None,
                  index: int) -> None:
    """`raise`, which the code before jumps over; without a `target` it comes there."""
    skip = Label()
    if target is not None:
        out += [Instr("JUMP_FORWARD", skip, location=where), target]
        places.append(-1)
    out += [Instr("LOAD_FAST", "___exc", location=where), Instr("DELETE_FAST", "___exc", location=where),
            Instr("RAISE_VARARGS", 1, location=where), skip]
    places += [-1, -1, -2 - index]


def _insert_inner_call(out: list[Any], places: list[int], point: ResumePoint, target: Label,
                       globals_by_id: dict[int, dict[str, Any]], location: InstrLocation | None, index: int) -> None:
    """`inner(...)` behind the call instruction, where that is as tracebacks show it; the code before jumps over it."""
    inner = point.inner
    assert inner is not None
    skip = Label()
    code = resume_code(inner, globals_by_id)
    space = globals_by_id[inner.globals_id]
    writer = CodeWriter(location)
    writer.emit("JUMP_FORWARD", skip)
    writer.out.append(target)
    parts = [code, space, code.co_name, None]

    def call() -> None:
        writer.const(None)
        if inner.cells:
            writer.call(types.FunctionType, *(later(writer.const, part) for part in parts),
                        later(writer.take, "___closure"))
        else:
            writer.const(types.FunctionType(code, space, code.co_name))
        for name in inner.parameters("i"):
            writer.take(name)
        writer.emit("BUILD_TUPLE", len(inner.parameters("i")) + 2)

    writer.call(run_to_end, call)
    writer.out.append(skip)
    out += writer.out
    places += [index] * sum(isinstance(i, Instr) for i in writer.out)
