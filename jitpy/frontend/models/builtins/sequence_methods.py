"""Lists, tuples, sorting."""

from __future__ import annotations

from typing import Any

import torch

from ....ir.sizes import SizeUnknown
from ...breaks import GraphBreak
from ...guards.guard_set import MISSING
from ...interpreter.callees import Args, Kwargs, builtin
from ...interpreter.calls import as_int, is_index_sized
from ...interpreter.operators import mutate
from ...values import FALSE, NONE, Interpreter, ListValue, TupleValue, Value, const, unsupported
from .iteration import each, iterate


@builtin(list)
def make_list(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ListValue(iterate(interp, args[0], hinted=True) if args else [])


@builtin(tuple)
def make_tuple(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if args and args[0].cls is tuple and args[0].base is tuple:
        return args[0]
    return TupleValue(iterate(interp, args[0], hinted=True) if args else [])


@builtin(torch.Size)
def make_size(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    sizes = iterate(interp, args[0], hinted=True) if args else []
    for size in sizes:
        if not size.is_number or not issubclass(size.cls, int):
            raise unsupported(size, "torch.Size()")
    return TupleValue(sizes, None, torch.Size)


@builtin(torch.Size.numel)
def size_numel(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:

    total: Value = const(1)
    for item in iterate(interp, args[0]):
        total = interp.binary("MULTIPLY", total, item)
    return total


def list_extend(interp: Interpreter, target: ListValue, other: Value) -> None:
    for item in each(interp, other, hinted=True):
        target.change(interp.context, "append", item)


def _list(interp: Interpreter, args: Args) -> ListValue:
    if args[0].base is not list:
        raise unsupported(args[0], "a list method")
    return args[0]  # type: ignore[return-value]


@builtin(list.append)
def list_append(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    _list(interp, args).change(interp.context, "append", args[1])
    return NONE


@builtin(list.extend)
def _list_extend(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    list_extend(interp, _list(interp, args), args[1])
    return NONE


@builtin(list.insert)
def list_insert(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target, where = _list(interp, args), as_int(interp, args[1], "insert")
    if not is_index_sized(where):
        raise interp.throw(OverflowError, "Python int too large to convert to C ssize_t")
    target.change(interp.context, "insert", where, args[2])
    return NONE


@builtin(list.pop)
def list_pop(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _list(interp, args)
    where = as_int(interp, args[1], "pop") if len(args) > 1 else -1
    item = target.item(interp, where)
    if item is None:
        raise interp.throw(IndexError, "pop index out of range" if target.items else "pop from empty list")
    target.change(interp.context, "pop", where)
    return item


@builtin(list.clear)
def list_clear(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    _list(interp, args).change(interp.context, "clear")
    return NONE


@builtin(list.reverse)
def list_reverse(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    _list(interp, args).change(interp.context, "reverse")
    return NONE


@builtin(list.copy)
def list_copy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ListValue(list(_list(interp, args).items))


@builtin(list.__init__)
def list_init(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _list(interp, args)
    mutate(interp, target)
    target.items.clear()
    if len(args) > 1:
        list_extend(interp, target, args[1])
    return NONE


def _sequence(value: Any, what: str) -> Any:
    if value.base not in (list, tuple):
        raise unsupported(value, what)
    return value


def _bound(interp: Interpreter, value: Value) -> int:
    if interp.context.class_lookup(value.cls, "__index__") is MISSING:
        raise interp.throw(TypeError, "slice indices must be integers or have an __index__ method")
    return as_int(interp, value, "index")


@builtin(list.index, tuple.index)
def sequence_index(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _sequence(args[0], ".index()")
    bounds = [_bound(interp, a) for a in args[2:4]]
    n = len(target.items)
    start, stop, _ = slice(*bounds, *[None] * (2 - len(bounds))).indices(n)
    for i in range(start, stop):
        if i >= len(target.items):
            break  # a comparison of the program's made it shorter
        if interp.equal(interp.context.force(target.items[i]), args[1]):
            return const(i)
    kind = "tuple.index(x): x not in tuple" if target.base is tuple else None
    if kind is None:
        try:
            kind = f"{args[1].constant(interp)!r} is not in list"
        except GraphBreak:
            kind = "list.index(x): x not in list"
    raise interp.throw(ValueError, kind)


@builtin(list.count, tuple.count)
def sequence_count(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _sequence(args[0], ".count()")
    return const(sum(interp.equal(interp.context.force(v), args[1]) for v in list(target.items)))


@builtin(list.remove)
def list_remove(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _list(interp, args)
    for i, item in enumerate(list(target.items)):
        if interp.equal(interp.context.force(item), args[1]):
            mutate(interp, target)
            del target.items[i]
            return NONE
    raise interp.throw(ValueError, "list.remove(x): x not in list")


def _constants(interp: Interpreter, values: list[Value]) -> list[Any] | None:
    """Real constants to sort by, or None where one is not a constant."""
    if all(v.is_constant for v in values):
        return [v.value for v in values]  # type: ignore[attr-defined]
    try:
        return [v.constant(interp) for v in values]
    except GraphBreak:
        return None


class _Key:
    """The key that CPython's own sort compares in the place of a traced key, so that the program's `__lt__` is called
    for the same pairs in the same order."""

    __slots__ = ("interp", "value")

    def __init__(self, interp: Interpreter, value: Value) -> None:
        self.interp = interp
        self.value = value

    def __lt__(self, other: _Key) -> bool:

        return self.interp.truth(self.interp.finish_sync(self.interp.compare("<", self.value, other.value)))


def _sort(interp: Interpreter, values: list[Value], kwargs: Kwargs) -> None:
    """`values.sort(**kwargs)`; where a comparison raises, they are left half sorted, as CPython leaves them."""

    if kwargs.keys() - {"key", "reverse"} or not issubclass(kwargs.get("reverse", FALSE).cls, int):
        raise GraphBreak("unsupported_call", "a sort with arguments that it refuses")
    key, reverse = kwargs.get("key", NONE), interp.truth(kwargs.get("reverse", FALSE))
    plain_key = key.literal is None
    keys = values if plain_key else [interp.call_sync(key, [v]) for v in values]
    plain = _constants(interp, keys)
    if plain is None:
        plain = [_Key(interp, key) for key in keys]
    order = list(range(len(values)))
    before = values.copy()
    try:
        order.sort(key=plain.__getitem__, reverse=reverse)
    except SizeUnknown:
        raise
    except Exception as error:
        raise interp.raise_real(error) from None
    finally:
        values[:] = [before[i] for i in order]


@builtin(sorted)
def builtin_sorted(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1:
        raise GraphBreak("unsupported_call", "sorted() with arguments that it refuses")
    values = list(iterate(interp, args[0], hinted=True))
    _sort(interp, values, kwargs)
    return ListValue(values)


@builtin(list.sort)
def list_sort(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = _list(interp, args)
    if len(args) != 1:
        raise GraphBreak("unsupported_call", "list.sort() with arguments that it refuses")
    values = [interp.context.force(v) for v in target.items]
    mutate(interp, target)
    target.items = []  # what keys and comparisons see of it meanwhile
    try:
        _sort(interp, values, kwargs)
    finally:
        modified = bool(target.items)
        target.items = values
    if modified:
        raise interp.throw(ValueError, "list modified during sort")
    return NONE
