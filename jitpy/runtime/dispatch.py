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

import contextlib
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
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


def make_dispatcher(code: CodeType, globals: dict[str, Any], *, name: str | None = None, qualname: str | None = None,
                    on_miss: OnMiss, original: FunctionType | None = None, native: bool | None = None) -> Any:
    """A dispatcher for functions of `code`.

    original: the function of `code` that it stands for, which has its closure and defaults. None: calls pass the
    closure tuple (or None) first, then every parameter positionally.
    native: None takes the native type where it can be had; True raises NativeUnavailable where not.
    """
    if native:
        load_native("runtime")
    module = None if native is False else native_runtime()
    dispatcher_type = PythonDispatcher if module is None else module.Dispatcher
    return dispatcher_type(code, globals, name or code.co_name, qualname or code.co_qualname, on_miss, original)


def explain_miss(dispatcher: Any, params: tuple[Any, ...], globals: dict[str, Any] | None = None,
                 closure: tuple[Any, ...] | None = None) -> list[tuple[Any, list[str]]]:
    """For each entry, the guards that do not hold."""
    globals = dispatcher.globals if globals is None else globals
    return [(e, [] if e.guard is None else e.guard.explain(params, globals, closure)) for e in dispatcher.entries]


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

    def __init__(self, code: CodeType, globals: dict[str, Any], name: str, qualname: str, on_miss: OnMiss,
                 original: FunctionType | None) -> None:
        if not callable(on_miss) or original is not None and getattr(original, "__code__", None) is not code:
            raise TypeError("Dispatcher: an argument has the wrong type")
        self.code = code
        self.globals = globals
        self.closure_first = original is None
        self.on_miss = on_miss
        self.original = original
        self.run_original_always = False
        self.closed = False
        self.review_in = 0
        self.on_review: Callable[[Any], None] | None = None
        self._missed = 0
        self.__name__ = name
        self.__qualname__ = qualname
        self._entries: tuple[PythonEntry, ...] = ()
        self._last: PythonEntry | None = None
        self._n_params = len(_parameters(code))
        self._n_free = len(code.co_freevars)
        self._bind: Any = None if original is None else _binder(code)

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

    # ---- the call ----------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        original = self.original
        changed = original is not None and original.__code__ is not self.code
        if turned_off() or self.run_original_always or changed or is_compiling():
            return self._call_original(args, kwargs)
        if original is None:
            if kwargs or len(args) != self._n_params + 1 or not self._closure_fits(args[0]):
                raise TypeError(f"{self.__qualname__} takes its closure and {self._n_params} positional arguments")
            closure, params = args[0], args[1:]
        else:
            closure, bind = original.__closure__, self._bind
            bind.__defaults__, bind.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
            params = None
            with contextlib.suppress(TypeError):
                params = bind(*args, **kwargs)
        if params is None or (entry := self.choose(params, self.globals, closure)) is None:
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

    def choose(self, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> PythonEntry | None:
        """The entry to run, None where the original runs."""
        entry = self._find(params, globals, closure)
        if entry is not None:
            self._missed = max(self._missed - 1, 0)
            if self.review_in > 0:
                self.review_in -= 1
                if not self.review_in and self.on_review is not None:
                    with _compiling():
                        self.on_review(self)
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
        with _compiling():
            answer = self.on_miss(self, params, globals, closure)
        if answer is not None and not isinstance(answer, PythonEntry):
            raise TypeError(f"on_miss must return an Entry or None, not {type(answer).__name__}")
        return answer

    def _function(self, entry: PythonEntry, closure: Any) -> FunctionType:
        if self.original is None and self._n_free:
            return _make_function(entry.code, self.globals, closure)
        if entry.function is None:
            entry.function = _make_function(entry.code, self.globals, closure)
        return entry.function

    def _call_original(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.original is not None:
            return self.original(*args, **kwargs)
        if not args:
            raise TypeError(f"{self.__qualname__} needs its closure as the first argument")
        return _make_function(self.code, self.globals, args[0])(*args[1:], **kwargs)


def _parameters(code: CodeType) -> tuple[str, ...]:
    flags = code.co_flags
    count = code.co_argcount + code.co_kwonlyargcount + bool(flags & inspect.CO_VARARGS) + \
        bool(flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def _binder(code: CodeType) -> Any:
    """A function with the parameters of `code` that returns them in the order of co_varnames."""
    names = _parameters(code)
    space: dict[str, Any] = {}
    exec(f"def bind({', '.join(f'p{i}' for i in range(len(names)))}): "
         f"return ({''.join(f'p{i}, ' for i in range(len(names)))})", space)
    bind: FunctionType = space["bind"]
    flags = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    bind.__code__ = bind.__code__.replace(
        co_argcount=code.co_argcount, co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount, co_flags=bind.__code__.co_flags | code.co_flags & flags,
        co_varnames=names)
    return bind


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


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    before = set_compiling(True)
    try:
        yield
    finally:
        set_compiling(before)


def _holds(entry: PythonEntry, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> bool:
    return entry.guard is None or entry.guard.check(params, globals, closure)


def _make_function(code: CodeType, globals: dict[str, Any], closure: Any) -> FunctionType:
    return types.FunctionType(code, globals, code.co_name, None, closure if code.co_freevars else None)


def update_wrapper(dispatcher: Any, function: Callable[..., Any]) -> Any:
    """Give a dispatcher the name, doc, module and `__wrapped__` of the function that it stands for; returns it."""
    return functools.update_wrapper(dispatcher, function)


beside_dynamo.hide_all(globals())
beside_dynamo.keep_out(PythonDispatcher.__call__)
