"""`copy.copy`, `copy.deepcopy` and `pickle.dumps`, and what they ask of classes."""

from __future__ import annotations

import copy
import copyreg
import pickle
import types
from typing import Any

from ...breaks import GraphBreak
from ...guards.guard_set import MISSING
from ...interpreter.callees import Args, Kwargs, builtin
from ...interpreter.calls import inline_library
from ...interpreter.constant_folding import fold_deep
from ...values import (
    NONE,
    DictValue,
    Interpreter,
    ListValue,
    NotConstant,
    ObjectValue,
    Value,
    const,
    unsupported,
)
from ..tensors.torch_objects import deep_copy


@builtin(copy.copy)
def copy_copy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    if value.is_atomic or value.cls is tuple:
        return value
    if value.cls in (list, dict, set):
        return interp.call(interp.getattr(value, "copy"), [], {})
    if value.tensor is not None:
        raise unsupported(value, "copy.copy()")
    return inline_library(interp, copy.copy, args, kwargs)


_PLAIN = (type(None), bool, int, float, str, bytes)


def _plain(interp: Interpreter, value: Value) -> Any:
    if value.cls not in _PLAIN:
        raise NotConstant
    return value.folded(interp)


@builtin(pickle.dumps)
def pickle_dumps(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """The pickle of plain data, such as the arguments by which a cache finds its results. Data with equal texts are
    left to Python: a pickle shows whether these are one object."""
    try:
        data = args[0].unpacked(interp, lambda item: _plain(interp, item)) if args else [NotImplemented]
        items = [_plain(interp, args[0])] if data is None else [*data, *data.values()] if type(data) is dict else data
    except NotConstant:
        return NotImplemented
    texts = [item for item in items if type(item) in (str, bytes)]
    if any(type(item) not in _PLAIN for item in items) or len({*texts}) < len(texts):
        return NotImplemented
    return fold_deep(interp, pickle.dumps, args, kwargs) or NotImplemented


class MemoValue(DictValue):
    """The memo of a deep copy that a `__deepcopy__` is given: it may only hand it on."""

    __slots__ = ("copies",)

    def __init__(self, copies: dict[int, Value]) -> None:
        super().__init__()
        self.copies = copies


@builtin(copy.deepcopy)
def copy_deepcopy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    memo = args[1] if len(args) > 1 else kwargs.get("memo", NONE)
    if isinstance(memo, MemoValue):
        return _deepcopy(interp, args[0], memo.copies)
    if memo.literal is not None:
        raise GraphBreak("unsupported_call", "copy.deepcopy with a memo of one's own")
    return _deepcopy(interp, args[0], {})


def _deepcopy(interp: Interpreter, value: Value, memo: dict[int, Value]) -> Value:
    if value.is_atomic:
        return value
    if id(value) in memo:
        return memo[id(value)]
    made = value.deep_copied(interp, memo, lambda part: _deepcopy(interp, interp.context.force(part), memo))
    if made is not None:
        return made
    if value.tensor is not None:
        if value.traced.hides_history:
            raise unsupported(value, "copy.deepcopy() of a view that was made under no_grad")
        return deep_copy(interp, value, memo)
    if type(value) is ObjectValue:
        return _copy_instance(interp, value, memo)
    raise unsupported(value, "copy.deepcopy()")


def _copy_instance(interp: Interpreter, value: ObjectValue, memo: dict[int, Value]) -> Value:
    if _is_registered(interp, value.cls):
        raise unsupported(value, "copy.deepcopy(), for which there is a function of its own,")
    if _copies_plainly(interp, value.cls):
        made = ObjectValue(value.cls)
        memo[id(value)] = made
        source = value.instance_dict(interp)
        target = made.instance_dict(interp)
        assert source is not None and target is not None
        getter, setter = (interp.context.class_lookup(value.cls, name) for name in ("__getstate__", "__setstate__"))
        state: Value = source
        if isinstance(getter, types.FunctionType):
            state = interp.call_sync(interp.context.const_object(getter), [value])
        if state.cls is not dict:
            raise unsupported(value, "copy.deepcopy(), with a __getstate__ that returns no dict,")
        copied = target if setter is MISSING else DictValue()
        for key, item in interp.context.dict_items(state):
            interp.context.dict_set(copied, key, _deepcopy(interp, item, memo),
                                    interp.context.dict_key_value(state, key))
        if setter is not MISSING:
            interp.call_sync(interp.context.const_object(setter), [made, copied])
        return made
    hook = interp.context.class_lookup(value.cls, "__deepcopy__")
    if not isinstance(hook, types.FunctionType):
        raise unsupported(value, "copy.deepcopy()")
    memo[id(value)] = result = interp.call_sync(interp.context.const_object(hook), [value, MemoValue(memo)])
    return result


def _is_registered(interp: Interpreter, cls: type) -> bool:
    """Whether a program told `copyreg` or `copy` how instances are copied."""
    key = interp.context.const_object(cls).key(interp)
    tables = (copy._deepcopy_dispatch, copyreg.dispatch_table)  # type: ignore[attr-defined]
    return any([interp.context.dict_get(interp.context.globals_of(table, "copyreg.dispatch_table"), key) is not None
                for table in tables])


def _copies_plainly(interp: Interpreter, cls: type) -> bool:
    """Whether copying an instance means copying its `__dict__`, or what `__getstate__` and `__setstate__` in Python
    make of it."""

    def lookup(cls: type, name: str) -> Any:
        found = interp.context.class_lookup(cls, name)
        return MISSING if name.endswith("state__") and isinstance(found, types.FunctionType) else found

    slots = any(isinstance(v, types.MemberDescriptorType) for c in cls.__mro__ for v in c.__dict__.values())
    return (cls.__dictoffset__ != 0 and not slots and lookup(cls, "__deepcopy__") is MISSING
            and lookup(cls, "__setstate__") is MISSING and lookup(cls, "__reduce__") is object.__reduce__
            and lookup(cls, "__reduce_ex__") is object.__reduce_ex__
            and lookup(cls, "__getstate__") in (MISSING, getattr(object, "__getstate__", MISSING)))


@builtin(copyreg._slotnames)  # type: ignore[attr-defined]
def slot_names(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """The slots of a class that are copied; the library keeps them in the class."""
    value = args[0]
    if not isinstance(value.opaque, type):
        raise unsupported(value, "copyreg._slotnames()")
    cls = interp.context.pin(value)
    for base in cls.__mro__:
        interp.context.class_lookup(base, "__slots__")
    return ListValue([const(name) for name in copyreg._slotnames(cls)])  # type: ignore[attr-defined]
