"""Branches that depend on data where one way only raises: `assert (x > 0).all()`, checks of arguments.

The trace takes the other way, and the graph checks when it runs that this was right. A call for which it was not runs
as plain Python, which raises the program's own exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...breaks import GraphBreak
from ...capture.computed_sizes import require_truth
from ...capture.tensor_flags import truth_of_flag
from ...interpreter.operators import truth_or_number
from ...values import Value

if TYPE_CHECKING:
    from ...interpreter.frame import Frame
    from ...values import Interpreter

#: How many instructions a way to an exception may take: a message is put together.
_LONGEST = 200

_LEAVES = ("RETURN_", "YIELD_", "FOR_ITER", "SEND", "JUMP_", "POP_JUMP_BACKWARD")


def branch(interp: Interpreter, frame: Frame, ins: Any, value: Value) -> bool:
    """The truth of what a conditional jump looks at. Breaks the graph where data decides between two ways that a
    program may take; where one of them surely raises, the other one is taken, and the graph checks it."""
    known = truth_or_number(interp, value)
    if isinstance(known, bool):
        return known
    jumps_if = "IF_TRUE" in ins.name
    raises_on = [truth for truth in (False, True)
                 if surely_raises(frame, ins.target if truth is jumps_if else frame.ip)]
    if len(raises_on) != 1:
        truth = truth_of_flag(interp, known)
        if truth is not None:
            return truth
        raise GraphBreak("data_dependent_branch", "")
    expected = not raises_on[0]
    what = f"a branch that does not raise, {interp.loc()}"
    with interp.recording(what):
        holds = require_truth(interp.builder, known, expected, what)
    return expected if holds else not expected


def surely_raises(frame: Frame, ip: int) -> bool:
    """Whether the instructions from `ip` on leave the function by an exception, soon, and without a loop. One that the
    function itself handles is a way like any other."""
    waiting = [ip]
    seen = 0
    while waiting:
        at = waiting.pop()
        while True:
            seen += 1
            if seen > _LONGEST or at >= len(frame.instructions):
                return False
            ins = frame.instructions[at]
            at += 1
            if ins.name == "RAISE_VARARGS":
                if _handles(frame, ins):
                    return False
                break
            if ins.name.startswith(("POP_JUMP_IF", "POP_JUMP_FORWARD_IF")):
                if ins.target < at:
                    return False
                waiting.append(ins.target)
            elif ins.name == "JUMP_FORWARD":
                at = ins.target
            elif ins.name.startswith(_LEAVES):
                return False
    return True


def _handles(frame: Frame, ins: Any) -> bool:
    """Whether the function may go on after an exception: not where its handler is the end of a `with`, say."""
    if ins.handler is None:
        return False
    following = frame.instructions[ins.handler.target:ins.handler.target + 2]
    return not any(after.name in ("WITH_EXCEPT_START", "CALL_INTRINSIC_1") for after in following)
