"""From a call to the compiled variant that fits it.

`make_dispatcher(...)` makes the callable that a jitted function (or a resume function) becomes: the native
`_jitpy_runtime.Dispatcher`, or `PythonDispatcher`, which means the same, where the native part cannot be had.

    dispatcher = make_dispatcher(code, globals, name=..., qualname=..., on_miss=compile_it, original=fn)

A call binds its arguments to the parameters of `code` in the order of `co_varnames` (positional, keyword-only, the
`*args` tuple, the `**kwargs` dict), finds the first entry whose guards hold (the one that served the last call is
tried first) and calls its code with all of them positionally. Where none holds, `on_miss(dispatcher, params, globals,
closure)` returns the entry to run (made by `dispatcher.add_entry`), or None: the original runs. A dispatcher that is
`closed` does not ask: it runs its original, and where that happens more often than that an entry fits, always.
After `review_in` calls that entries serve, it calls `on_review(dispatcher)` once.
Arguments that do not fit the signature go to the original, which raises Python's own TypeError.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from .. import config
from . import beside_dynamo
from .native_build import load_native, load_or_none

OnMiss = Callable[[Any, "tuple[Any, ...]", "dict[str, Any]", "tuple[Any, ...] | None"], "Any | None"]

#: calls of a closed dispatcher that no entry fits, less the others, before it looks for entries no more
_MOST_MISSED = 64

_enabled = True
_thread = threading.local()
_hook: tuple[Callable[[], None], Callable[[], None]] | None = None
_pause: tuple[Callable[[], int], Callable[[int], None]] = (lambda: 0, lambda calls: None)
_native: ModuleType | None = None  # the native module, once loaded; it keeps switches of its own


def native_runtime() -> ModuleType | None:
    """The native module, built where needed, or None."""
    global _native
    module = load_or_none("runtime")
    if module is not None and _native is None:
        module.set_enabled(_enabled)
        module.set_compiling(getattr(_thread, "compiling", False))
        if _hook is not None:
            module.set_hook_functions(*_hook)
        module.set_marks_function(beside_dynamo.look_at_marks)
        _native = module
    return module


def make_dispatcher(
    code: CodeType,
    globals: dict[str, Any],
    *,
    closure: tuple[Any, ...] | None = None,
    closure_first: bool = False,
    defaults: tuple[Any, ...] | None = None,
    kwdefaults: dict[str, Any] | None = None,
    name: str | None = None,
    qualname: str | None = None,
    on_miss: OnMiss,
    original: Callable[..., Any] | None = None,
    native: bool | None = None,
) -> Any:
    """A dispatcher for functions of `code`.

    closure_first: calls pass the closure tuple (or None) first, then every parameter positionally.
    defaults, kwdefaults: None for both reads those of `original` at each call, where that is a function of `code`.
    original: what runs eagerly; None makes a function of `code`.
    native: None takes the native type where it can be had; True raises NativeUnavailable where not.
    """
    if native:
        load_native("runtime")
    module = None if native is False else native_runtime()
    dispatcher_type = PythonDispatcher if module is None else module.Dispatcher
    return dispatcher_type(
        code,
        globals,
        closure=closure,
        closure_first=closure_first,
        defaults=defaults,
        kwdefaults=kwdefaults,
        name=name,
        qualname=qualname,
        on_miss=on_miss,
        original=original,
    )


def set_enabled(flag: bool) -> bool:
    """Turn all dispatchers on or off, for the process; off, every call runs the original. Returns what it was."""
    global _enabled
    before, _enabled = _enabled, bool(flag)
    if _native is not None:
        _native.set_enabled(bool(flag))
    return before


config.on_change("enabled", set_enabled)
set_enabled(config.enabled)


def set_compiling(flag: bool) -> bool:
    """Mark this thread as compiling: calls of dispatchers run their originals. Returns what it was.

    The mark is set by itself while `on_miss` runs.
    """
    before = is_compiling()
    _thread.compiling = bool(flag)
    if _native is not None:
        _native.set_compiling(bool(flag))
    return before


def is_compiling() -> bool:
    """Whether this thread is marked as compiling."""
    return _native.is_compiling() if _native is not None else getattr(_thread, "compiling", False)


def turned_off() -> bool:
    """Whether everything runs as plain Python. Native dispatchers ask for themselves."""
    if not is_compiling():
        beside_dynamo.look_at_marks()
    return not _enabled or beside_dynamo.forces_eager()


def set_hook_api(capsule: Any | None) -> None:
    """Connect the native dispatchers with the frame hook (`api` of the module `_jitpy_hook`); None disconnects."""
    module = native_runtime()
    if module is not None:
        module.set_hook_api(capsule)


def set_hook_functions(enter: Callable[[], None], leave: Callable[[], None]) -> None:
    """The functions that are called around entries with `needs_hook`, by native dispatchers where `set_hook_api` gave
    them nothing."""
    global _hook
    _hook = (enter, leave)
    module = native_runtime()
    if module is not None:
        module.set_hook_functions(enter, leave)


def set_hook_pause(suspend: Callable[[], int], resume: Callable[[int], None]) -> None:
    """The functions that `suspend_hook` and `resume_hook` call: those of `frontend/hook`."""
    global _pause
    _pause = (suspend, resume)


def suspend_hook() -> int:
    """Turn the frame hook off in this thread, for code none of which is the program's; what `resume_hook` takes."""
    return _pause[0]()


def resume_hook(calls: int) -> None:
    """Turn the frame hook on again, as it was at `suspend_hook`."""
    if calls:
        _pause[1](calls)


class PythonEntry:
    """One compiled variant; see `_jitpy_runtime.Entry`."""

    __slots__ = ("guard", "code", "needs_hook", "payload", "hits", "function", "__weakref__")
    frames = 0  # they are not counted here

    def __init__(self, guard: Any, code: CodeType, needs_hook: bool, payload: Any):
        self.guard = guard
        self.code = code
        self.needs_hook = needs_hook
        self.payload = payload
        self.hits = 0
        self.function: FunctionType | None = None

    def __repr__(self) -> str:
        return f"<Entry {self.code.co_qualname}, {self.hits} hits>"


class PythonDispatcher:
    """The dispatcher in pure Python."""

    def __init__(
        self,
        code: CodeType,
        globals: dict[str, Any],
        *,
        closure: tuple[Any, ...] | None = None,
        closure_first: bool = False,
        defaults: tuple[Any, ...] | None = None,
        kwdefaults: dict[str, Any] | None = None,
        name: str | None = None,
        qualname: str | None = None,
        on_miss: OnMiss,
        original: Callable[..., Any] | None = None,
    ):
        if not isinstance(code, CodeType) or not callable(on_miss) or not (original is None or callable(original)):
            raise TypeError("Dispatcher: an argument has the wrong type")
        self.code = code
        self.globals = globals
        self.closure = closure
        self.closure_first = closure_first
        self.on_miss = on_miss
        self.original = original
        self.run_original_always = False
        self.closed = False
        self.review_in = 0
        self.on_review: Callable[[Any], None] | None = None
        self._missed = 0
        self.__name__ = name or code.co_name
        self.__qualname__ = qualname or code.co_qualname
        self._entries: tuple[PythonEntry, ...] = ()
        self._last: PythonEntry | None = None
        self._n_named = code.co_argcount + code.co_kwonlyargcount
        self._has_varargs = bool(code.co_flags & inspect.CO_VARARGS)
        self._has_varkw = bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self._n_params = self._n_named + self._has_varargs + self._has_varkw
        self._n_free = len(code.co_freevars)
        if not closure_first and not self._closure_fits(closure):
            raise TypeError("Dispatcher: an argument has the wrong type")
        self._defaults = defaults
        self._kwdefaults = kwdefaults
        own_function = isinstance(original, FunctionType) and original.__code__ is code
        self._live = own_function and defaults is None and kwdefaults is None

    def _closure_fits(self, closure: Any) -> bool:
        return self._n_free == 0 or isinstance(closure, tuple) and len(closure) == self._n_free

    def __repr__(self) -> str:
        n = len(self._entries)
        return f"<jitted function {self.__qualname__}, {n} variant{'' if n == 1 else 's'}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        original = self.__dict__.get("original")
        if original is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(original, name)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return pickled_form(self)

    def __copy__(self) -> PythonDispatcher:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PythonDispatcher:
        return self

    # ---- entries ----------------------------------------------------

    @property
    def entries(self) -> list[PythonEntry]:
        """The entries, oldest first."""
        return list(self._entries)

    def add_entry(self, guard: Any, code: CodeType, needs_hook: bool = False, payload: Any = None) -> PythonEntry:
        """A new variant. `guard` has `check` (see GuardFunction), or is None: always holds.

        ValueError: code of another shape.
        """
        if not isinstance(code, CodeType):
            raise TypeError(f"an entry takes a code object, not {type(code).__name__}")
        flags = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
        positional = code.co_argcount == self._n_params and not code.co_kwonlyargcount and not code.co_flags & flags
        if not positional or len(code.co_freevars) not in (0, self._n_free):
            raise ValueError(f"{self.__qualname__}: compiled code must take {self._n_params} positional parameters "
                             f"and no or {self._n_free} free variables")
        entry = PythonEntry(guard, code, needs_hook, payload)
        self._entries = (*self._entries, entry)
        self._last = entry
        return entry

    def remove(self, entry: PythonEntry) -> None:
        """ValueError where it is not there."""
        if entry not in self._entries:
            raise ValueError("the entry is not in this dispatcher")
        self._entries = tuple(e for e in self._entries if e is not entry)
        if self._last is entry:
            self._last = None

    def clear(self) -> None:
        self._entries = ()
        self._last = None

    def explain_miss(self, params: tuple[Any, ...], globals: dict[str, Any] | None = None,
                     closure: tuple[Any, ...] | None = None) -> list[tuple[PythonEntry, list[str]]]:
        """For each entry, the guards that do not hold."""
        globals = self.globals if globals is None else globals
        closure = self.closure if closure is None else closure
        return [(e, [] if e.guard is None else e.guard.explain(params, globals, closure)) for e in self._entries]

    # ---- the call ----------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        changed = self._live and self.original.__code__ is not self.code  # type: ignore[union-attr]
        if turned_off() or self.run_original_always or changed or is_compiling():
            return self._call_original(args, kwargs)
        closure = self.closure
        if self.closure_first:
            if kwargs or len(args) != self._n_params + 1 or not self._closure_fits(args[0]):
                raise TypeError(f"{self.__qualname__} takes its closure and {self._n_params} positional arguments")
            closure, params = args[0], args[1:]
        else:
            params = self._bind(args, kwargs)  # type: ignore[assignment]
            if params is None:
                return self._call_original(args, kwargs)
        entry = self.choose(params, self.globals, closure)
        if entry is None:
            return self._call_original(args, kwargs)
        entry.hits += 1
        function = self._function(entry, closure)
        if not entry.needs_hook or _hook is None:
            return function(*params)
        enter, leave = _hook
        enter()
        try:
            return function(*params)
        finally:
            leave()

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """All parameters in the order of co_varnames; None where the arguments do not fit."""
        code = self.code
        n_positional = code.co_argcount
        if len(args) == n_positional == self._n_params and not kwargs:
            return args
        if len(args) > n_positional and not self._has_varargs:
            return None
        names = code.co_varnames
        bound = dict(zip(names, args[:n_positional], strict=False))
        extra: dict[str, Any] = {}
        by_keyword = names[code.co_posonlyargcount : self._n_named]
        for key, value in kwargs.items():
            if key in by_keyword:
                if key in bound:
                    return None
                bound[key] = value
            elif self._has_varkw:
                extra[key] = value
            else:
                return None
        original = self.original
        defaults, kwdefaults = self._defaults, self._kwdefaults
        if self._live and original is not None:
            defaults, kwdefaults = original.__defaults__, original.__kwdefaults__
        by_default = dict(zip(names[n_positional - len(defaults or ()) : n_positional], defaults or (), strict=True))
        by_default.update({k: v for k, v in (kwdefaults or {}).items() if k in names[n_positional : self._n_named]})
        values = []
        for name in names[: self._n_named]:
            if name in bound:
                values.append(bound[name])
            elif name in by_default:
                values.append(by_default[name])
            else:
                return None
        if self._has_varargs:
            values.append(args[n_positional:])
        if self._has_varkw:
            values.append(extra)
        return tuple(values)

    def choose(self, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> PythonEntry | None:
        """The entry to run, None where the original runs."""
        entry = self._find(params, globals, closure)
        if entry is not None:
            self._missed = max(self._missed - 1, 0)
            if self.review_in > 0:
                self.review_in -= 1
                if not self.review_in:
                    self._review()
            return entry
        if not self.closed:
            return self._miss(params, globals, closure)
        self._missed += 1
        if self._missed > _MOST_MISSED:
            self.run_original_always = True
        return None

    def _find(self, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> PythonEntry | None:
        last, entries = self._last, self._entries
        if last is not None and _holds(last, params, globals, closure):
            return last
        for entry in entries:
            if entry is not last and _holds(entry, params, globals, closure):
                if entries is self._entries:
                    self._last = entry
                return entry
        return None

    def _miss(self, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> PythonEntry | None:
        before = set_compiling(True)
        try:
            answer = self.on_miss(self, params, globals, closure)
        finally:
            set_compiling(before)
        if answer is not None and not isinstance(answer, PythonEntry):
            raise TypeError(f"on_miss must return an Entry or None, not {type(answer).__name__}")
        return answer

    def _review(self) -> None:
        before = set_compiling(True)
        try:
            if self.on_review is not None:
                self.on_review(self)
        finally:
            set_compiling(before)

    def _function(self, entry: PythonEntry, closure: Any) -> FunctionType:
        own = self._n_free == 0 or closure is self.closure
        if not own:
            return _make_function(entry.code, self.globals, closure)
        if entry.function is None:
            entry.function = _make_function(entry.code, self.globals, closure)
        return entry.function

    def _call_original(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = self.closure
        if self.closure_first:
            if not args:
                raise TypeError(f"{self.__qualname__} needs its closure as the first argument")
            closure, args = args[0], args[1:]
        if self.original is not None:
            return self.original(*args, **kwargs)
        function = _make_function(self.code, self.globals, closure)
        function.__defaults__ = self._defaults
        function.__kwdefaults__ = self._kwdefaults
        return function(*args, **kwargs)


def pickled_form(dispatcher: Any) -> str | tuple[Any, ...]:
    """`__reduce__` of a dispatcher: the name under which its module has it, or what makes another one like it."""
    space = sys.modules.get(getattr(dispatcher, "__module__", None) or "")
    found: Any = space
    for part in dispatcher.__qualname__.split("."):
        found = getattr(found, part, None)
    again = getattr(dispatcher.on_miss, "again", None)
    if found is dispatcher or again is None:
        return dispatcher.__qualname__
    for name, value in list(vars(space).items()) if space is not None else ():
        if value is dispatcher:
            return name
    return again(dispatcher.original)


def _holds(entry: PythonEntry, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> bool:
    return entry.guard is None or entry.guard.check(params, globals, closure)


def _make_function(code: CodeType, globals: dict[str, Any], closure: Any) -> FunctionType:
    return types.FunctionType(code, globals, code.co_name, None, closure if code.co_freevars else None)


def update_wrapper(dispatcher: Any, function: Callable[..., Any]) -> Any:
    """Give a dispatcher the name, doc, module and `__wrapped__` of the function that it stands for; returns it."""
    return functools.update_wrapper(dispatcher, function)


beside_dynamo.hide_all(globals())
beside_dynamo.keep_out(PythonDispatcher.__call__)
