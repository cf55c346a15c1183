"""Functions under `functools.lru_cache`: what is cached is read without a call, and each call is counted when it runs.

The cache itself is state that eager code sees (`cache_info()`, which object comes back, when an old one goes), so the
compiled code calls the real function once for each call traced, before it changes anything. The result is known:

- a hit gives the cached object, and a guard says that it is still the one;
- a miss whose body makes a constant without any effect, of a state not changed yet, gives that constant, cached
  meanwhile or not;
- any other miss breaks the graph, until the first call has filled the cache.
"""

from __future__ import annotations

import enum
import functools
import gc
import types
import weakref
from typing import Any

from ...runtime.lifetimes import held
from ..breaks import GraphBreak
from ..calls import builtin, call
from ..executor import Executor, TracedException
from ..source import ConstSource, GlobalsSource, Source
from ..values.base import CONST_TYPES, ConstValue, ObjectValue, PyValue, Value

MISSING: Any = object()
#: results in the trace of an executor, by wrapper and key
_RESULTS: weakref.WeakKeyDictionary[Executor, dict[Any, Value]] = weakref.WeakKeyDictionary()
_WRAPPER: Any = functools._lru_cache_wrapper  # type: ignore[attr-defined]


def call_cached(ex: Executor, fn: PyValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`fn(*args, **kwargs)` for a function under `lru_cache`."""
    wrapper = ex.world.pin(fn)
    source = fn.source or ConstSource(held(wrapper), fn.describe())
    what = f"{fn.describe()}, which is cached"
    plain = tuple(_plain(ex, a, what) for a in args)
    named = {k: _plain(ex, v, what) for k, v in kwargs.items()}
    entry = CacheEntry(wrapper, plain, named)
    known = _RESULTS.setdefault(ex, {})
    place = (id(wrapper), entry.key)
    result = entry.peek()
    if place in known:
        value: Any = known[place]
    elif result is MISSING or _is_constant(result):
        value = ex.world.const_object(result)
        if result is MISSING:
            value = _constant_result(ex, wrapper, args, kwargs, what)
        if value is None:
            refused = GraphBreak("unsupported_call", f"{what} for the first time")
            refused.guards = [(source, "python", entry.holding(MISSING))]
            raise refused
        constant = value.value if isinstance(value, ConstValue) else result
        ex.world.guard(source, "python", entry.holding(constant, may_miss=result is MISSING))
    else:
        if entry.bounded and any(function is wrapper for function, _, _ in ex.early_calls):
            raise GraphBreak("unsupported_call", f"{what}: an earlier call may have replaced the cached object")
        ex.world.guard(source, "python", entry.holding(result))
        value = ex.world.const_object(result)
    known[place] = value
    ex.early_calls.append((wrapper, list(args), dict(kwargs)))
    ex.world.writes += 1
    return value


def _plain(ex: Executor, value: Value, what: str) -> Any:
    """The real argument: a constant, or an object of a module, known by identity."""
    if isinstance(value, ConstValue):
        return value.value
    if isinstance(value, PyValue) and isinstance(value.obj, (type, types.ModuleType, enum.Enum)):
        return ex.world.pin(value)
    if isinstance(value, ObjectValue) and value.real is not None and value.source is not None and \
            not _is_argument(value.source) and type(value.real).__hash__ is object.__hash__:
        ex.world.guard(value.source, "id", value.real)
        return value.real
    raise GraphBreak("unsupported_call", f"{what}, with {value.describe()}")


def _is_argument(source: Source) -> bool:
    """Whether a path starts at an argument or a closure: such objects are many, and one entry each would be wasted."""
    base: Source | None = source
    while base is not None:
        if isinstance(base, (ConstSource, GlobalsSource)):
            return False
        base = base.base
    return True


def _is_constant(obj: Any) -> bool:
    return type(obj) in CONST_TYPES


def _constant_result(ex: Executor, wrapper: Any, args: list[Value], kwargs: dict[str, Value],
                     what: str) -> ConstValue | None:
    """What the body makes, if it is a constant made without an effect, of the state that the real call will meet."""
    if ex.world.dirty:
        return None
    before = (len(ex.recorder.graph.nodes), ex.world.writes, len(ex.host_calls))
    try:
        value = ex.finish_sync(call(ex, ex.world.const_object(wrapper.__wrapped__), args, kwargs))
    except TracedException as error:
        raise GraphBreak("unsupported_call", f"{what} and raises {error.value.cls.__name__}") from None
    same = before == (len(ex.recorder.graph.nodes), ex.world.writes, len(ex.host_calls))
    return value if same and isinstance(value, ConstValue) else None


class CacheEntry:
    """One key of one cache."""

    def __init__(self, wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.wrapper = wrapper
        parameters = wrapper.cache_parameters()
        self.bounded = parameters["maxsize"] is not None
        held = gc.get_referents(wrapper)
        at = max(i for i, obj in enumerate(held) if obj is wrapper.__wrapped__)
        self.cache: dict[Any, Any] = held[at - 1]
        mark = held[at + 1]
        self.key = self._make_key(args, kwargs, parameters["typed"], mark)

    def _make_key(self, args: tuple[Any, ...], kwargs: dict[str, Any], typed: bool, mark: Any) -> Any:
        if not typed and not kwargs and len(args) == 1 and type(args[0]) in (int, str):
            return args[0]
        key = (*args, mark, *(x for pair in kwargs.items() for x in pair)) if kwargs else args
        return (*key, *map(type, args), *map(type, kwargs.values())) if typed else key

    def peek(self) -> Any:
        """The cached object or MISSING; the cache does not notice."""
        found = self.cache.get(self.key, MISSING)
        if found is MISSING or not self.bounded:
            return found
        held = gc.get_referents(self.wrapper)  # (key, result) of each entry, then the cache, the function, ...
        for i, obj in enumerate(held):
            if obj is self.cache:
                break
            if type(obj) is type(self.key) and obj == self.key:
                return held[i + 1]
        return MISSING

    def holding(self, result: Any, may_miss: bool = False) -> Holds:
        return Holds(self, result, may_miss)


class Holds:
    """Guard predicate: the cache holds this object, or an equal constant of the same type."""

    def __init__(self, entry: CacheEntry, result: Any, may_miss: bool) -> None:
        self.entry = entry
        self.result = result
        self.may_miss = may_miss

    def __call__(self, wrapper: Any) -> bool:
        if wrapper is not self.entry.wrapper:
            return False
        found = self.entry.peek()
        if found is self.result:
            return True
        if found is MISSING:
            return self.may_miss
        return type(found) is type(self.result) and _is_constant(found) and found == self.result

    def __repr__(self) -> str:
        return "is not cached" if self.result is MISSING else f"has {self.result!r} cached"


@builtin(_WRAPPER.cache_info, _WRAPPER.cache_clear)
def cache_info(ex: Executor, args: list[Value], kwargs: dict[str, Value]) -> Any:
    raise GraphBreak("unsupported_call", "a look into the cache of a function")
