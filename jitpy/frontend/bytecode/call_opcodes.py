"""CALL and its relatives."""

from __future__ import annotations

from typing import Any

from ..interpreter.frame import Frame
from ..models.builtins.iteration import is_iterable, iterate
from ..values import NULL, DictValue, Interpreter, Value
from .container_opcodes import is_no_sequence, merge_mapping
from .handlers import opcode
from .stack_opcodes import push


@opcode("KW_NAMES")
def _kw_names(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.kw_names = ins.arg
    interp.context.writes += 1


@opcode("CALL", pops=lambda count: count + 2)
def _call(interp: Interpreter, frame: Frame, ins: Any) -> None:
    names, frame.kw_names = frame.kw_names, ()
    _do_call(interp, frame, ins.arg, names)


@opcode("CALL_KW", pops=lambda count: count + 3)
def _call_kw(interp: Interpreter, frame: Frame, ins: Any) -> None:
    names: Any = frame.stack.pop()
    _do_call(interp, frame, ins.arg, tuple(n.value for n in names.items))


def _do_call(interp: Interpreter, frame: Frame, count: int, names: tuple[str, ...]) -> None:
    values = frame.popn(count)
    fn = frame.stack.pop()
    other = frame.stack.pop()
    # 3.11 and 3.12: [NULL, callable] or [method, self]; 3.13: [callable, NULL] or [method, self]
    if other is NULL:
        pass
    elif fn is NULL:
        fn = other
    else:
        values.insert(0, fn)
        fn = other
    positional = values[: len(values) - len(names)]
    keywords = dict(zip(names, values[len(values) - len(names):], strict=True))
    push(interp, frame, interp.call(fn, positional, keywords))


@opcode("CALL_FUNCTION_EX", pops=lambda flags: 3 + (int(flags) & 1))
def _call_function_ex(interp: Interpreter, frame: Frame, ins: Any) -> None:
    flags = int(ins.arg)
    keywords: dict[str, Value] = {}
    if flags & 1:
        mapping = frame.stack.pop()
        if not issubclass(mapping.cls, dict):
            given, called = mapping, frame.stack[-3 if frame.kw_null_last else -2]
            mapping = DictValue()
            merge_mapping(interp, mapping, given,
                          lambda: f"{called.name_of_call()} argument after ** must be a "
                                                      f"mapping, not {given.cls.__name__}")
        for key, value in interp.context.dict_items(mapping):
            if not isinstance(key, str):
                raise interp.throw(TypeError, "keywords must be strings")
            keywords[key] = value
    starred = frame.stack.pop()
    if not is_iterable(interp, starred) and is_no_sequence(interp, starred):
        called = frame.stack[-2 if frame.kw_null_last else -1].name_of_call()
        raise interp.throw(TypeError, f"{called} argument after * must be an iterable, not {starred.cls.__name__}")
    positional = iterate(interp, starred, hinted=True)
    fn = frame.stack.pop()
    other = frame.stack.pop()
    if fn is NULL:
        fn = other
    elif other is not NULL:
        frame.stack.append(other)  # 3.11 and 3.12 may leave no NULL below
    push(interp, frame, interp.call(fn, positional, keywords))


