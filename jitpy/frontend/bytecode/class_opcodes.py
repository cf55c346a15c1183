"""Names in the body of a class statement: those of its namespace come first."""

from __future__ import annotations

from typing import Any

from ..breaks import GraphBreak
from ..interpreter.interpreter import Executor, Frame, TracedException, opcode
from ..interpreter.subscripts import contains, delete_item, get_item, set_item
from ..values.base import ConstValue, DictValue, Value, const
from .stack_opcodes import load_deref, load_global


def _namespace(frame: Frame) -> Value:
    if frame.namespace is None:
        raise GraphBreak("frame_access", frame.code.co_name)
    return frame.namespace


def _look_up(ex: Executor, namespace: Value, name: str) -> Value | None:
    """What a class's namespace has under a name, or None."""
    if isinstance(namespace, DictValue) and namespace.cls is dict:
        return ex.world.dict_get(namespace, name)
    try:
        return ex.finish_sync(get_item(ex, namespace, const(name)))
    except TracedException as error:
        if issubclass(error.value.cls, KeyError):
            return None
        raise


@opcode("LOAD_NAME")
def _load_name(ex: Executor, frame: Frame, ins: Any) -> None:
    found = _look_up(ex, _namespace(frame), ins.arg)
    frame.stack.append(found if found is not None else load_global(ex, frame, ins.arg))


@opcode("STORE_NAME")
def _store_name(ex: Executor, frame: Frame, ins: Any) -> None:
    ex.finish_sync(set_item(ex, _namespace(frame), const(ins.arg), frame.stack.pop()))


@opcode("DELETE_NAME")
def _delete_name(ex: Executor, frame: Frame, ins: Any) -> None:
    namespace = _namespace(frame)
    if _look_up(ex, namespace, ins.arg) is None:
        raise ex.throw(NameError, f"name {ins.arg!r} is not defined")
    ex.finish_sync(delete_item(ex, namespace, const(ins.arg)))


@opcode("LOAD_CLASSDEREF")
def _load_classderef(ex: Executor, frame: Frame, ins: Any) -> None:
    found = _look_up(ex, _namespace(frame), ins.arg.name)
    if found is not None:
        frame.stack.append(found)
    else:
        load_deref(ex, frame, ins)


@opcode("LOAD_LOCALS")
def _load_locals(ex: Executor, frame: Frame, ins: Any) -> None:
    frame.stack.append(_namespace(frame))


@opcode("LOAD_FROM_DICT_OR_DEREF")
def _load_from_dict_or_deref(ex: Executor, frame: Frame, ins: Any) -> None:
    found = _look_up(ex, frame.stack.pop(), ins.arg.name)
    if found is not None:
        frame.stack.append(found)
    else:
        load_deref(ex, frame, ins)


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def _load_from_dict_or_globals(ex: Executor, frame: Frame, ins: Any) -> None:
    found = _look_up(ex, frame.stack.pop(), ins.arg)
    frame.stack.append(found if found is not None else load_global(ex, frame, ins.arg))


@opcode("SETUP_ANNOTATIONS")
def _setup_annotations(ex: Executor, frame: Frame, ins: Any) -> None:
    namespace, name = _namespace(frame), const("__annotations__")
    held = contains(ex, namespace, name)
    if isinstance(held, ConstValue) and not held.value:
        ex.finish_sync(set_item(ex, namespace, name, DictValue()))
