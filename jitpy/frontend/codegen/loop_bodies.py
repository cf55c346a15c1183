"""Bodies of `for` loops in code that runs as plain Python, as functions of their own, which are compiled.

A frame that holds an object whose end is noticed runs as plain Python behind the place where the object was made, so
that the object ends where it does in eager. The body of a loop there needs no frame of its own: it is a function of the
variables that it reads, and returns those that it writes. The plain code calls that function for each item:

    for item in items:                      for item in items:
        total = total + f(item)     -->         total, item = body(item, total)

Meanwhile the plain frame holds the former values of what the body writes. That shows for objects whose end is noticed,
so a body is called where these values are tensors, numbers, texts and containers of those, and else runs as it is.
Bodies that leave the loop, handle exceptions or make functions stay as they are.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from bytecode import Bytecode, CellVar, FreeVar, Instr, Label

from ..bytecode.code import CodeTable, CodeView, view_of
from .code_writer import JUMP_IF_NONE, CodeWriter, assemble, later, make_code
from .hand_over import hide_frames
from .resume import single

_ITEM = "___item"
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NEVER = frozenset({
    "YIELD_VALUE", "RETURN_VALUE", "RETURN_CONST", "SEND", "BEFORE_WITH", "BEFORE_ASYNC_WITH", "MAKE_CELL",
    "LOAD_CLOSURE", "STORE_DEREF", "DELETE_DEREF", "DELETE_FAST", "LOAD_FAST_AND_CLEAR", "MAKE_FUNCTION",
    "LOAD_BUILD_CLASS", "EXTENDED_ARG",
})
#: functions that look at the frame of their caller
_LOOKS = frozenset({"locals", "vars", "dir", "eval", "exec", "super", "globals"})

#: the code of a body -> that of the function with the loop
_owners: CodeTable[types.CodeType] = CodeTable()


def owner_of(code: types.CodeType) -> types.CodeType:
    """The function that has a body as its loop's, or the code itself."""
    found = _owners.get(code)
    return code if found is None else found


# -- what a body is -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop: its FOR_ITER, its last instruction, the variables that it takes and gives back, its closure variables."""

    head: int
    last: int
    taken: tuple[str, ...]
    given: tuple[str, ...]
    cells: tuple[str, ...]


def _loops(view: CodeView, start: int, bound: frozenset[str]) -> Iterator[_Loop]:
    """The outermost loops behind an instruction where the variables `bound` have values."""
    ends: dict[int, int] = {}
    for ins in view.instructions:
        if 0 <= ins.target <= ins.index:
            ends[ins.target] = ins.index
    behind = start
    for head, last in sorted(ends.items()):
        if head < behind or view.instructions[head].name != "FOR_ITER":
            continue
        behind = last + 1
        found = _loop(view, head, last, start, bound)
        if found is not None:
            yield found


def _loop(view: CodeView, head: int, last: int, start: int, bound: frozenset[str]) -> _Loop | None:
    instructions = view.instructions
    body = instructions[head + 1:last + 1]
    if instructions[head].target != last + 1 or any(ins.handler is not None for ins in instructions[head:last + 1]):
        return None
    if any(ins.name in _NEVER or ins.target >= 0 and not head <= ins.target <= last for ins in body):
        return None
    if any(ins.name in ("LOAD_GLOBAL", "LOAD_NAME") and _name(ins.arg) in _LOOKS for ins in body):
        return None
    bound = bound.union(_stored_first(view, start, head))
    surely = _stored_first(view, head + 1, last + 1)
    read: set[str] = set()
    written: set[str] = set()
    for position, one, name in _variables(view, head + 1, last + 1):
        if one.startswith("STORE"):
            written.add(name)
        if name not in (surely if one.startswith("STORE") else _stored_first(view, head + 1, position)):
            read.add(name)  # also where it may not be written: the body gives it back then as it was
    elsewhere = {name for position, one, name in _variables(view, 0, len(instructions))
                 if one.startswith("STORE") and not head < position <= last}
    deleted = {ins.arg for ins in instructions if ins.name == "DELETE_FAST"}
    if deleted & (read | written) or not read | (written & elsewhere) <= bound:
        return None  # it may have no value, or one that nobody looked at
    cells = {ins.arg.name for ins in body if isinstance(ins.arg, (CellVar, FreeVar))}
    return _Loop(head, last, tuple(sorted(read | (written & bound))), tuple(sorted(written)), tuple(sorted(cells)))


def _name(arg: Any) -> str:
    return str(arg[1] if isinstance(arg, tuple) else arg)


def _variables(view: CodeView, begin: int, end: int) -> Iterator[tuple[int, str, str]]:
    """The local variables that instructions mention: the place, what is done, the name."""
    for ins in view.instructions[begin:end]:
        item = view.bytecode[ins.item]
        if ins.name.endswith(("_FAST", "_FAST_CHECK")) or "_FAST_" in ins.name:
            for part in single(item):
                if isinstance(part.arg, str):
                    yield ins.index, part.name, part.arg


def _stored_first(view: CodeView, begin: int, end: int) -> frozenset[str]:
    """The variables that are written between two places ahead of the first jump, whatever happens."""
    stop = next((ins.index for ins in view.instructions[begin:end] if ins.target >= 0), end)
    return frozenset(name for _, one, name in _variables(view, begin, stop) if one.startswith("STORE"))


# -- the two codes ------------------------------------------------------------------------------------------


def with_compiled_bodies(code: types.CodeType, start: int, bound: frozenset[str],
                         compiled: Callable[[types.CodeType], Any]) -> types.CodeType:
    """Plain code that calls the bodies of its loops. `compiled(code)` is the callable `(closure, item, *values)` that
    stands for a body; `bound` are the variables that have values at `start`, where the code begins."""
    if code.co_flags & _SUSPENDED:
        return code
    view = view_of(code)
    blocks: dict[int, tuple[Label, list[Any]]] = {}
    for loop in _loops(view, start, bound):
        body = _body(view, loop, code)
        _owners.set(body, code)
        checked = tuple(k for k, name in enumerate(loop.taken) if name in loop.given)
        again = Label()
        blocks[loop.head] = again, _call(view, loop, again, Body(compiled(body), checked))
    if not blocks:
        return code
    items: list[Any] = []
    index = -1
    for item in view.bytecode:
        if not isinstance(item, Instr):
            items.append(item)
            continue
        index += 1
        if index in blocks:
            items.append(blocks[index][0])
        items += single(item)
        if index in blocks:
            items += blocks[index][1]
    return _assembled(items, view.bytecode)


def _body(view: CodeView, loop: _Loop, code: types.CodeType) -> types.CodeType:
    line = view.instructions[loop.head].line or code.co_firstlineno
    items: list[Any] = [Instr("COPY_FREE_VARS", len(loop.cells), lineno=line)] if loop.cells else []
    items += [Instr("RESUME", 0, lineno=line), Instr("LOAD_FAST", _ITEM, lineno=line),
              Instr("DELETE_FAST", _ITEM, lineno=line)]
    end = Label()
    labels: dict[int, Label] = {loop.head: end}
    for ins in view.instructions[loop.head + 1:loop.last + 1]:
        if ins.target >= 0:
            labels.setdefault(ins.target, Label())
    for ins in view.instructions[loop.head + 1:loop.last + 1]:
        if ins.index in labels:
            items.append(labels[ins.index])
        item = view.bytecode[ins.item]
        if ins.target >= 0:
            name = ins.name.replace("JUMP_BACKWARD", "JUMP_FORWARD") if ins.target == loop.head else ins.name
            items.append(Instr(name, labels[ins.target], location=item.location))
        else:
            items += [_free(part) for part in single(item)]
    items += [end, *(Instr("LOAD_FAST", name, lineno=line) for name in loop.given),
              Instr("BUILD_TUPLE", len(loop.given), lineno=line), Instr("RETURN_VALUE", lineno=line)]
    return make_code(items, code, [_ITEM, *loop.taken], loop.cells)


def _free(item: Instr) -> Instr:
    """An instruction of the function in its body, to which all closure variables are free."""
    return Instr(item.name, FreeVar(item.arg.name), location=item.location) if isinstance(item.arg, CellVar) else item


def _call(view: CodeView, loop: _Loop, again: Label, body: Body) -> list[Any]:
    """Behind FOR_ITER: call the body, take what it gives, and go on with the next item; or run it as it is."""
    where = view.bytecode[view.instructions[loop.head].item].location
    writer, plain = CodeWriter(where), Label()
    writer.emit("STORE_FAST", _ITEM)
    writer.call(body, later(writer.closure_cells, loop.cells, view.bytecode.cellvars),
                *(later(writer.emit, "LOAD_FAST", name) for name in (_ITEM, *loop.taken)))
    writer.emit("COPY", 1)
    writer.emit(JUMP_IF_NONE, plain)
    writer.emit("UNPACK_SEQUENCE", len(loop.given))
    for name in loop.given:
        writer.emit("STORE_FAST", name)
    writer.emit("DELETE_FAST", _ITEM)
    writer.emit("JUMP_BACKWARD", again)
    writer.out.append(plain)
    writer.emit("POP_TOP")
    writer.take(_ITEM)
    return writer.out


def _assembled(items: list[Any], like: Bytecode) -> types.CodeType:
    bytecode = Bytecode(items)
    for name in ("argnames", "argcount", "posonlyargcount", "kwonlyargcount", "freevars", "cellvars", "name",
                 "qualname", "filename", "first_lineno", "flags", "docstring"):
        setattr(bytecode, name, getattr(like, name))
    return assemble(bytecode)


# -- at run time --------------------------------------------------------------------------------------------

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str, bytes, type(None)})


def _ends_unnoticed(value: Any, depth: int = 3) -> bool:
    """Whether nobody notices when a value goes, as far as its type and those of its items tell."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if depth and (kind is tuple or kind is list):
        return all(_ends_unnoticed(item, depth - 1) for item in value)
    return depth > 0 and kind is dict and all(_ends_unnoticed(item, depth - 1) for item in value.values())


class Body:
    """The function that plain code calls for an item: the new values of the variables written; None: run it as it is.

    `checked`: which of the values that it takes are written.
    """

    def __init__(self, function: Callable[..., tuple[Any, ...]], checked: tuple[int, ...]) -> None:
        self.function = function
        self.checked = checked
        self.is_left = False

    def __call__(self, closure: tuple[Any, ...] | None, item: Any, *values: Any) -> tuple[Any, ...] | None:
        if self.is_left or not all(_ends_unnoticed(values[k]) for k in self.checked):
            return None
        given = self.function(closure, item, *values)
        self.is_left = not _ends_unnoticed(given, 4)
        return given


hide_frames(Body.__call__)
