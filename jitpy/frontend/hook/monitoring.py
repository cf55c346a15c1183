"""The hook's provider for machines without a compiler: pure Python, on `sys.monitoring` (3.12 and later).

A PY_START event tells that a frame starts, but cannot replace it. So the first frame of a code object that is met runs
as it is; the event's callback asks the handler, and gives every function that has this code a *redirecting* code
instead: the original instructions, behind a prefix that calls the dispatcher with the parameters and, if it finds a
callable, calls that and returns its value. From the next call on such a function behaves as under the native provider.
When the last jitted call ends, every function gets its own code back, and the events are turned off.

Its limits:
- The first call of each code object, and of each function made later from it, runs as it is.
- Functions that are made anew for each call (closures, lambdas in a body) are therefore not replaced; after a few of
  them the code object is left alone, because finding the functions of a code object walks through all objects.
- A replaced call has one frame more than under the native provider: the function's own, waiting in the prefix.
- While a jitted call runs, `func.__code__` of a redirected function is the redirecting code, in all threads
  (`original_code` finds the user's). In threads with no jitted call the prefix runs the original instructions.
- It costs microseconds per replaced call, and a pass over all code that runs at each outermost `enter`.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import threading
import weakref
from types import CodeType, FunctionType
from typing import Any

import bytecode

from .providers import Dispatcher, Handler, HookUnavailable, check_code, check_handler

_SCANS = 3  # how often the functions of one code object are looked for
_SUSPENDED = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)
_FUNCTION = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS


class _Record:
    """The record of a code object: its dispatcher (None: skip) and how often its functions were looked for."""

    def __init__(self, code: weakref.ref[CodeType], dispatcher: Dispatcher | None):
        self.code = code
        self.dispatcher = dispatcher
        self.scans = 0


class _Redirect:
    """The constant that a redirecting code calls. It must not keep its function alive."""

    def __init__(self, hook: MonitoringHook, record: _Record, function: FunctionType, original: CodeType):
        self.hook = hook
        self.record = record
        self.function = weakref.ref(function)
        self.original = original

    def __call__(self, *parameters: Any) -> Any:
        """The code that runs instead, or None."""
        return self.hook._look_up(self, parameters)


class _Local(threading.local):
    depth = 0  # calls between enter and leave in this thread
    busy = False  # the handler or a dispatcher runs: the hook is off


class MonitoringHook:
    """See the module. HookUnavailable where other tools hold every tool id of sys.monitoring."""

    def __init__(self) -> None:
        self._handler: Handler | None = None
        self._local = _Local()
        self._lock = threading.RLock()
        self._active_calls = 0  # in all threads
        self._installed = False
        self._records: dict[int, _Record] = {}  # by id(code); goes with the code object
        self._redirects: weakref.WeakKeyDictionary[FunctionType, CodeType] = weakref.WeakKeyDictionary()
        self._tool = _take_tool_id()
        sys.monitoring.register_callback(self._tool, sys.monitoring.events.PY_START, self._started)

    def close(self) -> None:
        """Give the tool id back. Not while a jitted call runs."""
        sys.monitoring.register_callback(self._tool, sys.monitoring.events.PY_START, None)
        sys.monitoring.free_tool_id(self._tool)

    def set_eval_frame(self, handler: Handler | None, /) -> Handler | None:
        check_handler(handler)
        former, self._handler = self._handler, handler
        return former

    def enter(self) -> None:
        self._local.depth += 1
        with self._lock:
            self._active_calls += 1
            if self._active_calls == 1:
                self._install()

    def leave(self) -> None:
        if not self._local.depth:
            raise RuntimeError("leave() without enter() in this thread")
        self._local.depth -= 1
        with self._lock:
            self._active_calls -= 1
            if self._active_calls == 0:
                self._uninstall()

    def suspend(self) -> int:
        depth = self._local.depth
        if depth:
            self._local.depth = 0
            with self._lock:
                self._active_calls -= depth
                if self._active_calls == 0:
                    self._uninstall()
        return depth

    def resume(self, calls: int, /) -> None:
        if calls:
            self._local.depth += calls
            with self._lock:
                if self._active_calls == 0:
                    self._install()
                self._active_calls += calls

    def is_active(self) -> bool:
        return self._local.depth > 0

    def is_installed(self) -> bool:
        return self._installed

    def skip_code(self, code: CodeType, /) -> None:
        check_code(code)
        code = self.original_code(code)
        self._restore(code)
        self._record(code, None)

    def forget_code(self, code: CodeType, /) -> None:
        check_code(code)
        code = self.original_code(code)
        self._restore(code)
        self._records.pop(id(code), None)
        if self._installed:
            sys.monitoring.restart_events()

    def code_state(self, code: CodeType, /) -> Any:
        check_code(code)
        record = self._records.get(id(self.original_code(code)))
        if record is None:
            return None
        return "skip" if record.dispatcher is None else record.dispatcher

    def original_code(self, code: CodeType) -> CodeType:
        """The user's code object behind a redirecting one; other code objects are returned as they are."""
        redirect = _redirect_of(code)
        return code if redirect is None else redirect.original

    # ---- events ----

    def _install(self) -> None:
        self._installed = True
        for function, code in list(self._redirects.items()):
            redirect = _redirect_of(code)
            if redirect is not None and function.__code__ is redirect.original:
                function.__code__ = code
            else:
                del self._redirects[function]  # somebody gave the function another code
        sys.monitoring.set_events(self._tool, sys.monitoring.events.PY_START)

    def _uninstall(self) -> None:
        self._installed = False
        sys.monitoring.set_events(self._tool, 0)
        for function, code in list(self._redirects.items()):
            _put_back(function, code)

    def _started(self, code: CodeType, _offset: int) -> Any:
        """A frame of this code starts, in any thread. Exceptions of the handler are raised by the call."""
        local = self._local
        if not local.depth or local.busy or _is_traced():
            return None
        record = self._records.get(id(code))
        if record is None:
            if self._handler is None:
                return None
            if _redirect_of(code) is not None:
                return sys.monitoring.DISABLE
            record = self._classify(code)
        if record.dispatcher is None:
            return sys.monitoring.DISABLE
        self._redirect_functions(code, record)
        return sys.monitoring.DISABLE if record.scans >= _SCANS else None

    def _classify(self, code: CodeType) -> _Record:
        flags = code.co_flags
        functions = [] if flags & _SUSPENDED or flags & _FUNCTION != _FUNCTION else _functions_of(code)
        function = _running(functions, sys._getframe(2)) if functions else None
        if function is None or self._handler is None:
            return self._record(code, None)
        self._local.busy = True
        try:
            dispatcher = self._handler(function, code)
        finally:
            self._local.busy = False
        return self._record(code, dispatcher)

    def _record(self, code: CodeType, dispatcher: Dispatcher | None) -> _Record:
        key = id(code)
        record = _Record(weakref.ref(code, lambda _: self._records.pop(key, None)), dispatcher)
        self._records[key] = record
        return record

    # ---- redirecting ----

    def _redirect_functions(self, code: CodeType, record: _Record) -> None:
        record.scans += 1
        for function in _functions_of(code):
            with self._lock:
                if self._installed and function.__code__ is code:
                    try:
                        made = _redirecting(code, _Redirect(self, record, function, code))
                    except (ValueError, IndexError):
                        return  # a form of code that the decoder does not know
                    self._redirects[function] = made
                    function.__code__ = made

    def _restore(self, code: CodeType) -> None:
        with self._lock:
            for function, made in list(self._redirects.items()):
                redirect = _redirect_of(made)
                if redirect is not None and redirect.original is code:
                    _put_back(function, made)
                    del self._redirects[function]

    def _look_up(self, redirect: _Redirect, parameters: tuple[Any, ...]) -> Any:
        local = self._local
        dispatcher = redirect.record.dispatcher
        if not local.depth or local.busy or dispatcher is None or _is_traced():
            return None
        if self._records.get(id(redirect.original)) is not redirect.record:
            return None  # the code was forgotten or skipped; this frame started before
        function = redirect.function()
        if function is None:
            return None
        local.busy = True
        try:
            return dispatcher(function, parameters)
        finally:
            local.busy = False


def _take_tool_id() -> int:
    for tool in (sys.monitoring.OPTIMIZER_ID, 4, 3):
        if sys.monitoring.get_tool(tool) is None:
            sys.monitoring.use_tool_id(tool, "jitpy")
            return tool
    raise HookUnavailable("no free tool id in sys.monitoring")


def _is_traced() -> bool:
    return sys.gettrace() is not None or sys.getprofile() is not None


def _functions_of(code: CodeType) -> list[FunctionType]:
    return [found for found in gc.get_referrers(code) if isinstance(found, FunctionType) and found.__code__ is code]


def _running(functions: list[FunctionType], frame: Any) -> FunctionType | None:
    """Which of the functions with this code does the frame belong to? Their closures tell, as far as they differ."""
    if len(functions) == 1:
        return functions[0]
    values = frame.f_locals
    missing = object()
    for function in functions:
        if function.__globals__ is not frame.f_globals:
            continue
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if all(_content(cell, missing) is values.get(name, missing) for name, cell in cells):
            return function
    return None


def _content(cell: Any, missing: object) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return missing


def _put_back(function: FunctionType, made: CodeType) -> None:
    redirect = _redirect_of(made)
    if redirect is not None and function.__code__ is made:
        function.__code__ = redirect.original


def _redirect_of(code: CodeType) -> _Redirect | None:
    for constant in reversed(code.co_consts):
        if type(constant) is _Redirect:
            return constant
    return None


def _redirecting(code: CodeType, redirect: _Redirect) -> CodeType:
    """The code with a prefix: `if (found := redirect(*parameters)) is not None: return found(*parameters)`."""
    body = bytecode.Bytecode.from_code(code)
    resume = next(i for i, step in enumerate(body) if isinstance(step, bytecode.Instr) and step.name == "RESUME")
    at_start = functools.partial(bytecode.Instr, location=body[resume].location)
    original = bytecode.Label()
    load = [
        at_start("LOAD_DEREF", bytecode.CellVar(name)) if name in code.co_cellvars else at_start("LOAD_FAST", name)
        for name in _parameters(code)
    ]
    call = [*load, at_start("CALL", len(load))]
    null = at_start("PUSH_NULL")
    target = at_start("LOAD_CONST", redirect)
    # 3.12 wants the NULL of a plain call below the callable, later versions above it.
    null_below = sys.version_info < (3, 13)
    body[resume + 1 : resume + 1] = [
        *([null, target] if null_below else [target, null]),
        *call,
        at_start("COPY", 1),
        at_start("POP_JUMP_IF_NONE", original),
        null,
        *([at_start("SWAP", 2)] if null_below else []),
        *call,
        at_start("RETURN_VALUE"),
        original,
        at_start("POP_TOP"),
    ]
    return body.to_code()


def _parameters(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]
