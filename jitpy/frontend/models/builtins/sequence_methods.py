"""Lists, tuples, sorting."""

from __future__ import annotations

from typing import Any

import torch

from ....ir.sizes import SizeUnknown
from ...breaks import GraphBreak
from ...guards.guard_set import MISSING
from ...interpreter.calls import as_int, builtin, is_index_sized
from ...interpreter.interpreter import Executor
from ...interpreter.operators import constant_of, equal, mutate
from ...values.base import (
    FALSE,
    NONE,
    ConstValue,
    ListValue,
    ScalarValue,
    SymValue,
    TupleValue,
    Value,
    const,
    unsupported,
)
from .growing import change_list, list_item
from .iteration import each, iterate

Args = list[Value]
Kwargs = dict[str, Value]


@builtin(list)
def make_list(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return ListValue(iterate(ex, args[0], hinted=True) if args else [])


@builtin(tuple)
def make_tuple(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    if args and isinstance(args[0], TupleValue) and args[0].cls is tuple:
        return args[0]
    return TupleValue(iterate(ex, args[0], hinted=True) if args else [])


@builtin(torch.Size)
def make_size(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    sizes = iterate(ex, args[0], hinted=True) if args else []
    for size in sizes:
        if not isinstance(size, (ConstValue, SymValue, ScalarValue)) or not issubclass(size.cls, int):
            raise unsupported(size, "torch.Size()")
    return TupleValue(sizes, None, torch.Size)


@builtin(torch.Size.numel)
def size_numel(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    from ...interpreter.operators import binary

    total: Value = const(1)
    for item in iterate(ex, args[0]):
        total = binary(ex, "MULTIPLY", total, item)
    return total



def list_extend(ex: Executor, target: ListValue, other: Value) -> None:
    for item in each(ex, other, hinted=True):
        change_list(ex.world, target, "append", item)


def _list(ex: Executor, args: Args) -> ListValue:
    if not isinstance(args[0], ListValue):
        raise unsupported(args[0], "a list method")
    return args[0]


@builtin(list.append)
def list_append(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    change_list(ex.world, _list(ex, args), "append", args[1])
    return NONE


@builtin(list.extend)
def _list_extend(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    list_extend(ex, _list(ex, args), args[1])
    return NONE


@builtin(list.insert)
def list_insert(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target, where = _list(ex, args), as_int(ex, args[1], "insert")
    if not is_index_sized(where):
        raise ex.throw(OverflowError, "Python int too large to convert to C ssize_t")
    change_list(ex.world, target, "insert", where, args[2])
    return NONE


@builtin(list.pop)
def list_pop(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    where = as_int(ex, args[1], "pop") if len(args) > 1 else -1
    item = list_item(ex.world, target, where)
    if item is None:
        raise ex.throw(IndexError, "pop index out of range" if target.items else "pop from empty list")
    change_list(ex.world, target, "pop", where)
    return item


@builtin(list.clear)
def list_clear(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    change_list(ex.world, _list(ex, args), "clear")
    return NONE


@builtin(list.reverse)
def list_reverse(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    change_list(ex.world, _list(ex, args), "reverse")
    return NONE


@builtin(list.copy)
def list_copy(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return ListValue(list(_list(ex, args).items))


@builtin(list.__init__)
def list_init(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    mutate(ex, target)
    target.items.clear()
    if len(args) > 1:
        list_extend(ex, target, args[1])
    return NONE


def _bound(ex: Executor, value: Value) -> int:
    if ex.world.class_lookup(value.cls, "__index__") is MISSING:
        raise ex.throw(TypeError, "slice indices must be integers or have an __index__ method")
    return as_int(ex, value, "index")


@builtin(list.index, tuple.index)
def sequence_index(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = args[0]
    if not isinstance(target, (ListValue, TupleValue)):
        raise unsupported(target, ".index()")
    bounds = [_bound(ex, a) for a in args[2:4]]
    n = len(target.items)
    start, stop, _ = slice(*bounds, *[None] * (2 - len(bounds))).indices(n)
    for i in range(start, stop):
        if i >= len(target.items):
            break  # a comparison of the program's made it shorter
        if equal(ex, ex.world.force(target.items[i]), args[1]):
            return const(i)
    kind = "tuple.index(x): x not in tuple" if isinstance(target, TupleValue) else None
    if kind is None:
        try:
            kind = f"{constant_of(ex, args[1])!r} is not in list"
        except GraphBreak:
            kind = "list.index(x): x not in list"
    raise ex.throw(ValueError, kind)


@builtin(list.count, tuple.count)
def sequence_count(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = args[0]
    if not isinstance(target, (ListValue, TupleValue)):
        raise unsupported(target, ".count()")
    return const(sum(equal(ex, ex.world.force(v), args[1]) for v in list(target.items)))


@builtin(list.remove)
def list_remove(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    for i, item in enumerate(list(target.items)):
        if equal(ex, ex.world.force(item), args[1]):
            mutate(ex, target)
            del target.items[i]
            return NONE
    raise ex.throw(ValueError, "list.remove(x): x not in list")


def _constants(ex: Executor, values: list[Value]) -> list[Any] | None:
    """Real constants to sort by, or None where one is not a constant."""
    if all(isinstance(v, ConstValue) for v in values):
        return [v.value for v in values]  # type: ignore[attr-defined]
    try:
        return [constant_of(ex, v) for v in values]
    except GraphBreak:
        return None


class _Key:
    """What CPython's own sort compares in the place of a traced key, so that the program's `__lt__` is called for the
    same pairs in the same order."""

    __slots__ = ("ex", "value")

    def __init__(self, ex: Executor, value: Value) -> None:
        self.ex = ex
        self.value = value

    def __lt__(self, other: _Key) -> bool:
        from ...interpreter.operators import compare, truth

        return truth(self.ex, self.ex.finish_sync(compare(self.ex, "<", self.value, other.value)))


def _sort(ex: Executor, values: list[Value], kwargs: Kwargs) -> None:
    """`values.sort(**kwargs)`; where a comparison raises, they are left half sorted, as CPython leaves them."""
    from ...interpreter.operators import truth

    if kwargs.keys() - {"key", "reverse"} or not issubclass(kwargs.get("reverse", FALSE).cls, int):
        raise GraphBreak("unsupported_call", "a sort with arguments that it refuses")
    key, reverse = kwargs.get("key", NONE), truth(ex, kwargs.get("reverse", FALSE))
    plain_key = isinstance(key, ConstValue) and key.value is None
    keys = values if plain_key else [ex.call_sync(key, [v]) for v in values]
    plain = _constants(ex, keys)
    if plain is None:
        plain = [_Key(ex, key) for key in keys]
    order = list(range(len(values)))
    before = values.copy()
    try:
        order.sort(key=plain.__getitem__, reverse=reverse)
    except SizeUnknown:
        raise
    except Exception as error:
        raise ex.raise_real(error) from None
    finally:
        values[:] = [before[i] for i in order]


@builtin(sorted)
def builtin_sorted(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1:
        raise GraphBreak("unsupported_call", "sorted() with arguments that it refuses")
    values = list(iterate(ex, args[0], hinted=True))
    _sort(ex, values, kwargs)
    return ListValue(values)


@builtin(list.sort)
def list_sort(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    if len(args) != 1:
        raise GraphBreak("unsupported_call", "list.sort() with arguments that it refuses")
    values = [ex.world.force(v) for v in target.items]
    mutate(ex, target)
    target.items = []  # what keys and comparisons see of it meanwhile
    try:
        _sort(ex, values, kwargs)
    finally:
        modified = bool(target.items)
        target.items = values
    if modified:
        raise ex.throw(ValueError, "list modified during sort")
    return NONE
