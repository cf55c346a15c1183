"""Functions under `functools.lru_cache`: what is cached is read without a call, and each call is counted when it runs.

The cache itself is state that eager code sees (`cache_info()`, which object comes back, when an old one goes), so the
compiled code calls the real function once for each call traced, before it changes anything. The result is known:

- a hit gives the cached object, and a guard says that it is still the one;
- a miss whose body makes a constant without any effect, of a state not changed yet, gives that constant, cached
  meanwhile or not;
- a miss whose body makes another object without any effect becomes a hit: tracing calls the real function, and the
  next call that runs is taken for it (see `_Called`);
- a miss whose body does nothing with its arguments but log them (`warning_once`) gives the constant that it makes, as
  long as nothing was printed or logged before: compiled code calls it in front of all else that is;
- any other miss breaks the graph, until the first call has filled the cache.

Of numbers that change at each call nobody knows what is cached for them. There the body is traced, if it has no effect,
as if it were cached nowhere; such calls are not counted. Where such a result is changed, or an object of it leaves the
graph, so that the program could tell it from the cached one, the graph breaks at the call.
"""

from __future__ import annotations

import ctypes
import dis
import enum
import functools
import gc
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .... import logs
from ....runtime.lifetimes import held
from ...breaks import GraphBreak
from ...guards.source import ConstSource, GlobalsSource, Source
from ...interpreter.callees import builtin, calls_of
from ...interpreter.frame import TracedException
from ...interpreter.hash_keys import hashed_fields
from ...values import CONST_TYPES, ConstValue, Interpreter, PyValue, Value, compares_by_program
from ..tensors.higher_order import state_of

MISSING: Any = object()
_WRAPPER: Any = functools._lru_cache_wrapper  # type: ignore[attr-defined]
#: where the links of bounded caches have their results: behind two links, a hash and the key
_RESULT_OFFSET = object.__basicsize__ + 4 * ctypes.sizeof(ctypes.c_void_p)
#: the calls that tracing made in place of the next ones that run: keys by wrapper
_MADE_AHEAD: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class _Trace:
    """The state of one interpreter: results by wrapper and key, the wrappers that a call may add an entry to, and the
    results that were computed in place of what is cached: each with its parts, and the step of its call."""

    results: dict[Any, Value] = field(default_factory=dict)
    growing: set[Any] = field(default_factory=set)
    computed: list[tuple[Value, list[Value], int]] = field(default_factory=list)


_TRACES: weakref.WeakKeyDictionary[Interpreter, _Trace] = weakref.WeakKeyDictionary()


@calls_of(functools._lru_cache_wrapper)  # type: ignore[attr-defined]
def _call_cached(interp: Interpreter, fn: PyValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`fn(*args, **kwargs)` for a function under `lru_cache`."""
    wrapper = interp.context.pin(fn)
    source = fn.source or ConstSource(held(wrapper), fn.describe())
    what = f"{fn.describe()}, which is cached"
    plain = tuple(_plain(interp, a, what) for a in args)
    named = {k: _plain(interp, v, what) for k, v in kwargs.items()}
    entry = CacheEntry(wrapper, plain, named)
    trace = _TRACES.setdefault(interp, _Trace())
    place = (id(wrapper), entry.key)
    if _changes((plain, tuple(named.values()))):
        if place not in trace.results:
            value = trace.results[place] = _without_effects(interp, wrapper, args, kwargs, what)
            parts = list(_parts(value))
            trace.computed.append((value, parts, interp.step))
            interp.uncached.update((id(part), part) for part in parts if part.is_instance)
        return trace.results[place]
    known = trace.results.get(place)
    if known is None:
        known = trace.results[place] = _cached(interp, trace, entry, source, (args, kwargs), (plain, named), what)
    function = _Called(wrapper, entry.key) if entry.key in _MADE_AHEAD.get(wrapper, ()) else wrapper
    interp.early_calls.append((function, list(args), dict(kwargs)))
    interp.context.writes += 1
    return known


def _cached(interp: Interpreter, trace: _Trace, entry: CacheEntry, source: Source, traced: Any, plain: Any,
            what: str) -> Value:
    """The result that the cache has for the arguments, or will have; guarded."""
    result = entry.peek()
    may_miss = result is MISSING
    if may_miss and (said := _said(interp, entry.wrapper, traced, what)) is not None:
        result = said.value
    elif may_miss and all(getattr(value, "source", None) is None for value in interp.context.dirty):
        try:
            value = _without_effects(interp, entry.wrapper, *traced, what)
        except GraphBreak as error:
            logs.log("graph_breaks", f"{what}, cannot be traced: {error}")
            value = None
        if value is not None and value.is_constant:
            result = value.value
        elif value is not None and not any(map(_is_likeness, (*plain[0], *plain[1].values()))):
            result = _call_ahead(entry, plain)
            may_miss = False
    if result is MISSING:
        refused = GraphBreak("unsupported_call", f"{what} for the first time")
        refused.guards = [(source, "python", entry.holding(MISSING))]
        raise refused
    if entry.wrapper in trace.growing and not _is_constant(result):
        raise GraphBreak("unsupported_call", f"{what}: an earlier call may have replaced the cached object")
    if entry.bounded and may_miss:
        trace.growing.add(entry.wrapper)
    interp.context.guard(source, "python", entry.holding(result, may_miss))
    return interp.context.const_object(result)


def _call_ahead(entry: CacheEntry, plain: Any) -> Any:
    """Fill the cache, as the program is about to do."""
    args, kwargs = plain
    entry.wrapper(*args, **kwargs)
    _MADE_AHEAD.setdefault(entry.wrapper, set()).add(entry.key)
    return entry.peek()


class _Called:
    """A cached function whose next call has been made already."""

    def __init__(self, wrapper: Any, key: Any) -> None:
        self.wrapper = wrapper
        self.key = key

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        ahead = _MADE_AHEAD.get(self.wrapper, set())
        if self.key in ahead:
            ahead.discard(self.key)
        else:
            self.wrapper(*args, **kwargs)


def _said(interp: Interpreter, wrapper: Any, traced: Any, what: str) -> ConstValue | None:
    """The result of the body if it only logs something, whatever the program has changed so far."""
    args, kwargs = traced
    given = [*args, *kwargs.values()]
    if interp.host_calls or not _reads_arguments_only(wrapper.__wrapped__) or \
            any(one is changed for one in given for changed in interp.context.dirty):
        return None
    try:
        value = _without_effects(interp, wrapper, args, kwargs, what, may_log=True)
    except GraphBreak as error:
        logs.log("graph_breaks", f"{what}, cannot be traced: {error}")
        return None
    return value if value.is_constant else None


def _reads_arguments_only(function: Any) -> bool:
    """Whether a function looks at nothing but its arguments."""
    if not isinstance(function, types.FunctionType) or function.__code__.co_freevars:
        return False
    return not any(one.opname in _READING_ELSEWHERE for one in dis.get_instructions(function.__code__))


_READING_ELSEWHERE = ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME", "LOAD_BUILD_CLASS", "MAKE_FUNCTION")


def _without_effects(interp: Interpreter, wrapper: Any, args: list[Value], kwargs: dict[str, Value], what: str,
                     may_log: bool = False) -> Value:
    """The result of the body if it changes nothing, and without a tensor. Its log messages are left to the real
    call."""
    before, queued = (len(interp.builder.graph.nodes), state_of(interp)), len(interp.early_calls)
    try:
        value = interp.finish_sync(interp.call(interp.context.const_object(wrapper.__wrapped__), args, kwargs))
    except TracedException as error:
        raise GraphBreak("unsupported_call", f"{what} and raises {error.value.cls.__name__}") from None
    finally:
        del interp.early_calls[queued:]  # the cached calls in the body are made by the call itself
        if may_log:
            interp.host_calls.clear()
    if before != (len(interp.builder.graph.nodes), state_of(interp)):
        raise GraphBreak("unsupported_call", f"{what} and has an effect, or makes a tensor")
    return value


def changed_result(interp: Interpreter, leaves: Callable[[Value], bool]) -> int | None:
    """The step of a call whose result was computed in place of a cached object that the program changed, or that
    `leaves` the graph."""
    trace = _TRACES.get(interp)
    for value, parts, step in trace.computed if trace is not None else ():
        now = list(_parts(value))
        if len(now) != len(parts) or any(a is not b for a, b in zip(now, parts, strict=True)):
            return step
        if any(part.is_instance and leaves(part) for part in parts):
            return step
    return None


def _parts(value: Any) -> Iterator[Value]:
    """A value and what it holds."""
    if isinstance(value, Value):
        yield value
        for child in value.children() if value.is_instance else ():
            yield from _parts(child)


@dataclass(frozen=True)
class _Number:
    """A number that changes, as an argument: the same if it is the same value of the graph."""

    kind: type
    what: Any


def _plain(interp: Interpreter, value: Any, what: str) -> Any:
    """The real argument: a constant, an object of a module, known by identity, or a tuple of such."""
    if value.is_constant:
        return value.value
    if value.expr is not None:
        return _Number(int, value.expr)
    if value.scalar is not None:
        spec = value.traced.spec
        return _Number(spec.kind, value.traced.node if spec.expr is None else spec.expr)
    if value.base is tuple and value.cls in (tuple, torch.Size):
        return tuple(_plain(interp, item, what) for item in value.forced(interp))
    if isinstance(value.opaque, (type, types.ModuleType, enum.Enum)) and \
            not compares_by_program(type(value.obj)):
        return interp.context.pin(value)
    if value.is_instance and hashed_fields(value.cls) is not None:
        return value.key(interp)
    if value.is_instance and value.real is not None and value.source is not None and \
            type(value.real).__hash__ is object.__hash__:
        if _is_argument(value.source):
            real = interp.context.pin_instance(value)
        else:
            real = value.real
            interp.context.guard(value.source, "id", real)
        if real is not None:
            return real
    raise GraphBreak("unsupported_call", f"{what}, with {value.describe()}")


def _is_likeness(plain: Any) -> bool:
    """Whether a key stands for another object, which the function must not see."""
    return hashed_fields(type(plain)) is not None or isinstance(plain, tuple) and any(map(_is_likeness, plain))


def _changes(plain: Any) -> bool:
    return isinstance(plain, _Number) or isinstance(plain, tuple) and any(map(_changes, plain))


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


class CacheEntry:
    """One key of one cache."""

    def __init__(self, wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.wrapper = wrapper
        parameters = wrapper.cache_parameters()
        self.bounded = parameters["maxsize"] is not None
        if self.bounded and not _links_are_known():
            raise GraphBreak("unsupported_call", "a bounded cache in this build of Python")
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
        return ctypes.py_object.from_address(id(found) + _RESULT_OFFSET).value

    def holding(self, result: Any, may_miss: bool = False) -> Holds:
        return Holds(self, result, may_miss)


@functools.cache
def _links_are_known() -> bool:
    """Whether links of bounded caches look as expected: checked on one that is at hand."""
    mark = object()
    probe = functools.lru_cache(2)(lambda n: mark)
    probe(1)
    held = gc.get_referents(probe)
    cache = next(obj for obj in held if type(obj) is dict and 1 in obj)
    link = cache[1]
    if type(link).__basicsize__ < _RESULT_OFFSET + ctypes.sizeof(ctypes.c_void_p):
        return False
    return ctypes.c_void_p.from_address(id(link) + _RESULT_OFFSET).value == id(mark)


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
def cache_info(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    raise GraphBreak("unsupported_call", "a look into the cache of a function")
