"""The `set_eval_frame` shim: while a jitted call runs in a thread, Python frames below it can be replaced.

    select("auto")                     # native where it can be built, else monitoring (3.12+), else none
    set_eval_frame(handler)            # handler(func, code) -> dispatcher or None, asked once per code object
    enter()                            # a jitted call that needs the hook starts in this thread
    try: ...                           # frames met here are replaced
    finally: leave()

A dispatcher is what the handler returned for a code object; it lives as long as that code object. It is called as
`dispatcher(func, parameters)` for each frame of the code, with the parameters as bound (positional, keyword-only, the
`*args` tuple, the `**kwargs` dict), and returns a callable that takes exactly these positionally and runs instead, or
None to run the frame as it is. Native code can set a C function for that (`jitpy/native/hook_api.h`). Handler,
dispatcher and what they call run with the hook off; their exceptions are raised by the call. The callable's own code
must be skipped (`skip_code`), or it would be looked up as well.

Never replaced: frames of generators and coroutines, class and module bodies, and all frames under sys.settrace or
sys.setprofile. A replaced frame holds its parameters until the call ends.

Providers: "native" (PEP 523, a C module) replaces the very frame; "monitoring" is pure Python, and `monitoring.py` says
what it cannot do; "none" runs everything as it is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

from .providers import Dispatcher, Handler, HookUnavailable, NoHook, Provider

__all__ = [
    "Dispatcher",
    "Handler",
    "HookUnavailable",
    "code_state",
    "enter",
    "forget_code",
    "is_active",
    "is_installed",
    "leave",
    "native_api",
    "original_code",
    "provider_name",
    "resume",
    "select",
    "set_eval_frame",
    "skip_code",
    "suspend",
    "why_not_native",
]

PROVIDERS = ("auto", "native", "monitoring", "none")


_lock = threading.Lock()
_provider: Provider | None = None
_name = "none"
_native_reason = ""


def select(provider: str = "auto", load_native: Callable[[], Any] | None = None) -> str:
    """Choose the provider; its name. The handler moves along; not while a jitted call is running.

    provider: "auto", "native", "monitoring" or "none"; others are a ValueError.
    load_native: gives the native module, or raises an exception that says why there is none (default: build it).
    HookUnavailable where a provider that is named cannot be had.
    """
    global _provider, _name, _native_reason
    if provider not in PROVIDERS:
        raise ValueError(f"unknown hook provider {provider!r}; there are: {', '.join(PROVIDERS)}")
    with _lock:
        if _provider is not None and (_provider.is_active() or _provider.is_installed()):
            raise RuntimeError("the hook's provider cannot be changed while a jitted call is running")
        chosen, name, reason = _choose(provider, load_native or _build_native)
        handler = _provider.set_eval_frame(None) if _provider is not None else None
        chosen.set_eval_frame(handler)
        close = getattr(_provider, "close", None)
        if close is not None:
            close()
        _provider, _name, _native_reason = chosen, name, reason
    return name


def set_eval_frame(handler: Handler | None) -> Handler | None:
    """Set who is asked about new code objects (None: nobody); the former handler. Answers given stay in force."""
    return _current().set_eval_frame(handler)


def enter() -> None:
    """A jitted call that needs the hook starts in this thread. Calls nest; each needs a `leave`, also if it raises."""
    _current().enter()


def leave() -> None:
    """The call ended. RuntimeError without a call to `enter` in this thread."""
    _current().leave()


def suspend() -> int:
    """Turn the hook off in this thread until `resume` gets the number that is returned: 0 where it is off already."""
    return _current().suspend()


def resume(calls: int) -> None:
    """Turn the hook on again, as it was at `suspend`."""
    _current().resume(calls)


def is_active() -> bool:
    """Is this thread between `enter` and `leave`?"""
    return _current().is_active()


def is_installed() -> bool:
    """Is the hook installed in the interpreter now? Only while some thread is active."""
    return _current().is_installed()


def skip_code(code: CodeType) -> None:
    """Run frames of this code object as they are, from now on. TypeError for another object."""
    _current().skip_code(code)


def forget_code(code: CodeType) -> None:
    """Ask the handler again when a frame of this code object is met. TypeError for another object."""
    _current().forget_code(code)


def code_state(code: CodeType) -> Any:
    """None (not met yet), "skip", or the dispatcher of a code object."""
    return _current().code_state(code)


def provider_name() -> str:
    """ "native", "monitoring" or "none"."""
    _current()
    return _name


def why_not_native() -> str:
    """Why the native provider is not in use; "" where it is, or was not tried."""
    _current()
    return _native_reason


def native_api() -> Any:
    """The PyCapsule of a JitpyHookApi (`jitpy/native/hook_api.h`); None where the provider is not the native one."""
    return getattr(_current(), "api", None)


def original_code(code: CodeType) -> CodeType:
    """The code as the user wrote it: the monitoring provider swaps functions' code while a jitted call runs."""
    unwrap = getattr(_current(), "original_code", None)
    return code if unwrap is None else unwrap(code)


def _current() -> Provider:
    if _provider is None:
        select("auto")
    assert _provider is not None
    return _provider


def _choose(provider: str, load_native: Callable[[], Any]) -> tuple[Provider, str, str]:
    """Provider, its name, and why the native one is not in use."""
    reason = ""
    if provider in ("auto", "native"):
        try:
            return load_native(), "native", ""
        except (RuntimeError, ImportError) as error:
            reason = str(error)
            if provider == "native":
                raise HookUnavailable(reason) from error
    if provider in ("auto", "monitoring"):
        if hasattr(sys, "monitoring"):
            from .monitoring import MonitoringHook

            return MonitoringHook(), "monitoring", reason
        if provider == "monitoring":
            raise HookUnavailable(f"sys.monitoring needs Python 3.12, this is {sys.version.split()[0]}")
    return NoHook(), "none", reason


def _build_native() -> Any:
    from jitpy.runtime import native_build

    return native_build.load_native("hook")

