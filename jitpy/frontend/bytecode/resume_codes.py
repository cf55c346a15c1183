"""Codes of resume functions: which they are, and which instruction of the program's each of theirs stands for."""

from __future__ import annotations

import types

from .code import CodeTable, view_of


class Resumable(Exception):
    """The place cannot be resumed (a form of code that resume functions do not support)."""


#: resume function's code -> (original code, for each instruction its index in the original, -1, or -2 - index for the
#: raise in its place)
origins: CodeTable[tuple[types.CodeType, list[int]]] = CodeTable()
#: resume functions' codes that run as plain Python, also where others call them
plain: CodeTable[bool] = CodeTable()


def is_plain(code: types.CodeType) -> bool:
    """Whether a resume function is not to be traced."""
    return code in plain


def origin_of(code: types.CodeType, index: int) -> tuple[types.CodeType, int]:
    """The original place of an instruction of a resume function (or the place itself)."""
    found = origins.get(code)
    if found is None:
        return code, index
    original, places = found
    place = places[index]
    if place <= -2:
        return original, -2 - place
    if place < 0:
        raise Resumable(f"instruction {index} of {code.co_name} is not the user's")
    return original, place


def origin_code(code: types.CodeType) -> types.CodeType:
    """The original code of a resume function (or the code itself)."""
    found = origins.get(code)
    return code if found is None else found[0]


def raises_at(code: types.CodeType, index: int) -> bool:
    """Whether an instruction of a resume function is the one that raises the exception passed to it."""
    found = origins.get(code)
    return found is not None and found[1][index] <= -2


def calls_inner(code: types.CodeType, index: int) -> bool:
    """Whether an instruction of a resume function belongs to its call of the inner one, which the original lacks."""
    found = origins.get(code)
    if found is None:
        return False
    places = found[1]
    first = places.index(places[index])
    return index > first and view_of(code).instructions[first + 1].name == "JUMP_FORWARD"  # see `_insert_inner_call`


def behind(code: types.CodeType, index: int) -> int:
    """The place behind an instruction: in a resume function the call of the inner one may come in between."""
    index += 1
    while calls_inner(code, index):
        index += 1
    return index


def is_resume_code(code: types.CodeType) -> bool:
    return code in origins
