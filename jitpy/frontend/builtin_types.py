"""Instances and methods of the builtin types: list, tuple, dict, set, str, exceptions, and subclasses of them."""

from __future__ import annotations

import builtins
import collections
import types
from typing import Any

import torch

from .breaks import GraphBreak
from .calls import BUILTINS, as_int, builtin, call
from .executor import Executor
from .guards import MISSING
from .iteration import EnumerateIterator, FilterIterator, MapIterator, ZipIterator, get_iter, get_iter_sync, iterate
from .operators import constant_of, equal, key_of, mutate, set_keys
from .subscripts import slice_of
from .values.base import (
    FALSE,
    NONE,
    ConstValue,
    DictValue,
    DictViewValue,
    ExceptionValue,
    FunctionValue,
    ListValue,
    MethodValue,
    Missing,
    ObjectValue,
    PyValue,
    RangeValue,
    SetValue,
    SliceValue,
    SuperValue,
    TupleValue,
    Value,
    const,
    unsupported,
)

Args = list[Value]
Kwargs = dict[str, Value]


# -- making instances ---------------------------------------------------------------------------------------


def allocate(ex: Executor, cls: type, new: Any, args: Args, kwargs: Kwargs) -> ObjectValue:
    """What `cls.__new__(cls, ...)` makes, for a `__new__` in C."""
    if issubclass(cls, BaseException) and _base_new(cls) in (BaseException.__new__, *_EXCEPTION_NEWS):
        return ExceptionValue(cls, list(args))
    if new is object.__new__ and not _builtin_base(cls):
        made = ObjectValue(cls)
        made.born = ex.polyfill_caller() or ex.step
        return made
    if new is dict.__new__:
        return DictValue(None, cls)
    if new is list.__new__:
        return ListValue([], None, cls)
    if new is tuple.__new__:
        return TupleValue(iterate(ex, args[0]) if args else [], None, cls)
    if new is set.__new__:
        return SetValue({}, None, cls)
    if new is frozenset.__new__:
        return SetValue(_set_items(ex, args[0]) if args else {}, None, cls)
    raise GraphBreak("unsupported_call", f"{cls.__module__}.{cls.__qualname__}()")


_EXCEPTION_NEWS = {c.__new__ for c in vars(builtins).values() if isinstance(c, type) and issubclass(c, BaseException)
                   and c not in (BaseExceptionGroup, ExceptionGroup)}


def _base_new(cls: type) -> Any:
    return cls.__new__


def _builtin_base(cls: type) -> bool:
    """Whether a class has C state of its own below it."""
    from .world import _is_plain_instance

    return not _is_plain_instance(cls)


def c_init(ex: Executor, init: Any, made: ObjectValue, args: Args, kwargs: Kwargs) -> None:
    """Run an `__init__` in C on a fresh instance."""
    handler = BUILTINS.get(init)
    if handler is not None:
        handler(ex, [made, *args], kwargs)
        return
    if isinstance(made, ExceptionValue):
        if kwargs and made.cls.__init__ is BaseException.__init__:
            raise ex.throw(TypeError, f"{made.cls.__name__}() takes no keyword arguments")
        made.args = list(args)
        return
    if isinstance(made, (TupleValue,)) or init is object.__init__:
        return
    from .polyfills.registry import POLYFILLS

    body = POLYFILLS.get(init)
    if body is None:
        raise GraphBreak("unsupported_call", f"{made.cls.__name__}.__init__")
    ex.call_sync(ex.world.const_object(body), [made, *args], kwargs)


@builtin(object.__new__)
def object_new(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    cls = ex.world.pin(args[0])  # type: ignore[arg-type]
    return allocate(ex, cls, object.__new__, [], {})


@builtin(dict.__new__, collections.OrderedDict.__new__)
def dict_new(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return DictValue(None, ex.world.pin(args[0]))  # type: ignore[arg-type]


@builtin(list.__new__)
def list_new(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return ListValue([], None, ex.world.pin(args[0]))  # type: ignore[arg-type]


@builtin(tuple.__new__)
def tuple_new(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return TupleValue(iterate(ex, args[1]) if len(args) > 1 else [], None, ex.world.pin(args[0]))  # type: ignore[arg-type]


@builtin(set.__new__)
def set_new(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return SetValue({}, None, ex.world.pin(args[0]))  # type: ignore[arg-type]


@builtin(BaseException.__new__, *_EXCEPTION_NEWS)
def exception_new(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return ExceptionValue(ex.world.pin(args[0]), list(args[1:]))  # type: ignore[arg-type]


@builtin(BaseException.__init__, Exception.__init__)
def exception_init(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    if isinstance(args[0], ExceptionValue):
        args[0].args = list(args[1:])
        ex.world.writes += 1
    return NONE


@builtin(object.__init__)
def object_init(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    cls = args[0].cls
    if (len(args) > 1 or kwargs) and (ex.world.class_lookup(cls, "__init__") is not object.__init__
                                      or cls.__new__ is object.__new__):
        raise ex.throw(TypeError, "object.__init__() takes exactly one argument (the instance to initialize)")
    return NONE


@builtin(BaseException.with_traceback)
def exception_with_traceback(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return args[0]


@builtin(BaseException.__str__, BaseException.__repr__)
def exception_str(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return exception_text(ex, args[0], str)


def exception_text(ex: Executor, value: Value, function: Any) -> Value:
    """`str` or `repr` of an exception by its builtin base class, which may have its own rules (KeyError, OSError)."""
    if not isinstance(value, ExceptionValue):
        raise unsupported(value, f"{function.__name__}()")
    if function is str and len(value.args) == 1 and not issubclass(value.cls, KeyError):
        from .builtin_functions import to_str

        return ex.finish_sync(to_str(ex, value.args[0]))
    base = next(c for c in value.cls.__mro__ if c.__module__ == "builtins")
    text = function(base(*(constant_of(ex, a) for a in value.args)))
    return const(text.replace(base.__name__, value.cls.__name__, 1) if function is repr else text)


@builtin(list)
def make_list(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return ListValue(iterate(ex, args[0]) if args else [])


@builtin(tuple)
def make_tuple(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    if args and isinstance(args[0], TupleValue) and args[0].cls is tuple:
        return args[0]
    return TupleValue(iterate(ex, args[0]) if args else [])


@builtin(torch.Size)
def make_size(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return TupleValue(iterate(ex, args[0]) if args else [], None, torch.Size)


@builtin(torch.Size.numel)
def size_numel(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    from .operators import binary

    total: Value = const(1)
    for item in iterate(ex, args[0]):
        total = binary(ex, "MULTIPLY", total, item)
    return total


@builtin(dict)
def make_dict(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    made = DictValue()
    dict_update(ex, [made, *args], kwargs)
    return made


def _set_items(ex: Executor, iterable: Value) -> dict[Any, Value]:
    items: dict[Any, Value] = {}
    for value in iterate(ex, iterable):
        items.setdefault(key_of(ex, value), value)
    return items


@builtin(set)
def make_set(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return SetValue(_set_items(ex, args[0]) if args else {})


@builtin(frozenset)
def make_frozenset(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return SetValue(_set_items(ex, args[0]) if args else {}, None, frozenset)


@builtin(range)
def make_range(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    values = [a if not isinstance(a, ObjectValue) else const(as_int(ex, a, "range")) for a in args]
    for v in values:
        if not issubclass(v.cls, int):
            raise ex.throw(TypeError, f"{v.cls.__name__!r} object cannot be interpreted as an integer")
    if len(values) == 1:
        return RangeValue(const(0), values[0], const(1))
    step = values[2] if len(values) > 2 else const(1)
    if isinstance(step, ConstValue) and step.value == 0:
        raise ex.throw(ValueError, "range() arg 3 must not be zero")
    return RangeValue(values[0], values[1], step)


@builtin(slice)
def make_slice(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1:
        return SliceValue(NONE, args[0], NONE)
    return SliceValue(args[0], args[1], args[2] if len(args) > 2 else NONE)


@builtin(slice.indices)
def slice_indices(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    if not isinstance(args[0], SliceValue):
        raise unsupported(args[0], ".indices()")
    return TupleValue([const(i) for i in slice_of(ex, args[0]).indices(as_int(ex, args[1], "slice.indices"))])


@builtin(zip)
def make_zip(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    strict = kwargs.get("strict", FALSE)
    if isinstance(strict, ConstValue) and strict.value:
        from .polyfills.builtins_ import zip_strict

        return call(ex, ex.world.const_object(zip_strict), args, {})
    return ZipIterator([get_iter_sync(ex, a) for a in args])


@builtin(enumerate)
def make_enumerate(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    start = args[1] if len(args) > 1 else kwargs.get("start", const(0))
    return EnumerateIterator(get_iter_sync(ex, args[0] if args else kwargs["iterable"]), start)


@builtin(map)
def make_map(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return MapIterator(args[0], [get_iter_sync(ex, a) for a in args[1:]])


@builtin(filter)
def make_filter(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return FilterIterator(args[0], get_iter_sync(ex, args[1]))


@builtin(reversed)
def make_reversed(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    hook = ex.world.class_lookup(value.cls, "__reversed__")
    if isinstance(hook, types.FunctionType):
        return call(ex, ex.world.const_object(hook), [value], {})
    if isinstance(value, (DictValue, DictViewValue, TupleValue, ListValue, RangeValue)):
        return get_iter(ex, TupleValue(iterate(ex, value)[::-1]))
    if hook is MISSING and hasattr(value.cls, "__getitem__") and isinstance(value, ObjectValue):
        from .operators import length
        from .subscripts import get_item

        n = as_int(ex, length(ex, value), "reversed()")
        return get_iter(ex, TupleValue([ex.finish_sync(get_item(ex, value, const(i))) for i in range(n - 1, -1, -1)]))
    raise unsupported(value, "reversed()")


@builtin(types.MethodType)
def make_method(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return MethodValue(args[0], args[1])


@builtin(types.FunctionType)
def make_function(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    """`FunctionType(code, globals, name, defaults, closure)`, as resume points use it."""
    code, globals_ = args[0], args[1]
    if not isinstance(code, ConstValue) or not isinstance(globals_, DictValue) or globals_.real_dict is None:
        raise GraphBreak("unsupported_call", "types.FunctionType")
    name = args[2] if len(args) > 2 else NONE
    closure = args[4] if len(args) > 4 else NONE
    text = name.value if isinstance(name, ConstValue) and name.value is not None else code.value.co_name
    cells = [ex.world.force(c) for c in closure.items] if isinstance(closure, TupleValue) else None
    return FunctionValue(code.value, globals_.real_dict, name=text, qualname=code.value.co_qualname,
                         closure=cells)  # type: ignore[arg-type]


@builtin(super)
def make_super(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        frame = ex.frame
        cell = frame.cells.get("__class__")
        names = frame.code.co_varnames
        first = frame.locals.get(names[0]) if names else None
        if first is None and names and names[0] in frame.cells:
            first = ex.world.cell_content(frame.cells[names[0]])  # type: ignore[assignment]
        if cell is None or first is None or isinstance(first, Missing):
            raise ex.throw(RuntimeError, "super(): no arguments" if not names else "super(): __class__ cell not found")
        args = [ex.world.cell_content(cell), first]  # type: ignore[list-item]
    if len(args) < 2 or not isinstance(args[0], PyValue):
        raise GraphBreak("unsupported_call", "super() with one argument")
    start = ex.world.pin(args[0])
    obj = args[1]
    if isinstance(obj, PyValue) and isinstance(obj.obj, type) and issubclass(obj.obj, start):
        return SuperValue(start, obj, ex.world.pin(obj))
    if not issubclass(obj.cls, start):
        raise ex.throw(TypeError, "super(type, obj): obj must be an instance or subtype of type")
    return SuperValue(start, obj, obj.cls)


# -- list ---------------------------------------------------------------------------------------------------


def list_extend(ex: Executor, target: ListValue, other: Value) -> None:
    items = iterate(ex, other)
    mutate(ex, target)
    target.items.extend(items)


def _list(ex: Executor, args: Args) -> ListValue:
    if not isinstance(args[0], ListValue):
        raise unsupported(args[0], "a list method")
    return args[0]


@builtin(list.append)
def list_append(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    mutate(ex, target)
    target.items.append(args[1])
    return NONE


@builtin(list.extend)
def _list_extend(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    list_extend(ex, _list(ex, args), args[1])
    return NONE


@builtin(list.insert)
def list_insert(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    where = as_int(ex, args[1], "insert")
    mutate(ex, target)
    target.items.insert(where, args[2])
    return NONE


@builtin(list.pop)
def list_pop(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    where = as_int(ex, args[1], "pop") if len(args) > 1 else -1
    if not target.items:
        raise ex.throw(IndexError, "pop from empty list")
    if not -len(target.items) <= where < len(target.items):
        raise ex.throw(IndexError, "pop index out of range")
    mutate(ex, target)
    return ex.world.force(target.items.pop(where))


@builtin(list.clear)
def list_clear(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    mutate(ex, target)
    target.items.clear()
    return NONE


@builtin(list.reverse)
def list_reverse(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    mutate(ex, target)
    target.items.reverse()
    return NONE


@builtin(list.copy)
def list_copy(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return ListValue(list(_list(ex, args).items))


@builtin(list.__init__)
def list_init(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    items = iterate(ex, args[1]) if len(args) > 1 else []
    mutate(ex, target)
    target.items[:] = items
    return NONE


@builtin(list.index, tuple.index)
def sequence_index(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = args[0]
    if not isinstance(target, (ListValue, TupleValue)):
        raise unsupported(target, ".index()")
    n = len(target.items)
    start, stop, _ = slice(*(as_int(ex, a, "index") for a in (*args[2:4], *[const(n)] * (len(args) == 3)))).indices(n) \
        if len(args) > 3 else (slice(as_int(ex, args[2], "index"), None).indices(n) if len(args) > 2 else (0, n, 1))
    for i in range(start, stop):
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


def _plain_keys(ex: Executor, values: list[Value]) -> list[Any] | None:
    """Real constants to sort by, or None where one is not a constant."""
    if all(isinstance(v, ConstValue) for v in values):
        return [v.value for v in values]  # type: ignore[attr-defined]
    return None


def sort_values(ex: Executor, values: list[Value], key: Value, reverse: bool) -> list[Value] | None:
    """A stable sort, where all keys are constants."""
    plain_key = isinstance(key, ConstValue) and key.value is None
    keys = values if plain_key else [ex.call_sync(key, [v]) for v in values]
    plain = _plain_keys(ex, keys)
    if plain is None:
        try:
            plain = [constant_of(ex, k) for k in keys]
        except GraphBreak:
            return None
    try:
        order = sorted(range(len(values)), key=plain.__getitem__, reverse=reverse)
    except Exception as error:
        raise ex.raise_real(error) from None
    return [values[i] for i in order]


@builtin(sorted)
def builtin_sorted(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    from .operators import truth

    values = iterate(ex, args[0])
    result = sort_values(ex, values, kwargs.get("key", NONE), truth(ex, kwargs.get("reverse", FALSE)))
    if result is not None:
        return ListValue(result)
    from .polyfills.sequences import sorted as body

    return call(ex, ex.world.const_object(body), [ListValue(values)], kwargs)


@builtin(list.sort)
def list_sort(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _list(ex, args)
    result = ex.finish_sync(builtin_sorted(ex, [ListValue([ex.world.force(v) for v in target.items])], kwargs))
    mutate(ex, target)
    target.items[:] = result.items  # type: ignore[attr-defined]
    return NONE


# -- dict ---------------------------------------------------------------------------------------------------


def _dict(ex: Executor, args: Args) -> DictValue:
    if not isinstance(args[0], DictValue):
        raise unsupported(args[0], "a dict method")
    return args[0]


_ORDERED = collections.OrderedDict


@builtin(dict.__init__, _ORDERED.__init__)
def dict_init(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    return dict_update(ex, args, kwargs)


@builtin(dict.update, _ORDERED.update)
def dict_update(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    from .attributes import has_attr, load_attr
    from .subscripts import get_item, set_item

    target = _dict(ex, args)
    world = ex.world
    # dict's own methods never call an overridden `__setitem__`; those of OrderedDict do
    plain = not issubclass(target.cls, _ORDERED) or \
        world.class_lookup(target.cls, "__setitem__") is _ORDERED.__setitem__

    def put(key: Value, value: Value) -> None:
        if plain:
            world.dict_set(target, key_of(ex, key), value, key)
        else:
            ex.finish_sync(set_item(ex, target, key, value))

    if len(args) > 1:
        other = args[1]
        if isinstance(other, DictValue) and other.cls.__iter__ in (dict.__iter__, _ORDERED.__iter__):
            for key, value in world.dict_items(other):
                put(world.dict_key_value(other, key), value)
        elif isinstance(other, ObjectValue) and not isinstance(other, (ListValue, TupleValue, SetValue)) and \
                has_attr(ex, other, "keys"):
            for key in iterate(ex, ex.finish_sync(call(ex, load_attr(ex, other, "keys"), [], {}))):
                put(key, ex.finish_sync(get_item(ex, other, key)))
        else:
            for i, pair in enumerate(iterate(ex, other)):
                items = iterate(ex, pair)
                if len(items) != 2:
                    raise ex.throw(ValueError, f"dictionary update sequence element #{i} has length {len(items)}; "
                                               "2 is required")
                put(items[0], items[1])
    for name, value in kwargs.items():
        put(const(name), value)
    return NONE


@builtin(dict.get, types.MappingProxyType.get)
def dict_get(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    found = ex.world.dict_get(_dict(ex, args), key_of(ex, args[1]))
    return found if found is not None else args[2] if len(args) > 2 else NONE


@builtin(dict.setdefault, _ORDERED.setdefault)
def dict_setdefault(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(ex, args)
    key = key_of(ex, args[1])
    found = ex.world.dict_get(target, key)
    if found is not None:
        return found
    default = args[2] if len(args) > 2 else kwargs.get("default", NONE)
    ex.world.dict_set(target, key, default, args[1])
    return default


@builtin(dict.pop, _ORDERED.pop)
def dict_pop(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(ex, args)
    key = key_of(ex, args[1])
    found = ex.world.dict_get(target, key)
    if found is None:
        if len(args) > 2:
            return args[2]
        if "default" in kwargs:
            return kwargs["default"]
        raise ex.throw(KeyError, args[1])
    ex.world.dict_delete(target, key)
    return found


@builtin(dict.popitem, _ORDERED.popitem)
def dict_popitem(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(ex, args)
    pairs = ex.world.dict_items(target)
    if not pairs:
        raise ex.throw(KeyError, "popitem(): dictionary is empty" if target.cls is dict else "dictionary is empty")
    last = args[1] if len(args) > 1 else kwargs.get("last", const(True))
    key, value = pairs[-1 if not isinstance(last, ConstValue) or last.value else 0]
    made = TupleValue([ex.world.dict_key_value(target, key), value])
    ex.world.dict_delete(target, key)
    return made


@builtin(dict.clear, _ORDERED.clear)
def dict_clear(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(ex, args)
    for key, _ in ex.world.dict_items(target):
        ex.world.dict_delete(target, key)
    return NONE


@builtin(dict.copy)
def dict_copy(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    made = DictValue()
    dict_update(ex, [made, args[0]], {})
    return made


@builtin(_ORDERED.copy)
def ordered_copy(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    made = DictValue(None, args[0].cls)
    dict_update(ex, [made, args[0]], {})
    return made


@builtin(_ORDERED.move_to_end)
def ordered_move_to_end(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(ex, args)
    last = args[2] if len(args) > 2 else kwargs.get("last", const(True))
    key = key_of(ex, args[1])
    found = ex.world.dict_get(target, key)
    if found is None:
        raise ex.throw(KeyError, args[1])
    if not isinstance(last, ConstValue) or not last.value:
        others = [(k, v) for k, v in ex.world.dict_items(target) if k != key]
        for k, v in others:
            ex.world.dict_delete(target, k)
            ex.world.dict_set(target, k, v)
        return NONE
    ex.world.dict_delete(target, key)
    ex.world.dict_set(target, key, found, args[1])
    return NONE


def _view(kind: str) -> Any:
    def handler(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
        return DictViewValue(_dict(ex, args), kind)

    return handler


for _kind in ("keys", "values", "items"):
    BUILTINS[getattr(dict, _kind)] = _view(_kind)
    BUILTINS[getattr(_ORDERED, _kind)] = _view(_kind)
    BUILTINS[getattr(types.MappingProxyType, _kind)] = _view(_kind)


@builtin(_ORDERED.__setitem__)
def ordered_setitem(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    ex.world.dict_set(_dict(ex, args), key_of(ex, args[1]), args[2], args[1])
    return NONE


@builtin(collections.defaultdict.__init__)
def defaultdict_init(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    raise GraphBreak("unsupported_call", "collections.defaultdict()")


@builtin(collections.defaultdict.__missing__)
def defaultdict_missing(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    target = _dict(ex, args)
    if target.real is None or target.source is None:
        raise GraphBreak("unsupported_value", "a defaultdict made here")
    from .source import attr

    factory = ex.world.wrap(target.real.default_factory, attr(target.source, "default_factory"))
    if isinstance(factory, ConstValue):
        raise ex.throw(KeyError, args[1])
    made = ex.call_sync(factory, [])
    ex.world.dict_set(target, key_of(ex, args[1]), made, args[1])
    return made


# -- set ----------------------------------------------------------------------------------------------------


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
        items = _set_items(ex, other)
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
    left, right = _set_items(ex, a), _set_items(ex, b)
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
            items = _combine(name, items, _set_items(ex, other)) or {}
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
        return const(test(set(set_keys(ex, args[0])), set(_set_items(ex, args[1]))))

    return handler


for _method in ("issubset", "issuperset", "isdisjoint"):
    for _cls in (set, frozenset):
        BUILTINS[getattr(_cls, _method)] = _set_relation(getattr(set, _method))


# -- str ----------------------------------------------------------------------------------------------------


@builtin(str.join)
def str_join(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    parts = iterate(ex, args[1])
    if isinstance(args[0], ConstValue) and all(isinstance(p, ConstValue) for p in parts):
        try:
            return const(args[0].value.join([p.value for p in parts]))  # type: ignore[attr-defined]
        except TypeError as error:
            raise ex.raise_real(error) from None
    raise unsupported(args[0], ".join() of computed strings")


@builtin(str.format)
def str_format(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
    from .builtin_functions import formatting_constant

    template, *rest = (formatting_constant(ex, a) for a in args)
    try:
        return const(template.format(*rest, **{k: formatting_constant(ex, v) for k, v in kwargs.items()}))
    except Exception as error:
        raise ex.raise_real(error) from None


def _string_test(name: str) -> Any:
    def handler(ex: Executor, args: Args, kwargs: Kwargs) -> Any:
        try:
            return const(getattr(constant_of(ex, args[0]), name)(*(constant_of(ex, a) for a in args[1:])))
        except TypeError as error:
            raise ex.raise_real(error) from None

    return handler


for _name in ("startswith", "endswith"):
    BUILTINS[getattr(str, _name)] = _string_test(_name)

