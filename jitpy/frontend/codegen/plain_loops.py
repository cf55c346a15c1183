"""Loops of which nothing is compiled run as plain Python up to their exit.

A loop whose body breaks the graph is compiled in pieces, from each break to the next. Where no piece has a tensor
operation, an iteration costs a call for each piece and gains nothing. Once the pieces of such a loop are known, the
code that closes the cycle runs the rest of the loop as it is, and tracing goes on behind it.

This holds for `for` loops without branches: there the pieces of one iteration are all that there is to compile.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass

from ...ir import Graph, ScalarSpec
from ..bytecode.code import CodeTable, view_of
from .resume import start_of

#: how many instructions at a loop's exit belong to the loop
_AT_EXIT = 0 if sys.version_info < (3, 12) else 1 if sys.version_info < (3, 13) else 2
_NEVER = frozenset({"YIELD_VALUE", "RETURN_VALUE", "RETURN_CONST", "SEND", "BEFORE_WITH", "RAISE_VARARGS", "RERAISE"})


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` loop without branches: the places of its FOR_ITER and of its last instruction, where the program goes on
    behind it, and how many stack entries lie below its iterator."""

    head: int
    last: int
    exit: int
    depth: int

    def ends_function(self, code: types.CodeType) -> bool:
        """Whether a function does nothing behind its loop but return."""
        return view_of(code).instructions[self.exit].name == "RETURN_VALUE"


class PlainLoops:
    """Outcomes of the pieces of loops, of one engine."""

    def __init__(self) -> None:
        #: by the place of a loop, those where pieces begin; None: some piece is worth compiling
        self._pieces: CodeTable[dict[int, set[int] | None]] = CodeTable()

    def closed_by(self, frame_code: types.CodeType, code: types.CodeType, at: int, behind: int, depth: int,
                  graph: Graph) -> Loop | None:
        """The loop around instruction `at` of `code`, where the graph breaks, if none of its pieces is worth compiling
        and this one comes back to a place where one begins. `frame_code` is traced; the stack has `depth` entries."""
        loop = _loop_around(code, at, depth)
        if loop is None:
            return None
        started = start_of(frame_code)
        if started is None or started[0] is not code or not loop.head <= started[1] <= loop.last:
            return None  # it comes from outside of the loop
        if any(not isinstance(node.spec, ScalarSpec) for node in graph.nodes):
            self._pieces.setdefault(code, dict)[loop.head] = None
        pieces = self._pieces.setdefault(code, dict).setdefault(loop.head, set())
        if pieces is None:
            return None
        pieces.add(started[1])
        return loop if behind in pieces else None


def _loop_around(code: types.CodeType, at: int, depth: int) -> Loop | None:
    """The innermost loop around an instruction, if it is one that `PlainLoops` knows about."""
    view = view_of(code)
    instructions = view.instructions
    ends: dict[int, int] = {}
    for ins in instructions:
        if 0 <= ins.target <= ins.index:
            ends[ins.target] = ins.index
    around = [(last - head, head, last) for head, last in ends.items() if head <= at <= last]
    if not around:
        return None
    _, head, last = min(around)
    first = instructions[head]
    if first.name != "FOR_ITER" or first.target != last + 1:
        return None
    body = instructions[head + 1:last]
    if any(ins.target >= 0 or ins.name in _NEVER or ins.handler is not first.handler for ins in body):
        return None
    grown = sum(view.bytecode[ins.item].stack_effect(jump=False) for ins in instructions[head:at])
    return Loop(head, last, first.target + _AT_EXIT, depth - grown - 1)
