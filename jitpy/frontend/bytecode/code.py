"""Bytecode as the interpreter reads it: a list of instructions with resolved arguments, jump targets and handlers."""

from __future__ import annotations

import builtins
import dis
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bytecode import UNSET, Bytecode, Instr, Label, TryBegin, TryEnd

#: instructions that are part of the one they belong to: no `Ins` stands for them
IGNORED = frozenset({"CACHE", "EXTENDED_ARG"})


@dataclass(frozen=True, slots=True)
class Handler:
    """Where an exception raised inside a region goes: `target` instruction, stack cut to `depth`."""

    target: int
    depth: int
    push_lasti: bool


class Ins:
    """One instruction. `arg` is resolved (names, constants, cell variables); `target` is where it jumps (an index)."""

    __slots__ = ("arg", "handler", "index", "item", "line", "name", "run", "target")

    def __init__(self, name: str, arg: Any, index: int, line: int | None, item: int) -> None:
        self.name = name
        self.arg = arg
        self.index = index
        self.line = line
        self.item = item  # position in the Bytecode's list
        self.target = -1
        self.handler: Handler | None = None
        self.run: Any = None  # the interpreter's handler, bound on first use

    def __repr__(self) -> str:
        return f"{self.index}: {self.name} {self.arg!r}" + (f" -> {self.target}" if self.target >= 0 else "")


class CodeView:
    """A code object, decoded. One per code object, which it does not keep alive."""

    __slots__ = ("bytecode", "instructions", "n_params")

    def __init__(self, code: types.CodeType) -> None:
        self.bytecode = Bytecode.from_code(code)
        self.n_params = n_params(code)
        self.instructions: list[Ins] = []
        labels: dict[int, int] = {}
        regions: list[tuple[Ins, TryBegin]] = []
        jumps: list[tuple[Ins, Label]] = []
        current: TryBegin | None = None
        for position, item in enumerate(self.bytecode):
            if isinstance(item, Instr):
                arg = 0 if item.arg is UNSET else item.arg
                ins = Ins(item.name, arg, len(self.instructions), item.lineno, position)
                self.instructions.append(ins)
                if isinstance(item.arg, Label):
                    jumps.append((ins, item.arg))
                if current is not None:
                    regions.append((ins, current))
            elif isinstance(item, Label):
                labels[id(item)] = len(self.instructions)
            elif isinstance(item, TryBegin):
                current = item
            elif isinstance(item, TryEnd):
                current = None
        for ins, label in jumps:
            ins.target = labels[id(label)]
        handlers: dict[int, Handler] = {}
        depths = _handler_depths(code) if regions else {}
        for ins, begin in regions:
            handler = handlers.get(id(begin))
            if handler is None:
                target = labels[id(begin.target)]
                handler = handlers[id(begin)] = Handler(target, depths[target], begin.push_lasti)
                begin.stack_depth = depths[target]
            ins.handler = handler


def _handler_depths(code: types.CodeType) -> dict[int, int]:
    """For each handler's first instruction (by index) the stack depth that its region unwinds to."""
    index_at: dict[int, int] = {}
    count = 0
    # without the constants, which may be the program's objects in generated code: dis would ask for their texts
    for ins in dis.get_instructions(code.replace(co_consts=(None,) * len(code.co_consts))):
        index_at[ins.offset] = count
        if ins.opname not in IGNORED:
            count += 1
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return {index_at[entry.target]: entry.depth for entry in entries}


Fact = TypeVar("Fact")


class CodeTable(Generic[Fact]):
    """Facts about code objects, as long as those live. By identity: constants of generated code need not be hashable.

    A fact that holds its code keeps it alive for good.
    """

    def __init__(self) -> None:
        self._facts: dict[int, tuple[Fact, weakref.ref[types.CodeType]]] = {}

    def get(self, code: types.CodeType) -> Fact | None:
        found = self._facts.get(id(code))
        return None if found is None else found[0]

    def set(self, code: types.CodeType, fact: Fact) -> None:
        facts, key = self._facts, id(code)
        facts[key] = fact, weakref.ref(code, lambda _: facts.pop(key, None) and None)

    def setdefault(self, code: types.CodeType, make: Callable[[], Fact]) -> Fact:
        found = self.get(code)
        if found is None:
            self.set(code, found := make())
        return found

    def pop(self, code: types.CodeType) -> Fact | None:
        found = self._facts.pop(id(code), None)
        return None if found is None else found[0]

    def clear(self) -> None:
        self._facts.clear()

    def __contains__(self, code: types.CodeType) -> bool:
        return id(code) in self._facts

    def __len__(self) -> int:
        return len(self._facts)


_views: CodeTable[CodeView] = CodeTable()


def view_of(code: types.CodeType) -> CodeView:
    """The decoded form of a code object."""
    view = _views.get(code)
    if view is None:
        view = CodeView(code)
        _views.set(code, view)
    return view


def is_readable(code: types.CodeType) -> bool:
    """Whether code can be decoded. Not so are functions that make a type parameter with a default (3.13), and those in
    which a variable of a comprehension has the name of a closure variable from outside (3.12)."""
    if not {*code.co_varnames, *code.co_cellvars}.isdisjoint(code.co_freevars):
        return False
    try:
        view_of(code)
    except (ValueError, IndexError):
        return False
    return True


def has_own_builtins(code: types.CodeType, globals: dict[str, Any]) -> bool:
    """Whether a function looks for names among other builtins than everybody's. Named tuples, whose globals have none,
    find theirs without."""
    found = globals.get("__builtins__", builtins)
    return found is not builtins and found is not vars(builtins) and not all(map(globals.__contains__, code.co_names))


def n_params(code: types.CodeType) -> int:
    """How many parameters a code object has, `*args` and `**kwargs` counted as one each."""
    flags = code.co_flags
    return (code.co_argcount + code.co_kwonlyargcount + bool(flags & 0x04) + bool(flags & 0x08))


def all_positional(code: types.CodeType) -> types.CodeType:
    """The same code with every parameter positional, `*args` and `**kwargs` as a tuple and a dict."""
    return code.replace(co_argcount=n_params(code), co_posonlyargcount=0, co_kwonlyargcount=0,
                        co_flags=code.co_flags & ~0x0C)


def param_names(code: types.CodeType) -> tuple[str, ...]:
    return code.co_varnames[: n_params(code)]
