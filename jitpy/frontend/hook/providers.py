"""The interface of a provider of the frame-evaluation hook, and the provider that replaces nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Protocol

Dispatcher = Callable[[FunctionType, tuple[Any, ...]], Callable[..., Any] | None]
Handler = Callable[[FunctionType, CodeType], Dispatcher | None]


class HookUnavailable(RuntimeError):
    """The provider that was asked for cannot be had here; the message says why."""


class Provider(Protocol):
    """The interface of a provider; the functions of this module pass on to it."""

    def set_eval_frame(self, handler: Handler | None, /) -> Handler | None: ...
    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def suspend(self) -> int: ...
    def resume(self, calls: int, /) -> None: ...
    def is_active(self) -> bool: ...
    def is_installed(self) -> bool: ...
    def skip_code(self, code: CodeType, /) -> None: ...
    def forget_code(self, code: CodeType, /) -> None: ...
    def code_state(self, code: CodeType, /) -> Any: ...


class NoHook:
    """Replaces nothing; keeps the handler and the nesting of calls."""

    def __init__(self) -> None:
        self._handler: Handler | None = None
        self._local = threading.local()

    def set_eval_frame(self, handler: Handler | None, /) -> Handler | None:
        check_handler(handler)
        former, self._handler = self._handler, handler
        return former

    def enter(self) -> None:
        self._local.depth = getattr(self._local, "depth", 0) + 1

    def leave(self) -> None:
        depth = getattr(self._local, "depth", 0)
        if not depth:
            raise RuntimeError("leave() without enter() in this thread")
        self._local.depth = depth - 1

    def suspend(self) -> int:
        depth: int = getattr(self._local, "depth", 0)
        self._local.depth = 0
        return depth

    def resume(self, calls: int, /) -> None:
        self._local.depth = getattr(self._local, "depth", 0) + calls

    def is_active(self) -> bool:
        return getattr(self._local, "depth", 0) > 0

    def is_installed(self) -> bool:
        return False

    def skip_code(self, code: CodeType, /) -> None:
        check_code(code)

    def forget_code(self, code: CodeType, /) -> None:
        check_code(code)

    def code_state(self, code: CodeType, /) -> Any:
        check_code(code)


def check_code(code: Any) -> None:
    if not isinstance(code, CodeType):
        raise TypeError(f"expected a code object, not {type(code).__name__}")


def check_handler(handler: Any) -> None:
    if handler is not None and not callable(handler):
        raise TypeError(f"the handler must be callable or None, not {type(handler).__name__}")
