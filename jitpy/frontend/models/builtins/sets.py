"""Sets and frozensets.

The order of a set follows from its history, so each `SetValue` has a `mirror`: a real set of its keys that goes through
the same operations. Sets from outside are changed by the same operations again, in their order.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

from ...interpreter.callees import Args, Kwargs, builtin
from ...values import NONE, Interpreter, SetValue, Value, const, unsupported
from .iteration import each

_SETS = (set, frozenset)
_KEYS = (type({}.keys()), type(collections.OrderedDict().keys()))
_VIEWS = (*_KEYS, *(type(view()) for of in ({}, collections.OrderedDict()) for view in (of.values, of.items)))


def set_items(interp: Interpreter, iterable: Value) -> dict[Any, Value]:
    """The items of an iterable, by key, in its order."""
    items: dict[Any, Value] = {}
    for value in each(interp, iterable):
        items.setdefault(value.key(interp), value)
    return items


def _operand(interp: Interpreter, other: Any) -> tuple[Any, dict[Any, Value]]:
    """The argument of a real set's method in the place of a Value, and its items by key."""
    if other.base in _SETS:
        return other.mirror, {key: other.items[key] for key in other.mirror}
    items = set_items(interp, other)
    if issubclass(other.cls, (dict, *_KEYS)):
        return dict.fromkeys(items), items
    return list(items), items


def make(interp: Interpreter, cls: type, iterable: Value | None) -> SetValue:
    """`set(iterable)` or `frozenset(iterable)`, as an instance of `cls`."""
    if iterable is None:
        return SetValue({}, None, cls)
    real, items = _operand(interp, iterable)
    return _from_mirror((frozenset if issubclass(cls, frozenset) else set)(real), items, cls=cls)


def _from_mirror(mirror: Any, *items: dict[Any, Value], cls: type) -> SetValue:
    made = SetValue(_chosen(mirror, items), None, cls)
    made.mirror = mirror
    return made


def _chosen(mirror: Any, items: Iterable[dict[Any, Value]]) -> dict[Any, Value]:
    """The elements of a set that was made of others; of equal ones, that whose key is there."""
    known = {id(key): value for more in items for key, value in more.items()}
    return {key: known[id(key)] for key in mirror}


@builtin(set)
def make_set(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return make(interp, set, args[0] if args else None)


@builtin(frozenset)
def make_frozenset(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if args and args[0].cls is frozenset and args[0].base is frozenset:
        return args[0]
    return make(interp, frozenset, args[0] if args else None)


def _set(interp: Interpreter, args: Args) -> SetValue:
    if args[0].base not in _SETS:
        raise unsupported(args[0], "a set method")
    return args[0]  # type: ignore[return-value]


def change(interp: Interpreter, target: SetValue, method: str, real: Any, items: dict[Any, Value]) -> None:
    """Run a method of `set` that changes it: on the mirror, and on the real set later. `items` are those of `real`."""
    known = {key: target.items[key] for key in target.own_mirror()}
    getattr(set, method)(target.mirror, real)
    target.items = _chosen(target.mirror, (known, items))
    _note(interp, target, method, real, list(items.values()))


def _note(interp: Interpreter, target: SetValue, method: str, real: Any, values: list[Value]) -> None:
    interp.context.writes += 1
    if target.source is not None:
        target.log.append((method, type(real), values))
        interp.context.touch(target)


@builtin(set.add)
def set_add(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _set(interp, args)
    if target.unread is not None and target.unread.change(target, "add", args[1]):
        return NONE
    key = args[1].key(interp)
    if key not in target.items:
        target.own_mirror().add(key)
        target.items[key] = args[1]
        _note(interp, target, "add", None, [args[1]])
    return NONE


@builtin(set.discard)
def set_discard(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _set(interp, args)
    if target.unread is not None and target.unread.change(target, "discard", args[1]):
        return NONE
    key = args[1].member_key(interp)
    if key in target.items:
        target.own_mirror().discard(key)
        value = target.items.pop(key)
        _note(interp, target, "discard", None, [value])
    return NONE


@builtin(set.remove)
def set_remove(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target, key = _set(interp, args), args[1].member_key(interp)
    if not (target.unread.holds(target, key) if target.unread is not None else key in target.items):
        raise interp.throw(KeyError, args[1])
    return set_discard(interp, args, kwargs)


@builtin(set.pop)
def set_pop(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _set(interp, args)
    if not target.items:
        raise interp.throw(KeyError, "pop from an empty set")
    if target.real is not None:
        raise unsupported(target, ".pop()")  # which item comes next is known to the real set only
    key = target.own_mirror().pop()
    interp.context.writes += 1
    return target.items.pop(key)


@builtin(set.clear)
def set_clear(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _set(interp, args)
    target.own_mirror().clear()
    target.items = {}
    _note(interp, target, "clear", (), [])
    return NONE


@builtin(set.__init__)
def set_init(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    set_clear(interp, args[:1], {})
    return set_update(interp, args, {})


@builtin(set.copy, frozenset.copy)
def set_copy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _set(interp, args)
    return target if target.cls is frozenset else _from_mirror(target.mirror.copy(), target.items, cls=target.cls)


@builtin(set.update)
def set_update(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _set(interp, args)
    for other in args[1:]:
        _change_by_items(interp, target, "update", other)
    return NONE


def _change_by_items(interp: Interpreter, target: SetValue, method: str, other: Value) -> None:
    """A method that takes the items one by one: what yields them sees the changes."""
    if other.base is not None and other.plain is None or other.cls in _VIEWS:
        change(interp, target, method, *_operand(interp, other))
        return
    for item in each(interp, other):
        key = item.key(interp)
        change(interp, target, method, [key], {key: item})


_OPERATORS = {"AND": "__and__", "OR": "__or__", "SUBTRACT": "__sub__", "XOR": "__xor__"}
_UPDATES = {"AND": "intersection_update", "OR": "update", "SUBTRACT": "difference_update",
            "XOR": "symmetric_difference_update"}


def set_binary(interp: Interpreter, name: str, a: Any, b: Any, inplace: bool) -> Value:
    """`a & b`, `a | b`, `a - b`, `a ^ b` on sets and dict views; views take any iterable beside them."""
    left, left_items = _operand(interp, a) if a.base in _SETS else _as_set(interp, a)
    right, right_items = _operand(interp, b) if b.base in _SETS else _as_set(interp, b)
    if inplace and a.base is set:
        change(interp, a, _UPDATES[name], right.copy() if right is left else right, right_items)
        return a
    result = getattr(left, _OPERATORS[name])(right)
    return _from_mirror(result, left_items, right_items, cls=frozenset if a.base is frozenset else set)


def _as_set(interp: Interpreter, view: Value) -> tuple[set[Any], dict[Any, Value]]:
    items = set_items(interp, view)
    return set(items), items


def _set_method(method: str, inplace: bool) -> Any:
    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        target = _set(interp, args)
        if method == "difference_update":
            for other in args[1:]:
                _change_by_items(interp, target, method, other)
            return NONE
        operands = [_operand(interp, other) for other in args[1:]]
        if inplace:
            for real, items in operands:
                change(interp, target, method, real, items)
            return NONE
        try:
            result = getattr(target.mirror, method)(*(real for real, _ in operands))
        except TypeError as error:
            raise interp.raise_real(error) from None
        return _from_mirror(result, target.items, *(items for _, items in operands),
                          cls=frozenset if issubclass(target.cls, frozenset) else set)

    return handler


for _method in ("union", "intersection", "difference", "symmetric_difference"):
    for _cls in (set, frozenset):
        builtin(getattr(_cls, _method))(_set_method(_method, False))
for _method in ("intersection_update", "difference_update", "symmetric_difference_update"):
    builtin(getattr(set, _method))(_set_method(_method, True))


def _set_relation(test: Any) -> Any:
    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        return const(test(set(args[0].set_keys(interp)), set(set_items(interp, args[1]))))

    return handler


for _method in ("issubset", "issuperset", "isdisjoint"):
    for _cls in (set, frozenset):
        builtin(getattr(_cls, _method))(_set_relation(getattr(set, _method)))
