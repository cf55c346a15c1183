"""Signal handlers while a call is compiled: the user's code, which Python may run between any two instructions.

A handler that runs inside a dispatch mode of ours would have its tensors' operations taken by that mode, and one that
raises there would leave the mode behind. So handlers wait for the end of such places, and run at once elsewhere. Their
exceptions reach the caller whole: wrapped, so that no `except Exception` of the compiler takes it for its own.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_SIGNALS = tuple(int(number) for number in signal.valid_signals())


class _State(threading.local):
    """Of each thread; handlers run in the main thread and read its own."""

    active = False  # inside `handlers_guarded`
    held = 0  # how many places hold handlers off

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []


_state = _State()


class HandlerRaised(BaseException):
    """Carries what a signal handler raised through the compiler."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Guarded:
    """Stands for a signal handler while a call is compiled."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, *args: Any) -> None:
        if _state.held:
            _state.waiting.append((self.handler, args))
        elif _state.active:
            _run(self.handler, args)
        else:
            self.handler(*args)


def _run(handler: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        handler(*args)
    except Exception as error:
        raise HandlerRaised(error) from None


def hold() -> None:
    """Signal handlers wait from here on in this thread; each call needs a `release`."""
    _state.held += 1


def release() -> None:
    """Handlers that waited run now, unless another place still holds them off."""
    _state.held -= 1
    while _state.active and not _state.held and _state.waiting:
        _run(*_state.waiting.pop(0))


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Signal handlers wait for the end of a `with` block inside `handlers_guarded`."""
    hold()
    try:
        yield
    finally:
        release()


@contextlib.contextmanager
def handlers_guarded() -> Iterator[None]:
    """For a block, Python signal handlers respect `hold`; put back unless the program changed them."""
    if _state.active or threading.current_thread() is not threading.main_thread():
        yield
        return
    guarded: dict[int, _Guarded] = {}
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _Guarded):
                guarded[number] = _Guarded(handler)
                signal.signal(number, guarded[number])
        _state.active, _state.held = True, 0
        yield
    except HandlerRaised as raised:
        raise raised.error from None
    finally:
        _state.held = 1
        for number, stand_in in guarded.items():
            if signal.getsignal(number) is stand_in:
                signal.signal(number, stand_in.handler)  # type: ignore[union-attr]
        _state.active, _state.held = False, 0
        while _state.waiting:
            handler, args = _state.waiting.pop(0)
            handler(*args)


def _is_symbolic(value: Any) -> bool:
    """Whether an argument has sizes or numbers that are symbolic."""
    if isinstance(value, torch.Tensor):
        return value._has_symbolic_sizes_strides
    if isinstance(value, (list, tuple)):
        return any(map(_is_symbolic, value))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


class CaptureMode(TorchDispatchMode):
    """A dispatch mode of ours: no signal handler runs inside, and torch does not import its compiler for it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler at the first call

    def taken_apart(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that is made of others, which come to this mode one by one; NotImplemented for the
        rest."""
        if func is torch.ops.prim.device.default:
            return args[0].device
        name = func.name()
        if name == "aten::size" or name == "aten::stride":  # overloads in Python only, which no kernel is behind
            values = args[0].shape if name == "aten::size" else args[0].stride()
            return values if len(args) == 1 else values[args[1]]
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                if any(_is_symbolic(value) for value in (*args, *kwargs.values())):
                    return func.decompose(*args, **kwargs)
                # what eager runs: torch's forms of it in Python, for symbolic sizes, import sympy and more
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        return NotImplemented

    def __enter__(self) -> Any:
        hold()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> Any:
        try:
            return super().__exit__(*raised)  # type: ignore[no-untyped-call]
        finally:
            release()
