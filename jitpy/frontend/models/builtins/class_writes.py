"""Attributes of classes from outside that the traced program writes and deletes.

The class itself stays as it is while tracing: what is written lies in a `ClassWrites` of the world, where lookups see
it first, and compiled code writes it behind the graph. Only data is taken: functions, properties and special names
decide how the class behaves, so that writing them breaks the graph.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from ...guards.guard_set import MISSING, HeldBy
from ...interpreter.attributes import is_data_descriptor, is_property, load_class_attr
from ...interpreter.callees import builtin
from ...values import (
    CONST_TYPES,
    DELETED,
    NONE,
    ClassWrites,
    Interpreter,
    PyValue,
    TraceContext,
    Value,
    const,
    unsupported,
)
from ...values.attribute_rules import attributes_of

_HEAP_TYPE, _IMMUTABLE = 1 << 9, 1 << 8
_DESCRIPTOR_METHODS = ("__get__", "__set__", "__delete__")
#: kinds of objects whose Values have guards of their own, wherever they come from
_GUARDED = frozenset({*CONST_TYPES, torch.Tensor, torch.nn.Parameter, list, dict, tuple, set})


def store_class_attr(interp: Interpreter, value: PyValue, name: str, new: Value | None) -> Any:
    """`cls.name = new`, or `del cls.name` where `new` is None."""
    context = interp.context
    cls = context.pin(value)
    wanted = "__delattr__" if new is None else "__setattr__"
    hook = context.class_lookup(type(cls), wanted)
    if isinstance(hook, types.FunctionType):
        return interp.call(context.const_object(hook), [value, const(name), *([] if new is None else [new])], {})
    if hook is not getattr(type, wanted):
        raise unsupported(value, f".{name} = ...")
    return set_class_attr(interp, value, name, new)


def _delete_class_attr(interp: Interpreter, value: PyValue, name: str) -> Any:
    return store_class_attr(interp, value, name, None)


attributes_of(type, get=load_class_attr, set=store_class_attr, delete=_delete_class_attr)


def set_class_attr(interp: Interpreter, value: PyValue, name: str, new: Value | None) -> Any:
    """As `store_class_attr`, without hooks of the metaclass."""
    context = interp.context
    cls = context.pin(value)
    on_meta = context.class_lookup(type(cls), name)
    if on_meta is not MISSING and is_data_descriptor(interp, on_meta):
        if new is None or not is_property(interp, on_meta, "__set__") or on_meta.fset is None:
            raise unsupported(value, f".{name} = ...")
        return interp.call(context.const_object(on_meta.fset), [value, new], {})
    what = f"del .{name}" if new is None else f".{name} = ..."
    old = next((owner.__dict__[name] for owner in cls.__mro__ if name in owner.__dict__), None)
    special = name.startswith("__") and name.endswith("__")
    fixed = special or not cls.__flags__ & _HEAP_TYPE or cls.__flags__ & _IMMUTABLE
    kinds = (type(old),) if new is None else (type(old), new.cls)
    if fixed or any(context.has_slot(kind, *_DESCRIPTOR_METHODS) for kind in kinds):
        raise unsupported(value, what)
    writes = context.class_writes.get(cls)
    held = name in cls.__dict__ if writes is None or name not in writes.items else writes.items[name] is not DELETED
    if new is None:
        context.class_lookup(cls, name)  # whether there is one to delete
        if not held:
            raise unsupported(value, what)
    if writes is None:
        writes = context.class_writes[cls] = ClassWrites(cls)
    if name not in writes.items:
        _guard_what_it_holds(context, cls, name)
    if new is not None:
        writes.items[name] = new
    elif name in cls.__dict__:
        writes.items[name] = DELETED
    else:  # it was written in this call, and there was none before, as the lookup above guards
        del writes.items[name]
    context.touch(writes)
    return None


def _guard_what_it_holds(context: TraceContext, cls: type, name: str) -> None:
    """An attribute that was read and is written next is guarded by its value: it is another object at each call."""
    old = cls.__dict__.get(name, MISSING)
    lookups = [one for one in context.lookups() if cls in one.cls.__mro__ and one.names.get(name, MISSING) is old]
    if old is not MISSING and lookups and type(old) in _GUARDED:
        context.class_item(cls, name)
        for lookup in lookups:
            lookup.names[name] = HeldBy(cls)


@builtin(type.__setattr__)
def type_setattr(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, name, new = args
    if not isinstance(cls.opaque, type) or not name.is_constant:
        raise unsupported(cls, ".__setattr__()")
    done = set_class_attr(interp, cls, name.value, new)
    if done is not None:
        interp.finish_sync(done)  # a setter of the metaclass
    return NONE
