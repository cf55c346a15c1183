"""A program: `build(jit)` makes everything it needs, jits what its author would jit, runs some steps, and returns
(what the steps returned, the state that they leave behind)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Jit = Callable[[Any], Any]
Program = Callable[[Jit], tuple[list[Any], list[Any]]]

#: name -> the program
PROGRAMS: dict[str, Program] = {}


def program(build: Program) -> Program:
    PROGRAMS[build.__name__] = build
    return build
