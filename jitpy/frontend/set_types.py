"""Sets and frozensets."""

from __future__ import annotations

from typing import Any

from .calls import BUILTINS, builtin
from .executor import Executor
from .iteration import iterate
from .operators import key_of, mutate, set_keys
from .values.base import (
    NONE,
    DictViewValue,
    SetValue,
    Value,
    const,
    unsupported,
)

Args = list[Value]
Kwargs = dict[str, Value]


def set_items(ex: Executor, iterable: Value) -> dict[Any, Value]:
    items: dict[Any, Value] = {}
    for value in iterate(ex, iterable):
        items.setdefault(key_of(ex, value), value)
    return items


@builtin(set)
def make_set(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return SetValue(set_items(ex, args[0]) if args else {})


@builtin(frozenset)
def make_frozenset(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return SetValue(set_items(ex, args[0]) if args else {}, None, frozenset)



def _set(ex: Executor, args: Args) -> SetValue:
    if not isinstance(args[0], SetValue):
        raise unsupported(args[0], "a set method")
    return args[0]


@builtin(set.add)
def set_add(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _set(ex, args)
    key = key_of(ex, args[1])
    if key not in target.items:
        mutate(ex, target)
        target.items[key] = args[1]
    return NONE


@builtin(set.discard)
def set_discard(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _set(ex, args)
    key = key_of(ex, args[1])
    if key in target.items:
        mutate(ex, target)
        del target.items[key]
    return NONE


@builtin(set.remove)
def set_remove(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _set(ex, args)
    key = key_of(ex, args[1])
    if key not in target.items:
        raise ex.throw(KeyError, args[1])
    mutate(ex, target)
    del target.items[key]
    return NONE


@builtin(set.clear)
def set_clear(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _set(ex, args)
    mutate(ex, target)
    target.items.clear()
    return NONE


@builtin(set.copy, frozenset.copy)
def set_copy(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return SetValue(dict(_set(ex, args).items), None, args[0].cls)


@builtin(set.update)
def set_update(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _set(ex, args)
    for other in args[1:]:
        items = set_items(ex, other)
        mutate(ex, target)
        for key, value in items.items():
            target.items.setdefault(key, value)
    return NONE


def set_binary(ex: Executor, name: str, a: Value, b: Value, inplace: bool) -> Value:
    """`a & b`, `a | b`, `a - b`, `a ^ b` on sets and dict views."""
    for side in (a, b):
        if not isinstance(side, (SetValue, DictViewValue)):
            symbol = {"AND": "&", "OR": "|", "SUBTRACT": "-", "XOR": "^"}.get(name, name)
            raise ex.throw(TypeError, f"unsupported operand type(s) for {symbol}{'=' if inplace else ''}: "
                                      f"{a.cls.__name__!r} and {b.cls.__name__!r}")
    left, right = set_items(ex, a), set_items(ex, b)
    merged = _combine(name, left, right)
    if merged is None:
        raise ex.throw(TypeError, f"unsupported operand type(s): {a.cls.__name__!r} and {b.cls.__name__!r}")
    if inplace and isinstance(a, SetValue) and a.cls is set:
        mutate(ex, a)
        a.items = merged
        return a
    return SetValue(merged, None, a.cls if isinstance(a, SetValue) else set)


def _combine(name: str, left: dict[Any, Value], right: dict[Any, Value]) -> dict[Any, Value] | None:
    if name == "AND":
        return {k: v for k, v in left.items() if k in right}
    if name == "SUBTRACT":
        return {k: v for k, v in left.items() if k not in right}
    if name == "OR":
        return {**right, **left} if not left else {**left, **{k: v for k, v in right.items() if k not in left}}
    if name == "XOR":
        return {**{k: v for k, v in left.items() if k not in right},
                **{k: v for k, v in right.items() if k not in left}}
    return None


def _set_method(name: str, inplace: bool) -> Any:
    def handler(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
        target = _set(ex, args)
        items = dict(target.items)
        for other in args[1:]:
            items = _combine(name, items, set_items(ex, other)) or {}
        if inplace:
            mutate(ex, target)
            target.items = items
            return NONE
        return SetValue(items, None, target.cls)

    return handler


for _method, _name in (("union", "OR"), ("intersection", "AND"), ("difference", "SUBTRACT"),
                       ("symmetric_difference", "XOR")):
    BUILTINS[getattr(set, _method)] = BUILTINS[getattr(frozenset, _method)] = _set_method(_name, False)
for _method, _name in (("intersection_update", "AND"), ("difference_update", "SUBTRACT"),
                       ("symmetric_difference_update", "XOR")):
    BUILTINS[getattr(set, _method)] = _set_method(_name, True)


def _set_relation(test: Any) -> Any:
    def handler(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
        return const(test(set(set_keys(ex, args[0])), set(set_items(ex, args[1]))))

    return handler


for _method in ("issubset", "issuperset", "isdisjoint"):
    for _cls in (set, frozenset):
        BUILTINS[getattr(_cls, _method)] = _set_relation(getattr(set, _method))
