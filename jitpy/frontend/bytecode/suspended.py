"""Frames of suspended generators: whether closing them runs code of the program's."""

from __future__ import annotations

import builtins
import dis
import types
from typing import Any

from .code import IGNORED, CodeTable, Ins, view_of

#: code -> by the offset of a `yield`, the number of its instruction
_places: CodeTable[dict[int, int]] = CodeTable()


def left_half_way(generator: types.GeneratorType[Any, Any, Any]) -> bool:
    """Whether closing a generator runs code of its own."""
    if not generator.gi_suspended:
        return False
    frame = generator.gi_frame
    known = _places.setdefault(frame.f_code, dict)
    if frame.f_lasti not in known:
        known[frame.f_lasti] = -1 + sum(ins.offset <= frame.f_lasti and ins.opname not in IGNORED
                                        for ins in dis.get_instructions(frame.f_code))
    return closing_runs_code(view_of(frame.f_code).instructions, known[frame.f_lasti], frame.f_globals)


def closing_runs_code(instructions: list[Ins], at: int, names: dict[str, Any]) -> bool:
    """Whether a frame suspended at an instruction is inside `try` or `with` such that closing it runs code of its
    own; `names` are its globals."""
    handler = instructions[at].handler
    while handler is not None:
        target = instructions[handler.target]
        if target.name == "CLEANUP_THROW":
            handler = target.handler
            continue
        if target.name == "CALL_INTRINSIC_1" and target.arg.name == "INTRINSIC_STOPITERATION_ERROR":
            return False
        raised_again = _raises_close_again(instructions, handler.target, names)
        if raised_again is None:
            return True
        handler = raised_again.handler
    return False


def _raises_close_again(instructions: list[Ins], at: int, names: dict[str, Any]) -> Ins | None:
    """The `RERAISE` to which a handler comes with GeneratorExit, where all that it does is to look for other types."""
    if instructions[at].name in ("PUSH_EXC_INFO", "COPY"):
        at += 1
    while instructions[at].name == "LOAD_GLOBAL" and instructions[at + 1].name == "CHECK_EXC_MATCH":
        kind, test = _builtin_class(instructions[at].arg[1], names), instructions[at + 2]
        if kind is None or issubclass(GeneratorExit, kind) or not test.name.endswith("_IF_FALSE"):
            return None
        at = test.target
    if instructions[at].name == "POP_EXCEPT":
        at += 1
    return instructions[at] if instructions[at].name == "RERAISE" else None


def _builtin_class(name: str, names: dict[str, Any]) -> type | None:
    """The builtin class of that name, None where the module has another thing of that name."""
    found = vars(builtins).get(name)
    return found if isinstance(found, type) and name not in names else None
