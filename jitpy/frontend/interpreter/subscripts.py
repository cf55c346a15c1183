"""Subscripts and membership: `c[k]`, `c[k] = v`, `del c[k]`, `k in c`."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from ..breaks import GraphBreak
from ..guards.guard_set import MISSING
from ..models.builtins.iteration import builtin_iter, get_iter_sync, is_iterable, next_sync
from ..models.builtins.plain_parts import answers, plain_part
from ..values import BINARY, COMPARE, Exhausted, Interpreter, Value, const, type_name
from .calls import as_int
from .operators import (
    compare_builtin,
)


def get_item(interp: Interpreter, container: Value, key: Value) -> Any:
    """`container[key]`: a Value or PUSHED."""
    found = _method(interp, container, "__getitem__")
    if isinstance(found, types.FunctionType):
        return interp.call(interp.context.const_object(found), [container, key], {})
    return builtin_get_item(interp, container, key)


def _method(interp: Interpreter, container: Value, name: str) -> Any:
    """The class's entry for a special name; MISSING for tensors, whose own methods are looked up when recorded."""
    return MISSING if container.tensor is not None else interp.context.class_lookup(container.cls, name)


def builtin_get_item(interp: Interpreter, container: Value, key: Value) -> Any:
    """`container[key]` by the builtin type's own rule (also for subclasses that call `super().__getitem__`)."""
    if container.is_boxed and interp.context.class_lookup(container.cls, "__getitem__") is not MISSING:
        container = container.whole_plain_part(interp).as_known(interp)
    return container.getitem(interp, key)


def index_of(interp: Interpreter, key: Value, kind: str) -> int:
    """The place that a subscript of a builtin sequence says."""
    key = key.whole_plain_part(interp)
    number = key.as_index(interp, "subscript")
    if number is not None:
        return number
    if key.is_instance and interp.context.has_slot(key.cls, "__index__"):
        return as_int(interp, key, "subscript")
    if hasattr(key.cls, "__index__"):
        raise GraphBreak("unsupported_value", f"{key.describe()} as index of a Python sequence")
    raise interp.throw(TypeError, f"{kind} indices must be integers or slices, not {type_name(key.cls)}")


def set_item(interp: Interpreter, container: Value, key: Value, new: Value) -> Any:
    """`container[key] = new`: None or PUSHED."""
    found = _method(interp, container, "__setitem__")
    if isinstance(found, types.FunctionType):
        return interp.call(interp.context.const_object(found), [container, key, new], {})
    container.setitem(interp, key, new)
    return None


def delete_item(interp: Interpreter, container: Value, key: Value) -> Any:
    """`del container[key]`: None or PUSHED."""
    found = interp.context.class_lookup(container.cls, "__delitem__")
    if isinstance(found, types.FunctionType):
        return interp.call(interp.context.const_object(found), [container, key], {})
    container.delitem(interp, key)
    return None


def contains(interp: Interpreter, container: Value, item: Value) -> Value:
    """`item in container`."""
    context = interp.context
    found = context.class_lookup(container.cls, "__contains__")
    if isinstance(found, types.FunctionType):
        return const(interp.truth(interp.call_sync(context.const_object(found), [container, item])))
    if found is None:
        raise interp.throw(TypeError, f"{container.cls.__name__!r} object is not a container")
    container = plain_part(interp, container, "__contains__").as_known(interp)
    answer = container.contains(interp, item)
    if answer is not None:
        return answer
    if not is_iterable(interp, container):
        raise interp.throw(TypeError, f"argument of type {container.cls.__name__!r} is not iterable")
    iterator = get_iter_sync(interp, container)
    while True:
        try:
            element = next_sync(interp, iterator)
        except Exhausted:
            return const(False)
        if interp.equal(element, item):
            return const(True)


def _wrapper_getitem(interp: Interpreter, owner: type, a: Value, key: Value) -> Any:
    return builtin_get_item(interp, a, key)


def _wrapper_setitem(interp: Interpreter, owner: type, a: Value, key: Value, new: Value) -> Any:
    a.setitem(interp, key, new)
    return const(None)


def _wrapper_delitem(interp: Interpreter, owner: type, a: Value, key: Value) -> Any:
    a.delitem(interp, key)
    return const(None)


def _wrapper_iter(interp: Interpreter, owner: type, a: Value) -> Any:
    return builtin_iter(interp, a)


def _wrapper_next(interp: Interpreter, owner: type, a: Value) -> Any:
    return interp.call(interp.context.const_object(next), [a], {}) if a.is_iterator else None


def _wrapper_len(interp: Interpreter, owner: type, a: Value) -> Any:
    return a.length(interp) if owner in (list, tuple, dict, set, frozenset) else None


def _wrapper_contains(interp: Interpreter, owner: type, a: Value, key: Value) -> Any:
    if issubclass(a.cls, dict):
        return a.contains(interp, key)
    return contains(interp, a, key) if a.cls is a.base else None


def _wrapper_compare(symbol: str) -> Any:
    def handler(interp: Interpreter, owner: type, a: Value, b: Value) -> Any:
        if owner is object and symbol in ("==", "!="):
            if interp.same_object(a, b):
                return const(symbol == "==")
            found = interp.context.class_lookup(a.cls, "__eq__") if symbol == "!=" else object.__eq__
            if found is not object.__eq__:  # `object.__ne__` turns round what that says
                answer = interp.call_sync(interp.context.const_object(found), [a, b])
                unknown = answer.literal is NotImplemented
                return answer if unknown else const(not interp.truth(answer))
        if owner is object:
            return const(NotImplemented)
        answer = compare_builtin(interp, symbol, a, b)
        if answer is None and answers(interp, COMPARE[symbol][1], a, b):
            answer = interp.finish_sync(interp.compare(symbol, a, b))  # numbers that are not known while tracing
        return answer if answer is not None else const(NotImplemented)

    return handler


def _wrapper_binary(name: str, method: str, swapped: bool = False, inplace: bool = False) -> Any:
    def handler(interp: Interpreter, owner: type, a: Value, b: Value) -> Any:
        left, right = (b, a) if swapped else (a, b)
        if owner in (set, frozenset):
            if not {left.base, right.base} <= {set, frozenset}:
                return const(NotImplemented)
            return interp.set_binary(name, left, right, inplace)
        if owner in (list, tuple):
            return left.combine(interp, name, right, inplace)
        return interp.binary(name, left, right) if answers(interp, method, a, b) else None

    return handler


#: C slot wrappers by name, for explicit calls such as `dict.__setitem__(d, k, v)` and `super().__getitem__(k)`
SLOT_WRAPPERS: dict[str, Callable[..., Any]] = {
    "__getitem__": _wrapper_getitem, "__setitem__": _wrapper_setitem, "__delitem__": _wrapper_delitem,
    "__iter__": _wrapper_iter, "__next__": _wrapper_next, "__len__": _wrapper_len, "__contains__": _wrapper_contains,
    **{method: _wrapper_compare(symbol) for symbol, (_, method, _) in COMPARE.items()},
}
for _name, (_, _dunder, _reflected, _inplace) in BINARY.items():
    SLOT_WRAPPERS[_dunder] = _wrapper_binary(_name, _dunder)
    SLOT_WRAPPERS[_reflected] = _wrapper_binary(_name, _reflected, swapped=True)
    SLOT_WRAPPERS[_inplace] = _wrapper_binary(_name, _inplace, inplace=True)
