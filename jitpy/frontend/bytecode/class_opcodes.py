"""Names in the body of a class statement: those of its namespace come first."""

from __future__ import annotations

from typing import Any

from ..breaks import GraphBreak
from ..interpreter.frame import Frame, TracedException
from ..values import ConstValue, DictValue, Interpreter, Value, const
from .handlers import opcode
from .stack_opcodes import load_deref, load_global


def _namespace(frame: Frame) -> Value:
    if frame.namespace is None:
        raise GraphBreak("frame_access", frame.code.co_name)
    return frame.namespace


def _look_up(interp: Interpreter, namespace: Value, name: str) -> Value | None:
    """What a class's namespace has under a name, or None."""
    if isinstance(namespace, DictValue) and namespace.cls is dict:
        return interp.context.dict_get(namespace, name)
    try:
        return interp.finish_sync(interp.getitem(namespace, const(name)))
    except TracedException as error:
        if issubclass(error.value.cls, KeyError):
            return None
        raise


@opcode("LOAD_NAME")
def _load_name(interp: Interpreter, frame: Frame, ins: Any) -> None:
    found = _look_up(interp, _namespace(frame), ins.arg)
    frame.stack.append(found if found is not None else load_global(interp, frame, ins.arg))


@opcode("STORE_NAME")
def _store_name(interp: Interpreter, frame: Frame, ins: Any) -> None:
    interp.finish_sync(interp.setitem(_namespace(frame), const(ins.arg), frame.stack.pop()))


@opcode("DELETE_NAME")
def _delete_name(interp: Interpreter, frame: Frame, ins: Any) -> None:
    namespace = _namespace(frame)
    if _look_up(interp, namespace, ins.arg) is None:
        raise interp.throw(NameError, f"name {ins.arg!r} is not defined")
    interp.finish_sync(interp.delitem(namespace, const(ins.arg)))


@opcode("LOAD_CLASSDEREF")
def _load_classderef(interp: Interpreter, frame: Frame, ins: Any) -> None:
    found = _look_up(interp, _namespace(frame), ins.arg.name)
    if found is not None:
        frame.stack.append(found)
    else:
        load_deref(interp, frame, ins)


@opcode("LOAD_LOCALS")
def _load_locals(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.stack.append(_namespace(frame))


@opcode("LOAD_FROM_DICT_OR_DEREF")
def _load_from_dict_or_deref(interp: Interpreter, frame: Frame, ins: Any) -> None:
    found = _look_up(interp, frame.stack.pop(), ins.arg.name)
    if found is not None:
        frame.stack.append(found)
    else:
        load_deref(interp, frame, ins)


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def _load_from_dict_or_globals(interp: Interpreter, frame: Frame, ins: Any) -> None:
    found = _look_up(interp, frame.stack.pop(), ins.arg)
    frame.stack.append(found if found is not None else load_global(interp, frame, ins.arg))


@opcode("SETUP_ANNOTATIONS")
def _setup_annotations(interp: Interpreter, frame: Frame, ins: Any) -> None:
    namespace, name = _namespace(frame), const("__annotations__")
    held = interp.contains(namespace, name)
    if isinstance(held, ConstValue) and not held.value:
        interp.finish_sync(interp.setitem(namespace, name, DictValue()))
