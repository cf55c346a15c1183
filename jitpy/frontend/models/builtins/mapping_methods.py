"""Dicts, their views, and the dict types of `collections`."""

from __future__ import annotations

import collections
from typing import Any

from ...breaks import GraphBreak
from ...guards.guard_set import MISSING
from ...interpreter.callees import Args, Kwargs, builtin
from ...values import NONE, DictValue, DictViewValue, Interpreter, TupleValue, Value, const, unsupported
from .iteration import each, is_iterable, iterate

_ORDERED = collections.OrderedDict


@builtin(dict)
def make_dict(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    made = DictValue()
    dict_update(interp, [made, *args], kwargs)
    return made


def _dict(interp: Interpreter, args: Args) -> DictValue:
    if not issubclass(args[0].cls, dict):
        raise unsupported(args[0], "a dict method")
    return args[0]  # type: ignore[return-value]


@builtin(dict.__init__, _ORDERED.__init__)
def dict_init(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 2:
        what = "expected at most 1 arguments" if issubclass(_dict(interp, args).cls, _ORDERED) else \
            "dict expected at most 1 argument"
        raise interp.throw(TypeError, f"{what}, got {len(args) - 1}")
    return dict_update(interp, args, kwargs)


@builtin(dict.update, _ORDERED.update)
def dict_update(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:

    target = _dict(interp, args)
    context = interp.context
    # dict's own methods never call an overridden `__setitem__`; those of OrderedDict do
    plain = not issubclass(target.cls, _ORDERED) or \
        context.class_lookup(target.cls, "__setitem__") is _ORDERED.__setitem__

    def put(key: Value, value: Value) -> None:
        if plain:
            context.dict_set(target, key.key(interp), value, key)
        else:
            interp.finish_sync(interp.setitem(target, key, value))

    if len(args) > 1:
        other = args[1]
        if issubclass(other.cls, dict) and other.cls.__iter__ in (dict.__iter__, _ORDERED.__iter__):
            for key, value in context.dict_items(other):
                put(context.dict_key_value(other, key), value)
        elif other.is_instance and other.base not in (list, tuple, set, frozenset) and \
                interp.hasattr(other, "keys"):
            for key in each(interp, interp.finish_sync(interp.call(interp.getattr(other, "keys"), [], {}))):
                put(key, interp.finish_sync(interp.getitem(other, key)))
        else:
            for i, pair in enumerate(each(interp, other)):
                if not is_iterable(interp, pair):
                    raise interp.throw(TypeError,
                                       f"cannot convert dictionary update sequence element #{i} to a sequence")
                items = iterate(interp, pair)
                if len(items) != 2:
                    raise interp.throw(ValueError, f"dictionary update sequence element #{i} has length {len(items)}; "
                                               "2 is required")
                put(items[0], items[1])
    for name, value in kwargs.items():
        put(const(name), value)
    return NONE


@builtin(dict.get)
def dict_get(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    found = interp.context.dict_get(_dict(interp, args), args[1].key(interp))
    return found if found is not None else args[2] if len(args) > 2 else NONE


@builtin(dict.setdefault, _ORDERED.setdefault)
def dict_setdefault(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(interp, args)
    key = args[1].key(interp)
    found = interp.context.dict_get(target, key)
    if found is not None:
        return found
    default = args[2] if len(args) > 2 else kwargs.get("default", NONE)
    interp.context.dict_set(target, key, default, args[1])
    return default


@builtin(dict.pop, _ORDERED.pop)
def dict_pop(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(interp, args)
    key = args[1].key(interp)
    found = interp.context.dict_get(target, key)
    if found is None:
        if len(args) > 2:
            return args[2]
        if "default" in kwargs:
            return kwargs["default"]
        raise interp.throw(KeyError, args[1])
    interp.context.dict_delete(target, key)
    return found


@builtin(dict.popitem, _ORDERED.popitem)
def dict_popitem(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(interp, args)
    pairs = interp.context.dict_items(target)
    if not pairs:
        raise interp.throw(KeyError, "popitem(): dictionary is empty" if target.cls is dict else "dictionary is empty")
    last = args[1] if len(args) > 1 else kwargs.get("last", const(True))
    key, value = pairs[-1 if not last.is_constant or last.value else 0]
    made = TupleValue([interp.context.dict_key_value(target, key), value])
    interp.context.dict_delete(target, key)
    return made


@builtin(dict.clear, _ORDERED.clear)
def dict_clear(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(interp, args)
    for key, _ in interp.context.dict_items(target):
        interp.context.dict_delete(target, key)
    return NONE


@builtin(dict.copy)
def dict_copy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    made = DictValue()
    dict_update(interp, [made, args[0]], {})
    return made


@builtin(_ORDERED.copy)
def ordered_copy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    made = DictValue(None, args[0].cls)
    dict_update(interp, [made, args[0]], {})
    return made


@builtin(_ORDERED.move_to_end)
def ordered_move_to_end(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(interp, args)
    last = args[2] if len(args) > 2 else kwargs.get("last", const(True))
    key = args[1].key(interp)
    found = interp.context.dict_get(target, key)
    if found is None:
        raise interp.throw(KeyError, args[1])
    if not last.is_constant or not last.value:
        others = [(k, v) for k, v in interp.context.dict_items(target) if k != key]
        for k, v in others:
            interp.context.dict_delete(target, k)
            interp.context.dict_set(target, k, v)
        return NONE
    interp.context.dict_delete(target, key)
    interp.context.dict_set(target, key, found, args[1])
    return NONE


def _view(owner: type, kind: str) -> Any:
    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        made = DictViewValue(_dict(interp, args), kind)
        if made.of.base is not owner:  # in the order of the dict below the ordered one
            raise GraphBreak("unsupported_call", f"dict.{kind} of an OrderedDict")
        return made

    return handler


for _kind in ("keys", "values", "items"):
    builtin(getattr(dict, _kind))(_view(dict, _kind))
    builtin(getattr(_ORDERED, _kind))(_view(_ORDERED, _kind))


@builtin(_ORDERED.__setitem__)
def ordered_setitem(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    interp.context.dict_set(_dict(interp, args), args[1].key(interp), args[2], args[1])
    return NONE


@builtin(collections.defaultdict.__init__)
def defaultdict_init(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    factory = args[1] if len(args) > 1 else NONE
    if factory.literal is not None and \
            interp.context.class_lookup(factory.cls, "__call__") is MISSING:
        raise interp.throw(TypeError, "first argument must be callable or None")
    interp.context.write_slot(_dict(interp, args), collections.defaultdict.default_factory, factory)  # type: ignore[attr-defined]
    return dict_init(interp, [args[0], *args[2:]], kwargs)


@builtin(collections.defaultdict.__missing__)
def defaultdict_missing(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(interp, args)
    factory = interp.context.read_slot(target, collections.defaultdict.default_factory)  # type: ignore[attr-defined]
    assert factory is not None
    if factory.is_constant:
        raise interp.throw(KeyError, args[1])
    made = interp.call_sync(factory, [])
    interp.context.dict_set(target, args[1].key(interp), made, args[1])
    return made
