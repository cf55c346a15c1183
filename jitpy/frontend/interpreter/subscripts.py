"""Subscripts and membership: `c[k]`, `c[k] = v`, `del c[k]`, `k in c`."""

from __future__ import annotations

import enum
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from ..breaks import GraphBreak
from ..guards.guard_set import MISSING
from ..models.builtins.growing import change_list, has_item, list_item, number_of_items
from ..models.builtins.iteration import builtin_iter, get_iter_sync, is_iterable, iterate, next_sync
from ..models.builtins.plain_parts import answers, is_boxed, plain_part, whole_plain_part
from ..values import (
    ArrayValue,
    BuiltinMethodValue,
    ConstValue,
    DictValue,
    DictViewValue,
    Exhausted,
    Interpreter,
    IteratorValue,
    ListValue,
    ObjectValue,
    PyValue,
    RangeValue,
    ScalarValue,
    SetValue,
    SliceValue,
    SymValue,
    TensorValue,
    TupleValue,
    Value,
    const,
    is_number,
    type_name,
    unsupported,
)
from .calls import as_int, own_methods, range_items
from .operator_methods import BINARY, COMPARE
from .operators import (
    compare_builtin,
    fold_constants,
    known_text,
    mutate,
    numpy_operations,
    truth,
)


def get_item(interp: Interpreter, container: Value, key: Value) -> Any:
    """`container[key]`: a Value or PUSHED."""
    context = interp.context
    if isinstance(container, TensorValue):
        own_methods(interp, container, "__getitem__")
        return interp.record(torch.Tensor.__getitem__, [container, _tensor_key(interp, key)], {})
    if isinstance(container, ArrayValue):
        return numpy_operations().get_item(interp, container, key)
    found = context.class_lookup(container.cls, "__getitem__")
    if isinstance(found, types.FunctionType):
        return interp.call(context.const_object(found), [container, key], {})
    return builtin_get_item(interp, container, key)


def _tensor_key(interp: Interpreter, key: Value) -> Value:
    """The subscript of a tensor with tensors for index arrays and masks. One of several dimensions torch may take for
    a tuple of its rows."""
    if isinstance(key, TupleValue):
        items = [interp.context.force(v) for v in key.items]
        return TupleValue([_tensor_key(interp, v)
                           for v in items]) if any(isinstance(v, ArrayValue) for v in items) else key
    if isinstance(key, ArrayValue) and not key.is_scalar and key.dtype.kind in "iub" and key.traced.ndim == 1:
        return interp.context.tensor_value(key.traced)
    return key


def builtin_get_item(interp: Interpreter, container: Value, key: Value) -> Any:
    """`container[key]` by the builtin type's own rule (also for subclasses that call `super().__getitem__`)."""
    context = interp.context
    if is_boxed(container) and context.class_lookup(container.cls, "__getitem__") is not MISSING:
        container = known_text(interp, whole_plain_part(interp, container))
    if isinstance(container, ConstValue):
        index = slice_of(interp,
                         key) if isinstance(key, SliceValue) else interp.constant_of(whole_plain_part(interp, key))
        return fold_constants(interp, operator.getitem, container.value, index)
    if isinstance(container, (ListValue, TupleValue)):
        return _sequence_item(interp, container, key)
    if isinstance(container, DictValue):
        got = context.dict_get(container, interp.key_of(key))
        if got is not None:
            return got
        missing = context.class_lookup(container.cls, "__missing__")
        if missing is not MISSING:
            if isinstance(missing, types.FunctionType):
                return interp.call(context.const_object(missing), [container, key], {})
            return interp.call(BuiltinMethodValue(missing, container), [key], {})
        raise interp.throw(KeyError, key)
    if isinstance(container, RangeValue):
        items = range_items(interp, container)
        if isinstance(key, SliceValue):
            picked = range(*(as_int(interp, v, "range") for v in (container.start, container.stop, container.step)))[
                slice_of(interp, key)]
            return RangeValue(const(picked.start), const(picked.stop), const(picked.step))
        i = _index_of(interp, key, "range")
        if not -len(items) <= i < len(items):
            raise interp.throw(IndexError, "range object index out of range")
        return items[i]
    if isinstance(container, PyValue) and isinstance(container.obj, type):
        return _class_getitem(interp, container, key)
    if isinstance(container, PyValue) and type(container.obj) is re.Match:
        return fold_constants(interp, operator.getitem, context.pin(container),
                              interp.constant_of(whole_plain_part(interp, key)))
    if isinstance(container, PyValue) and type(container.obj).__module__ == "typing":
        return context.const_object(context.pin(container)[interp.constant_of(key)])
    if interp.context.class_lookup(container.cls, "__getitem__") is MISSING:
        raise interp.throw(TypeError, f"{container.cls.__name__!r} object is not subscriptable")
    raise unsupported(container, "a subscript")


def _class_getitem(interp: Interpreter, container: PyValue, key: Value) -> Any:
    cls = interp.context.pin(container)
    if isinstance(cls, enum.EnumMeta):
        return interp.context.const_object(fold_constants(interp, lambda k: cls[k], interp.constant_of(key)).obj)  # type: ignore[attr-defined]
    meta_item = interp.context.class_lookup(type(cls), "__getitem__")
    if isinstance(meta_item, types.FunctionType):
        return interp.call(interp.context.const_object(meta_item), [container, key], {})
    hook = interp.context.class_lookup(cls, "__class_getitem__")
    if isinstance(hook, classmethod) and isinstance(hook.__func__, types.FunctionType) and \
            hook.__func__.__module__ != "typing":
        return interp.call(interp.context.const_object(hook.__func__), [container, key], {})
    try:
        return interp.context.const_object(cls[interp.constant_of(key)])
    except TypeError as error:
        raise interp.raise_real(error) from None


def slice_of(interp: Interpreter, value: SliceValue) -> slice:
    """A real slice with int bounds."""
    def bound(v: Value) -> Any:
        if isinstance(v, ConstValue) and v.value is None:
            return None
        if interp.context.class_lookup(v.cls, "__index__") is MISSING:
            raise interp.throw(TypeError, "slice indices must be integers or None or have an __index__ method")
        return as_int(interp, v, "slice")

    step = bound(value.step)
    if step == 0:
        raise interp.throw(ValueError, "slice step cannot be zero")
    return slice(bound(value.start), bound(value.stop), step)


def _index_of(interp: Interpreter, key: Value, kind: str) -> int:
    key = whole_plain_part(interp, key)
    if isinstance(key, (ConstValue, SymValue, ScalarValue)) and (not isinstance(key, ConstValue)
                                                                or isinstance(key.value, int)):
        return as_int(interp, key, "subscript")
    if isinstance(key, TensorValue):
        return as_int(interp, key, "subscript")
    if isinstance(key, ObjectValue) and interp.context.class_lookup(key.cls, "__index__") is not MISSING:
        return as_int(interp, key, "subscript")
    if isinstance(key, PyValue) and is_number(key.obj) and key.obj.dtype.kind in "iu":
        return as_int(interp, key, "subscript")
    if hasattr(key.cls, "__index__"):
        raise GraphBreak("unsupported_value", f"{key.describe()} as index of a Python sequence")
    raise interp.throw(TypeError, f"{kind} indices must be integers or slices, not {type_name(key.cls)}")


def _sequence_item(interp: Interpreter, container: Any, key: Value) -> Value:
    kind = "tuple" if isinstance(container, TupleValue) else "list"
    if isinstance(key, SliceValue):
        picked = container.items[slice_of(interp, key)]
        if kind == "list":
            return ListValue(picked)
        return TupleValue(picked, None, torch.Size if container.cls is torch.Size else tuple)
    value = list_item(interp.context, container, _index_of(interp, key, kind))
    if value is None:
        raise interp.throw(IndexError, f"{kind} index out of range")
    return value


def set_item(interp: Interpreter, container: Value, key: Value, new: Value) -> Any:
    """`container[key] = new`: None or PUSHED."""
    context = interp.context
    if isinstance(container, TensorValue):
        own_methods(interp, container, "__setitem__")
        interp.record(torch.Tensor.__setitem__, [container, _tensor_key(interp, key), new], {})
        return None
    if isinstance(container, ArrayValue):
        numpy_operations().set_item(interp, container, key, new)
        return None
    found = context.class_lookup(container.cls, "__setitem__")
    if isinstance(found, types.FunctionType):
        return interp.call(context.const_object(found), [container, key, new], {})
    return builtin_set_item(interp, container, key, new)


def builtin_set_item(interp: Interpreter, container: Value, key: Value, new: Value) -> None:
    context = interp.context
    if isinstance(container, ListValue):
        if isinstance(key, SliceValue):
            cut = slice_of(interp, key)
            values: list[Any] = list(iterate(interp, new))
            try:
                [*container.items].__setitem__(cut, values)
            except ValueError as error:
                raise interp.raise_real(error) from None
            mutate(interp, container)
            container.items[cut] = values
            return
        i = _index_of(interp, key, "list")
        if not has_item(container, i):
            raise interp.throw(IndexError, "list assignment index out of range")
        change_list(context, container, "__setitem__", i, new)
        return
    if isinstance(container, DictValue):
        if context.dict_set_unread(container, key):
            context.dict_set_symbolic(container, key, new)
        else:
            context.dict_set(container, interp.key_of(key), new, key)
        return
    if isinstance(container, TupleValue) or isinstance(container, ConstValue):
        raise interp.throw(TypeError, f"{container.cls.__name__!r} object does not support item assignment")
    raise unsupported(container, "item assignment")


def delete_item(interp: Interpreter, container: Value, key: Value) -> Any:
    """`del container[key]`: None or PUSHED."""
    found = interp.context.class_lookup(container.cls, "__delitem__")
    if isinstance(found, types.FunctionType):
        return interp.call(interp.context.const_object(found), [container, key], {})
    return builtin_delete_item(interp, container, key)


def builtin_delete_item(interp: Interpreter, container: Value, key: Value) -> None:
    if isinstance(container, ListValue):
        if isinstance(key, SliceValue):
            cut = slice_of(interp, key)
            mutate(interp, container)
            del container.items[cut]
            return
        i = _index_of(interp, key, "list")
        if not has_item(container, i):
            raise interp.throw(IndexError, "list assignment index out of range")
        change_list(interp.context, container, "__delitem__", i)
        return
    if isinstance(container, DictValue):
        real_key = interp.key_of(key)
        if interp.context.dict_get(container, real_key) is None:
            raise interp.throw(KeyError, key)
        interp.context.dict_delete(container, real_key)
        return
    raise unsupported(container, "item deletion")


def contains(interp: Interpreter, container: Value, item: Value) -> Value:
    """`item in container`."""
    context = interp.context
    found = context.class_lookup(container.cls, "__contains__")
    if isinstance(found, types.FunctionType):
        return const(interp.truth(interp.call_sync(context.const_object(found), [container, item])))
    if found is None:
        raise interp.throw(TypeError, f"{container.cls.__name__!r} object is not a container")
    container = known_text(interp, plain_part(interp, container, "__contains__"))
    if isinstance(container, ConstValue):
        item = known_text(interp, whole_plain_part(interp, item))
    if isinstance(container, ConstValue):
        if isinstance(item, ConstValue):
            return fold_constants(interp, operator.contains, container.value, item.value)
        if container.cls is str:
            raise interp.throw(TypeError, f"'in <string>' requires string as left operand, not {type_name(item.cls)}")
        if container.cls is bytes:
            if hasattr(item.cls, "__index__") or isinstance(item, (PyValue, ArrayValue)):
                raise unsupported(item, "in bytes")
            raise interp.throw(TypeError, f"a bytes-like object is required, not {type_name(item.cls)!r}")
        raise interp.throw(TypeError, f"argument of type {container.cls.__name__!r} is not iterable")
    if isinstance(container, DictValue):
        return const(context.dict_get(container, interp.key_of(item)) is not None)
    if isinstance(container, DictViewValue) and container.kind == "keys":
        return const(context.dict_get(container.of, interp.key_of(item)) is not None)
    if isinstance(container, SetValue):
        key = interp.member_key(item)
        unread = container.unread if isinstance(item, (ConstValue, SymValue)) else None
        return const(unread.holds(container, key) if unread is not None else key in container.items)
    if isinstance(container, PyValue) and isinstance(container.obj, enum.EnumMeta):
        return fold_constants(interp, operator.contains, context.pin(container), interp.constant_of(item))
    if isinstance(container, PyValue) and isinstance(item, (ConstValue, PyValue)):
        raise unsupported(container, "in")
    if isinstance(container, ArrayValue):
        raise unsupported(container, "in")
    if isinstance(container, TensorValue):
        return const(truth(interp,
                           interp.call_sync(context.const_object(torch.Tensor.__contains__), [container, item])))
    answer = False
    if not is_iterable(interp, container):
        raise interp.throw(TypeError, f"argument of type {container.cls.__name__!r} is not iterable")
    iterator = get_iter_sync(interp, container)
    while True:
        try:
            element = next_sync(interp, iterator)
        except Exhausted:
            break
        if interp.equal(element, item):
            answer = True
            break
    return const(answer)


def _wrapper_getitem(interp: Interpreter, owner: type, a: Value, key: Value) -> Any:
    return builtin_get_item(interp, a, key)


def _wrapper_setitem(interp: Interpreter, owner: type, a: Value, key: Value, new: Value) -> Any:
    builtin_set_item(interp, a, key, new)
    return const(None)


def _wrapper_delitem(interp: Interpreter, owner: type, a: Value, key: Value) -> Any:
    builtin_delete_item(interp, a, key)
    return const(None)


def _wrapper_iter(interp: Interpreter, owner: type, a: Value) -> Any:
    return builtin_iter(interp, a)


def _wrapper_next(interp: Interpreter, owner: type, a: Value) -> Any:
    return interp.call(interp.context.const_object(next), [a], {}) if isinstance(a, IteratorValue) else None


def _wrapper_len(interp: Interpreter, owner: type, a: Value) -> Any:
    return number_of_items(interp.context, a) if isinstance(a, (ListValue, TupleValue, DictValue, SetValue)) else None


def _wrapper_contains(interp: Interpreter, owner: type, a: Value, key: Value) -> Any:
    if isinstance(a, DictValue):
        return const(interp.context.dict_get(a, interp.key_of(key)) is not None)
    return contains(interp, a, key) if isinstance(a, SetValue) and a.cls in (set, frozenset) else None


def _wrapper_compare(symbol: str) -> Any:
    def handler(interp: Interpreter, owner: type, a: Value, b: Value) -> Any:
        if owner is object and symbol in ("==", "!="):
            if interp.same_object(a, b):
                return const(symbol == "==")
            found = interp.context.class_lookup(a.cls, "__eq__") if symbol == "!=" else object.__eq__
            if found is not object.__eq__:  # `object.__ne__` turns round what that says
                answer = interp.call_sync(interp.context.const_object(found), [a, b])
                unknown = isinstance(answer, ConstValue) and answer.value is NotImplemented
                return answer if unknown else const(not interp.truth(answer))
            return const(NotImplemented)
        answer = compare_builtin(interp, symbol, a, b)
        if answer is None and answers(interp, COMPARE[symbol][1], a, b):
            answer = interp.finish_sync(interp.compare(symbol, a, b))  # numbers that are not known while tracing
        return answer if answer is not None else const(NotImplemented)

    return handler


def _wrapper_binary(name: str, method: str, swapped: bool = False, inplace: bool = False) -> Any:
    def handler(interp: Interpreter, owner: type, a: Value, b: Value) -> Any:
        from ..models.builtins.sets import set_binary

        left, right = (b, a) if swapped else (a, b)
        if owner in (set, frozenset):
            if not isinstance(left, SetValue) or not isinstance(right, SetValue):
                return const(NotImplemented)
            return set_binary(interp, name, left, right, inplace)
        return interp.binary(name, left, right) if answers(interp, method, a, b) else None

    return handler


#: C slot wrappers by name, for explicit calls such as `dict.__setitem__(d, k, v)` and `super().__getitem__(k)`
SLOT_WRAPPERS: dict[str, Callable[..., Any]] = {
    "__getitem__": _wrapper_getitem, "__setitem__": _wrapper_setitem, "__delitem__": _wrapper_delitem,
    "__iter__": _wrapper_iter, "__next__": _wrapper_next, "__len__": _wrapper_len, "__contains__": _wrapper_contains,
    "__eq__": _wrapper_compare("=="), "__ne__": _wrapper_compare("!="),
}
for _name, (_, _dunder, _reflected, _inplace) in BINARY.items():
    SLOT_WRAPPERS[_dunder] = _wrapper_binary(_name, _dunder)
    SLOT_WRAPPERS[_reflected] = _wrapper_binary(_name, _reflected, swapped=True)
    SLOT_WRAPPERS[_inplace] = _wrapper_binary(_name, _inplace, inplace=True)
