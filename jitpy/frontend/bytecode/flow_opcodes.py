"""Jumps, loops, returns, generators' yields."""

from __future__ import annotations

from typing import Any

from ..interpreter.frame import PUSHED, Frame, TracedException
from ..models.builtins.generators import delegate_returned, leave_delegate, resume, suspend
from ..models.builtins.iteration import get_iter, next_value
from ..models.tensors.assumptions import branch
from ..values import NONE, Exhausted, Interpreter, Value
from .handlers import DECLARED_BREAKS, opcode
from .stack_opcodes import constant, push


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.ip = ins.target


@opcode("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", pops=1)
def _pop_jump_if_true(interp: Interpreter, frame: Frame, ins: Any) -> None:
    if branch(interp, frame, ins, frame.stack.pop()):
        frame.ip = ins.target


@opcode("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", pops=1)
def _pop_jump_if_false(interp: Interpreter, frame: Frame, ins: Any) -> None:
    if not branch(interp, frame, ins, frame.stack.pop()):
        frame.ip = ins.target


@opcode("POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE")
def _pop_jump_if_none(interp: Interpreter, frame: Frame, ins: Any) -> None:
    if frame.stack.pop().literal is None:
        frame.ip = ins.target


@opcode("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE")
def _pop_jump_if_not_none(interp: Interpreter, frame: Frame, ins: Any) -> None:
    if frame.stack.pop().literal is not None:
        frame.ip = ins.target


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", pops=1)
def _jump_or_pop(interp: Interpreter, frame: Frame, ins: Any) -> None:
    if interp.truth(frame.stack[-1]) == (ins.name == "JUMP_IF_TRUE_OR_POP"):
        frame.ip = ins.target
    else:
        frame.stack.pop()


@opcode("RETURN_VALUE")
def _return_value(interp: Interpreter, frame: Frame, ins: Any) -> None:
    interp.leave(frame.stack.pop())


@opcode("RETURN_CONST")
def _return_const(interp: Interpreter, frame: Frame, ins: Any) -> None:
    interp.leave(constant(interp, ins.arg))


@opcode("GET_ITER", pops=1)
@opcode("GET_YIELD_FROM_ITER")
def _get_iter(interp: Interpreter, frame: Frame, ins: Any) -> None:
    push(interp, frame, get_iter(interp, frame.stack.pop()))


@opcode("FOR_ITER", pops=1)
def _for_iter(interp: Interpreter, frame: Frame, ins: Any) -> None:
    iterator = frame.stack[-1]
    try:
        if iterator.is_generator:
            inner = iterator.frame
            resume(interp, iterator)
            inner.finish = _for_end
            return
        result = next_value(interp, iterator)
        if result is PUSHED and interp.frames[-1].generator is None:
            result = _step_or_exhausted(interp)
        push(interp, frame, result)
    except Exhausted:
        _end_loop(frame, ins)


def _step_or_exhausted(interp: Interpreter) -> Value:
    """Run a `__next__` in Python to its end; its StopIteration ends the loop."""
    try:
        return interp.finish_sync(PUSHED)
    except TracedException as error:
        if issubclass(error.value.cls, StopIteration):
            raise Exhausted from None
        raise


def _end_loop(frame: Frame, ins: Any) -> None:
    """Leave a for loop. Until 3.11 the iterator is popped here; since 3.12 END_FOR pops what FOR_ITER leaves."""
    target = frame.instructions[ins.target]
    frame.ip = ins.target
    if frame.for_pops_two and target.name == "END_FOR":
        frame.ip += 1
        frame.stack.pop()
    elif target.name == "END_FOR":
        frame.ip += 1  # 3.13: END_FOR is skipped, POP_TOP that follows takes the iterator
    else:
        frame.stack.pop()


def _for_end(interp: Interpreter, value: Value) -> None:
    """A generator that a for loop runs has returned."""
    frame = interp.frames[-1]
    _end_loop(frame, frame.current)


# -- generators ---------------------------------------------------------------------------------------------


@opcode("RETURN_GENERATOR")
def _return_generator(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.stack.append(NONE)  # the frame already belongs to its GeneratorValue; POP_TOP follows


@opcode("YIELD_VALUE")
def _yield_value(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    suspend(interp, frame)
    interp.result = value
    if frame is not interp._sync_root:
        interp.frames[-1].stack.append(value)


@opcode("SEND")
def _send(interp: Interpreter, frame: Frame, ins: Any) -> None:
    sent = frame.stack.pop()
    receiver = frame.stack[-1]
    if receiver.is_generator:
        inner = receiver.frame
        try:
            resume(interp, receiver, sent)
        except Exhausted:
            leave_delegate(frame, ins, NONE)
            return
        inner.finish = delegate_returned
        return
    try:
        if sent.literal is None:
            push(interp, frame, interp.finish_sync(next_value(interp, receiver)))
        else:

            push(interp, frame, interp.call_sync(interp.finish_sync(interp.getattr(receiver, "send")), [sent]))
    except Exhausted as end:
        leave_delegate(frame, ins, end.value or NONE)
    except TracedException as error:  # of a `__next__` or `send` in Python
        if not issubclass(error.value.cls, StopIteration):
            raise
        leave_delegate(frame, ins, error.value.args[0] if error.value.args else NONE)


@opcode("END_SEND")
def _end_send_opcode(interp: Interpreter, frame: Frame, ins: Any) -> None:
    del frame.stack[-2]


@opcode("CLEANUP_THROW")
def _cleanup_throw(interp: Interpreter, frame: Frame, ins: Any) -> None:
    """An exception thrown at a `yield from`: StopIteration ends it, anything else goes on."""
    exception = frame.stack[-1]
    if not issubclass(exception.cls, StopIteration):
        raise TracedException(exception)
    del frame.stack[-3:]
    frame.stack += [NONE, exception.args[0] if exception.args else NONE]


for _name in ("GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR", "ASYNC_GEN_WRAP", "GET_AWAITABLE"):
    DECLARED_BREAKS[_name] = "async"
for _name in ("CHECK_EG_MATCH", "PREP_RERAISE_STAR"):
    DECLARED_BREAKS[_name] = "opcode"
for _name in ("DELETE_NAME", "IMPORT_STAR", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS",
              "LOAD_LOCALS", "LOAD_NAME", "PRINT_EXPR", "SETUP_ANNOTATIONS", "STORE_NAME"):
    DECLARED_BREAKS[_name] = "frame_access"
