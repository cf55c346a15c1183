"""Writing instructions as the running version of Python lays them out, and code objects made of them."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Container, Iterable
from typing import Any

from bytecode import Bytecode, CellVar, FreeVar, Instr
from bytecode.instr import InstrLocation

_PY311 = sys.version_info < (3, 12)
_PY313 = sys.version_info >= (3, 13)
_SIMPLE_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), types.CodeType)
JUMP_IF_NONE, JUMP_IF_NOT_NONE = ("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE") if _PY311 else (
    "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")


class _Slot:
    """A placeholder for an object in the constants of code being assembled."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj


class CodeWriter:
    """Writes instructions of one place of the source to `out`."""

    def __init__(self, location: InstrLocation | None) -> None:
        self.location = location
        self.out: list[Any] = []

    def emit(self, name: str, *arg: Any) -> None:
        self.out.append(Instr(name, *arg, location=self.location))

    def const(self, obj: Any) -> None:
        """Push an object."""
        self.emit("LOAD_CONST", obj if isinstance(obj, _SIMPLE_CONSTANTS) else _Slot(obj))

    def begin_call(self, push: Callable[[], None]) -> None:
        """Push what is called, in front of its arguments."""
        if not _PY313:
            self.emit("PUSH_NULL")
        push()
        if _PY313:
            self.emit("PUSH_NULL")

    def call(self, function: Any, *loads: Any) -> None:
        """Push `function(*args)`; each of `loads` pushes one argument."""
        self.call_pushed(later(self.const, function), *loads)

    def call_pushed(self, push: Callable[[], None], *loads: Any) -> None:
        """Push `function(*args)` of what `push` pushes."""
        self.begin_call(push)
        for load in loads:
            self.push(load)
        self.finish_call(len(loads))

    def finish_call(self, count: int) -> None:
        """Call what `begin_call` and the arguments have pushed."""
        if _PY311:
            self.emit("PRECALL", count)
        self.emit("CALL", count)

    def push(self, load: Any) -> None:
        """Push what a loader pushes."""
        load()

    def take(self, name: str) -> None:
        """Push a variable and delete it: `locals()` looks."""
        self.emit("LOAD_FAST", name)
        self.emit("DELETE_FAST", name)

    def closure_cell(self, name: str, own: Container[str] = ()) -> None:
        """Push a closure cell itself, of a variable of the code's `own` or of one around it."""
        self.emit("LOAD_FAST" if _PY313 else "LOAD_CLOSURE", CellVar(name) if name in own else FreeVar(name))

    def closure_cells(self, names: tuple[str, ...], own: Container[str]) -> None:
        """Push a tuple of cells, None where there are none."""
        for name in names:
            self.closure_cell(name, own)
        self.emit(*(("BUILD_TUPLE", len(names)) if names else ("LOAD_CONST", None)))


def make_code(items: Iterable[Any], like: types.CodeType, arguments: Iterable[str], freevars: Iterable[str],
              cellvars: Iterable[str] = (), flags: int = inspect.CO_NESTED) -> types.CodeType:
    """The code object of a function with positional parameters, at the place of `like` and with these flags of it."""
    bytecode = Bytecode(items)
    bytecode.argnames = list(arguments)
    bytecode.argcount = len(bytecode.argnames)
    bytecode.freevars, bytecode.cellvars = list(freevars), list(cellvars)
    bytecode.name, bytecode.qualname = like.co_name, like.co_qualname
    bytecode.filename, bytecode.first_lineno = like.co_filename, like.co_firstlineno
    bytecode.flags = like.co_flags & flags | inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
    return assemble(bytecode)


#: what instructions that leave more on the stack than they take begin with
_PUSHING = ("LOAD_", "PUSH_", "COPY", "BUILD_", "FOR_ITER", "BEFORE_WITH", "IMPORT_FROM", "GET_LEN", "MATCH_")


def assemble(bytecode: Bytecode) -> types.CodeType:
    """Assemble, then put the real objects where the constants hold placeholders."""
    # Items whose number only the program's data bound (the items of a list) may all lie on the stack at once.
    depth = 64 + sum(i.arg if i.name == "UNPACK_SEQUENCE" else i.name.startswith(_PUSHING)
                     for i in bytecode if isinstance(i, Instr))
    code = bytecode.to_code(stacksize=depth, compute_exception_stack_depths=False)
    return code.replace(co_consts=tuple(c.obj if isinstance(c, _Slot) else c for c in code.co_consts))


def later(function: Callable[..., None], *args: Any) -> Callable[[], None]:
    """A loader that calls a function."""
    def run() -> None:
        function(*args)

    return run


__all__ = ["JUMP_IF_NONE", "JUMP_IF_NOT_NONE", "CodeWriter", "assemble", "later", "make_code"]
