"""Building and unpacking containers, strings, pattern matching."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from ..breaks import GraphBreak
from ..guards.guard_set import MISSING
from ..interpreter.frame import Frame, TracedException
from ..models.builtins import (
    builtin_functions as functions,
)
from ..models.builtins import (
    instance_checks,
)
from ..models.builtins.iteration import each, is_iterable
from ..models.builtins.mapping_methods import dict_update
from ..models.builtins.sequence_methods import list_extend
from ..models.builtins.sets import make_set, set_add, set_update
from ..models.builtins.symbolic_text import joined, text
from ..values import NONE, DictValue, Interpreter, ListValue, PyValue, SliceValue, TupleValue, Value, const
from .handlers import opcode
from .stack_opcodes import operation

opcode("BUILD_TUPLE")(lambda interp, frame, ins: frame.push(TupleValue(frame.popn(ins.arg))))
opcode("BUILD_LIST")(lambda interp, frame, ins: frame.push(ListValue(frame.popn(ins.arg))))
operation("BUILD_SET", pops=lambda count: count)(lambda interp, _, *items: make_set(interp, [TupleValue([*items])], {}))
operation("BUILD_MAP", pops=lambda count: 2 * count)(
    lambda interp, _, *parts: _make_dict(interp, parts[::2], parts[1::2]))


def _make_dict(interp: Interpreter, keys: Iterable[Value], values: Iterable[Value]) -> DictValue:
    made = DictValue()
    for key, value in zip(keys, values, strict=True):
        interp.context.dict_set(made, key.key(interp), value, key)
    return made


operation("BUILD_CONST_KEY_MAP", pops=lambda count: count + 1)(
    lambda interp, _, *parts: _make_dict(interp, parts[-1].items, parts[:-1]))
opcode("BUILD_SLICE")(lambda interp, frame, ins: frame.push(SliceValue(*[*frame.popn(int(ins.arg)), NONE][:3])))


def _with_target(depth: int) -> int:
    """One entry, and those down to the container that gets it."""
    return depth + 1


def _need(target: Value) -> None:
    """Behind a break the container that a comprehension fills may be one that is not modelled: a set of tensors."""
    if target.base is None:
        raise GraphBreak("unsupported_value", f"items added to {target.describe()}")


@opcode("LIST_APPEND", pops=_with_target)
def _list_append(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    target = frame.stack[-ins.arg]
    _need(target)
    target.change(interp.context, "append", value)


@opcode("SET_ADD", pops=_with_target)
def _set_add(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    target = frame.stack[-ins.arg]
    _need(target)
    set_add(interp, [target, value], {})


@opcode("MAP_ADD", pops=lambda depth: depth + 2)
def _map_add(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    key = frame.stack.pop()
    target = frame.stack[-ins.arg]
    _need(target)
    interp.context.dict_set(target, key.key(interp), value, key)


@opcode("LIST_EXTEND", pops=_with_target)
def _list_extend(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    target = frame.stack[-ins.arg]
    _need(target)
    if not is_iterable(interp, value):
        raise interp.throw(TypeError, f"Value after * must be an iterable, not {value.cls.__name__}"
                       if is_no_sequence(interp, value) else f"{value.cls.__name__!r} object is not iterable")
    list_extend(interp, target, value)


def is_no_sequence(interp: Interpreter, value: Value) -> bool:
    """Whether nothing in a value's class speaks of iteration, `__iter__ = None` neither."""
    return not interp.context.has_slot(value.cls, "__iter__", "__getitem__")


@opcode("SET_UPDATE", pops=_with_target)
def _set_update(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    set_update(interp, [frame.stack[-ins.arg], value], {})


@opcode("DICT_UPDATE", pops=_with_target)
def _dict_update(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    merge_mapping(interp, frame.stack[-ins.arg], value, lambda: f"{value.cls.__name__!r} object is not a mapping")


def merge_mapping(interp: Interpreter, target: Value, value: Value, refusal: Callable[[], str]) -> None:
    """Put the items of a mapping into a dict; an AttributeError on the way is taken to mean that it is none."""

    if issubclass(value.cls, dict) or value.is_instance and interp.hasattr(value, "keys"):
        try:
            dict_update(interp, [target, value], {})
            return
        except TracedException as raised:
            if not issubclass(raised.value.cls, AttributeError):
                raise
    raise interp.throw(TypeError, refusal())


@opcode("DICT_MERGE")
def _dict_merge(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    target = frame.stack[-ins.arg]
    _need(target)

    def called() -> str:
        return frame.stack[-ins.arg - (3 if frame.kw_null_last else 2)].name_of_call()

    merged = DictValue()
    merge_mapping(interp, merged, value,
                  lambda: f"{called()} argument after ** must be a mapping, not {value.cls.__name__}")
    for key, item in interp.context.dict_items(merged):
        if interp.context.dict_get(target, key) is not None:
            raise interp.throw(TypeError, f"{called()} got multiple values for keyword argument {key!r}")
        interp.context.dict_set(target, key, item, interp.context.dict_key_value(merged, key))


operation("LIST_TO_TUPLE", pops=1)(lambda interp, _, value: TupleValue(list(value.items)))


@opcode("UNPACK_SEQUENCE", pops=1)
def _unpack_sequence(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    items = list(itertools.islice(each(interp, _unpackable(interp, value)), ins.arg + 1))  # no more are asked for
    if len(items) != ins.arg:
        if len(items) < ins.arg:
            raise interp.throw(ValueError, f"not enough values to unpack (expected {ins.arg}, got {len(items)})")
        raise interp.throw(ValueError, f"too many values to unpack (expected {ins.arg})")
    frame.stack.extend(reversed(items))


def _unpackable(interp: Interpreter, value: Value) -> Value:
    if not is_iterable(interp, value):
        raise interp.throw(TypeError, f"cannot unpack non-iterable {value.cls.__name__} object")
    return value


@opcode("UNPACK_EX", pops=1)
def _unpack_ex(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    items = list(each(interp, _unpackable(interp, value)))
    before, after = ins.arg & 0xFF, ins.arg >> 8
    if len(items) < before + after:
        raise interp.throw(ValueError, f"not enough values to unpack (expected at least {before + after}, got "
                                   f"{len(items)})")
    tail = items[len(items) - after:] if after else []
    frame.stack.extend(reversed(tail))
    frame.stack.append(ListValue(items[before: len(items) - after]))
    frame.stack.extend(reversed(items[:before]))


# -- strings ------------------------------------------------------------------------------------------------


@opcode("FORMAT_VALUE")
def _format_value(interp: Interpreter, frame: Frame, ins: Any) -> None:
    flags = _format_flags(ins.arg)
    spec = frame.stack.pop() if flags & 4 else None
    value = frame.stack.pop()
    value = _convert(interp, value, flags & 3)
    frame.stack.append(_format(interp, value, spec))


def _format_flags(arg: Any) -> int:
    if isinstance(arg, tuple):
        with_spec, conversion = arg if isinstance(arg[0], bool) else reversed(arg)
        return int(conversion) | (4 if with_spec else 0)
    return int(arg)


def _convert(interp: Interpreter, value: Value, kind: int) -> Value:
    if kind == 1:
        return interp.finish_sync(functions.builtin_str(interp, [value], {}))
    if kind == 2:
        return interp.finish_sync(functions.builtin_repr(interp, [value], {}))
    if kind == 3:
        return value.shown_as_constant(interp, ascii)
    return value


def _format(interp: Interpreter, value: Value, spec: Value | None) -> Value:
    return interp.finish_sync(functions.builtin_format(interp, [value] if spec is None else [value, spec], {}))


operation("CONVERT_VALUE", pops=1)(lambda interp, kind, value: _convert(interp, value, int(kind)))
operation("FORMAT_SIMPLE", pops=1)(lambda interp, _, value: _format(interp, value, None))
operation("FORMAT_WITH_SPEC", pops=2)(lambda interp, _, value, spec: _format(interp, value, spec))
operation("BUILD_STRING", pops=lambda count: count)(lambda interp, _, *parts: text(interp, joined, *parts))


# -- pattern matching ---------------------------------------------------------------------------------------

#: flags of classes that patterns take for sequences and mappings
_FLAGS = {"MATCH_SEQUENCE": 1 << 5, "MATCH_MAPPING": 1 << 6}


@opcode("GET_LEN", pops=1)
def _get_len(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.stack.append(interp.length(frame.stack[-1]))


@opcode("MATCH_MAPPING", "MATCH_SEQUENCE", pops=1)
def _match_kind(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.stack.append(const(bool(frame.stack[-1].cls.__flags__ & _FLAGS[ins.name])))


@opcode("MATCH_KEYS", pops=2)
def _match_keys(interp: Interpreter, frame: Frame, ins: Any) -> None:
    keys: Any = frame.stack[-1]
    subject = frame.stack[-2]
    if not issubclass(subject.cls, dict):
        raise GraphBreak("unsupported_value", "a mapping pattern")
    found: list[Any] = []
    for key in keys.items:
        value = interp.context.dict_get(subject, key.key(interp))
        if value is None:
            frame.stack.append(NONE)
            return
        found.append(value)
    frame.stack.append(TupleValue(found))


def _match_args(interp: Interpreter, cls: PyValue) -> list[str]:
    """The attributes that positional patterns of a class mean."""

    if interp.context.class_lookup(interp.context.pin(cls), "__match_args__") is MISSING:
        return []
    given = interp.finish_sync(interp.getattr(cls, "__match_args__"))
    if given.base is not tuple:
        raise interp.throw(TypeError, f"{cls.obj.__name__}.__match_args__ must be a tuple (got {given.cls.__name__})")
    names = [interp.context.force(v) for v in given.items]
    for name in names:
        if name.cls is not str:
            raise interp.throw(TypeError, f"__match_args__ elements must be strings (got {name.cls.__name__})")
    return [name.constant(interp) for name in names]


def _check_positional(interp: Interpreter, cls: type, allowed: int, given: int) -> None:
    if allowed < given:
        raise interp.throw(TypeError,
                           f"{cls.__name__}() accepts {allowed} positional sub-pattern{'s' * (allowed != 1)} "
                                  f"({given} given)")


@opcode("MATCH_CLASS", pops=3)
def _match_class(interp: Interpreter, frame: Frame, ins: Any) -> None:
    names: Any = frame.stack.pop()
    cls: Any = frame.stack.pop()
    subject = frame.stack.pop()
    if not isinstance(cls.opaque, type):
        raise interp.throw(TypeError, "called match pattern must be a class")
    if not instance_checks.is_instance(interp, subject, interp.context.pin(cls)):
        frame.stack.append(NONE)
        return
    found: list[Any] = []
    looked_up: list[str] = []
    positional = ins.arg
    if positional:
        builtin_self = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
        if cls.obj in builtin_self or issubclass(cls.obj, builtin_self) and not hasattr(cls.obj, "__match_args__"):
            found.append(subject)
            positional -= 1
        else:
            known = _match_args(interp, cls)
            _check_positional(interp, cls.obj, len(known), positional)
            looked_up, positional = known[:positional], 0
    if positional:
        _check_positional(interp, cls.obj, 1, ins.arg)
    looked_up += [name.value for name in names.items]
    for position, name in enumerate(looked_up):
        if name in looked_up[:position]:
            raise interp.throw(TypeError, f"{cls.obj.__name__}() got multiple sub-patterns for attribute {name!r}")
        try:
            found.append(interp.finish_sync(interp.getattr(subject, name)))
        except TracedException as error:
            if not issubclass(error.value.cls, AttributeError):
                raise
            frame.stack.append(NONE)
            return
    frame.stack.append(TupleValue(found))
