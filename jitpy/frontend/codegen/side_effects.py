"""Replays the changes of objects that exist, in the order in which the program made the first of each."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

from ..models.builtins.live_iterators import advance
from ..values import (
    CellValue,
    ClassWrites,
    DictValue,
    ListValue,
    Missing,
    ModelledValue,
    ObjectValue,
    SetValue,
    TensorValue,
    Value,
    WrapperValue,
)
from .builders import fill_modelled
from .code_writer import later
from .frame_code import Emitter


def replay(emitter: Emitter) -> None:
    """Write every change of existing objects back, in the order in which they were first changed: iterators first,
    which have gone on before what they go over was changed."""
    for iterator, steps in itertools.groupby(emitter.context.steps):
        emitter.run(advance, iterator, later(emitter.const, len(list(steps))))
    for value in emitter.context.dirty:
        if value.source is None:
            continue
        for kind in type(value).__mro__:
            if kind in _REPLAYS:
                _REPLAYS[kind](emitter, value)
    emitter.write_afterwards()


#: kind -> what writes its changes back; those of the kinds that it derives from come behind
_REPLAYS: dict[type, Callable[[Emitter, Any], None]] = {}


def replays(kind: type) -> Callable[[Any], Any]:
    """Register what writes the changes of Values of one kind back."""

    def register(function: Any) -> Any:
        _REPLAYS[kind] = function
        return function

    return register


@replays(CellValue)
def _replay_cell(emitter: Emitter, value: CellValue) -> None:
    if value.held is not None:
        emitter.load(value.held)
    emitter.load(value)
    emitter.emit("DELETE_ATTR" if value.held is None else "STORE_ATTR", "cell_contents")


@replays(TensorValue)
def _replay_tensor(emitter: Emitter, value: TensorValue) -> None:
    if value.data is not None:
        emitter.set_attribute(value, "data", value.data)
    if value.flag is not None:
        emitter.set_attribute(value, "requires_grad", later(emitter.const, value.flag))
    if value.grad_assigned and value.grad is not None:
        emitter.set_attribute(value, "grad", value.grad)


@replays(ObjectValue)
@replays(WrapperValue)
def _replay_slots(emitter: Emitter, value: ObjectValue | WrapperValue) -> None:
    for descriptor in value.dirty_slots or ():
        new = value.slots[descriptor]  # type: ignore[index]
        if isinstance(new, Missing):
            emitter.run(descriptor.__delete__, value)
        else:
            emitter.run(descriptor.__set__, value, new)


@replays(SetValue)
def _replay_set(emitter: Emitter, value: SetValue) -> None:
    for method, kind, items in value.log:
        _replay_set_method(emitter, value, method, kind, items)


@replays(ListValue)
def _replay_list(emitter: Emitter, value: ListValue) -> None:
    if value.dirty or value.unread is None and len(value.log) > len(value.items):
        emitter.run(list.__setitem__, value, lambda: emitter.const(slice(None)),
                     later(emitter.load_list, value.items))
    else:
        _replay_calls(emitter, value, value.log, lambda method: getattr(list, method))


@replays(ModelledValue)
def _replay_modelled(emitter: Emitter, value: ModelledValue) -> None:
    lists = [hidden for hidden in value.hidden.values() if hidden.base is list and hidden.owner is value]
    if value.dirty or any(hidden.dirty for hidden in lists):
        fill_modelled(emitter, value)
    else:
        for hidden in lists:
            _replay_calls(emitter, value, hidden.log, value.body.changes.__getitem__)


def _replay_calls(emitter: Emitter, target: Value, log: list[Any], method_of: Callable[[str], Any]) -> None:
    """Call the methods of list that changed a list; items appended one after the other at once."""
    appended: list[Any] = []
    for i, (method, args) in enumerate(log):
        if method in ("append", "extend"):
            appended += args if method == "append" else args[0]
            if i + 1 < len(log) and log[i + 1][0] in ("append", "extend"):
                continue
            method, args = ("append", appended) if len(appended) == 1 else ("extend", (list(appended),))
            appended = []
        emitter.run(method_of(method), target, *(later(_load_argument, emitter, a) for a in args))


def _load_argument(emitter: Emitter, arg: Any) -> None:
    """Push an argument of a logged call: a position, a list of items, or an item."""
    if isinstance(arg, int):
        emitter.const(arg)
    elif isinstance(arg, list):
        emitter.load_list(arg)
    else:
        emitter.load(emitter.context.force(arg))


@replays(DictValue)
def _replay_dict(emitter: Emitter, value: DictValue) -> None:
    setter: Any = None
    deleter: Any = None
    if value.cls is not dict:
        base = collections.OrderedDict if issubclass(value.cls, collections.OrderedDict) else dict
        setter, deleter = base.__setitem__, base.__delitem__
    for key, item in value.log:
        key_value = emitter.context.dict_key_value(value, key)
        if not isinstance(item, Missing):
            emitter.set_item(value, setter, key_value, item)
        elif deleter is None:
            emitter.load(value)
            emitter.load(key_value)
            emitter.emit("DELETE_SUBSCR")
        else:
            emitter.run(deleter, value, key_value)


@replays(ClassWrites)
def _replay_class(emitter: Emitter, value: ClassWrites) -> None:
    for name, item in value.items.items():
        if isinstance(item, Missing):
            emitter.run(type.__delattr__, later(emitter.const_object, value.obj), later(emitter.const, name))
        else:
            emitter.run(type.__setattr__, later(emitter.const_object, value.obj), later(emitter.const, name), item)


def _replay_set_method(emitter: Emitter, value: SetValue, method: str, kind: type, items: list[Value]) -> None:
    """One change of a set: `kind` is the type of the method's argument, NoneType for an element."""
    if method == "clear":
        loads: list[Callable[[], None]] = []
    elif kind is type(None):
        loads = [items[0]]
    elif kind is list:
        loads = [later(emitter.load_list, items)]
    else:
        loads = [lambda: emitter.call(dict.fromkeys if kind is dict else kind, later(emitter.load_list, items))]
    emitter.run(getattr(set, method), value, *loads)
