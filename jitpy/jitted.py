"""Jitted functions and objects: what `jitpy.jit` returns. The engine comes in at the first call."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import config
from .marks import ORIGINALS, disabled_function
from .options import Options
from .runtime import beside_dynamo, native_build
from .runtime.dispatch import make_dispatcher
from .runtime.gpu.compile import start_workers


class LazyEngine:
    """The `on_miss` of a jitted function. The engine is imported and made when it is first needed.

    Nothing but the function's dispatcher refers to it, so that it goes when the function does. Code that the engine
    compiled for functions below would keep it alive, and is given up then.
    """

    __slots__ = ("options", "_engine")

    def __init__(self, options: Options, engine: Any = None) -> None:
        self.options = options
        self._engine = engine

    def __del__(self) -> None:
        if self._engine is not None and not sys.is_finalizing():
            self._engine.release()

    @property
    def engine(self) -> Any:
        if self._engine is None:
            if self.options.backend == "codegen":
                start_workers()  # they import Triton beside the engine's own imports
            with _interrupts_later(), collector_off():
                from .engine import Engine

            self._engine = Engine(self.options)
        return self._engine

    def __call__(self, dispatcher: Any, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> Any:
        return self.engine.on_miss(dispatcher, params, globals, closure)

    def again(self, function: Any) -> tuple[Any, ...]:
        """The callable and arguments that make another jitted function of the same kind, for pickles."""
        return jitted_function, (function, self.options)


beside_dynamo.hide_all(globals())


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """An interrupt waits for the end: one in the middle of an import would leave half a package behind for good."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    arrived: list[Any] = []
    signal.signal(signal.SIGINT, lambda *args: arrived.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if arrived:
        handler(*arrived[0])


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Imports and traces make many small objects that live on: collecting among them doubles their time.

    The remains of a trace are cycles that hold the call's arguments. They go at once, all of them being young: a
    generator or a tensor must not outlive the call because it was the one that compiled.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            gc.collect(0)


# -- functions ----------------------------------------------------------------------------------------------


def jitted_function(function: types.FunctionType, options: Options, name: str | None = None) -> Any:
    """The dispatcher that stands for a function; it has the function's name, doc, module and `__wrapped__`.

    Where the native part has still to be built, that waits for the first call, and a Python function stands in front.
    """
    if not config.native or native_build.is_built("runtime"):
        jitted = _dispatcher(function, options, name)
    else:
        jitted = _late(function, options, name)
    functools.update_wrapper(jitted, function)
    beside_dynamo.show_original(jitted, function)
    ORIGINALS[jitted] = function
    return jitted


def _dispatcher(function: types.FunctionType, options: Options, name: str | None) -> Any:
    return make_dispatcher(function.__code__, function.__globals__, name=name or function.__name__,
                           qualname=name or function.__qualname__, on_miss=LazyEngine(options), original=function,
                           native=None if config.native else False)


def _late(function: types.FunctionType, options: Options, name: str | None) -> Callable[..., Any]:
    made: Any = None

    def jitted(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        if made is None:
            made = _dispatcher(function, options, name)
        return made(*args, **kwargs)

    return beside_dynamo.keep_out(jitted)


def forwarding_function(target: Callable[..., Any]) -> types.FunctionType:
    """A Python function that calls a callable of another kind."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    call.__name__ = getattr(target, "__name__", type(target).__name__)
    call.__qualname__ = getattr(target, "__qualname__", call.__name__)
    call.__doc__ = target.__doc__
    call.__module__ = getattr(target, "__module__", None) or __name__
    call.__wrapped__ = target  # type: ignore[attr-defined]
    assert isinstance(call, types.FunctionType)
    return call


_FORWARDING = forwarding_function(print).__code__


def shown_callable(code: types.CodeType, closure: Any) -> tuple[str | None, types.CodeType]:
    """Name and code that reports show for `code`: those of the callable that it forwards to; else its own (None)."""
    if code is not _FORWARDING or not closure:
        return None, code
    target = closure[0].cell_contents
    cls = type(target)
    method = getattr(cls, "forward" if issubclass(cls, torch.nn.Module) else "__call__")
    return getattr(target, "__qualname__", cls.__qualname__), getattr(inspect.unwrap(method), "__code__", code)


# -- objects ------------------------------------------------------------------------------------------------


class SharingObject:
    """An instance of the original object's class (by a class made for it) with the original's own `__dict__`.

    Attributes, parameters, hooks and modes are those of the original, in both directions. Only calls differ: they go
    to `_jitpy_call`. In `forward`, `self` is the original.
    """

    __slots__ = ()

    _jitpy_plain: Any
    _jitpy_call: Callable[..., Any]
    _jitpy_options: Options | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keeps the class that is made for sharing away from the user's own `__init_subclass__`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            call = self._jitpy_call
        except AttributeError:  # an instance that `type(self)` made, not `share`
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        return call(*args, **kwargs)

    @property
    def _torchdynamo_orig_callable(self) -> Any:
        """See `beside_dynamo.show_original`."""
        return self._jitpy_plain

    @property
    def _torchdynamo_wrapper_id(self) -> int:
        return id(self)

    def __copy__(self) -> Any:
        plain, remade = _taken_apart(self)
        return remade(copy.copy(plain))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        plain, remade = _taken_apart(self)
        return remade(copy.deepcopy(plain, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain, remade = _taken_apart(self)
        return remade, (plain,)

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(2)


def _taken_apart(shared: SharingObject) -> tuple[Any, Callable[[Any], Any]]:
    """The original, and what makes another one jitted in the same way."""
    try:
        return shared._jitpy_plain, functools.partial(share, options=shared._jitpy_options)
    except AttributeError:  # an instance that `type(self)` made: nothing is jitted
        plain = object.__new__(type(shared).__mro__[2])
        plain.__dict__ = shared.__dict__
        return plain, _as_it_is


def _as_it_is(plain: Any) -> Any:
    return plain


beside_dynamo.keep_out(SharingObject.__call__)

#: class -> (weakly) the class made for it
_sharing: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


def can_share(cls: type) -> bool:
    """Whether all the state of the class's instances is in `__dict__` and `__slots__`, and calls are Python's."""
    call = next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None)
    return isinstance(call, types.FunctionType) and all(base.__flags__ & _HEAP_TYPE for base in cls.__mro__[:-1])


_HEAP_TYPE = 1 << 9


def share(plain: Any, options: Options | None) -> Any:
    """The object whose calls are jitted; with `options` None they run as plain Python."""
    made: Any = object.__new__(_sharing_class(type(plain)))
    if hasattr(plain, "__dict__"):
        object.__setattr__(made, "__dict__", plain.__dict__)  # the class may have a `__setattr__` of its own
    call = _call_disabled if options is None else jitted_function(_named_call(type(plain)), options)
    for name, value in (("plain", plain), ("call", types.MethodType(call, plain)), ("options", options)):
        object.__setattr__(made, f"_jitpy_{name}", value)
    return made


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self(*args, **kwargs)


_call_disabled = disabled_function(_call)


def _named_call(cls: type) -> types.FunctionType:
    """`_call` under the name of a class, for reports."""
    function = types.FunctionType(_call.__code__, _call.__globals__, cls.__name__)
    function.__qualname__ = cls.__qualname__
    return function


def _sharing_class(cls: type) -> type:
    found = _sharing.get(cls)
    made = found() if found is not None else None
    if made is None:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__,
                 "__slots__": ("_jitpy_plain", "_jitpy_call", "_jitpy_options")}
        slots = {name for base in cls.__mro__ for name, value in vars(base).items()
                 if isinstance(value, types.MemberDescriptorType)}
        made = type(cls)(cls.__name__, (SharingObject, cls), {**names, **{name: _passed_on(name) for name in slots}})
        _sharing[cls] = weakref.ref(made)
    return made


def _passed_on(name: str) -> property:
    """A slot of the original's."""
    return property(lambda self: getattr(self._jitpy_plain, name),
                    lambda self, value: setattr(self._jitpy_plain, name, value),
                    lambda self: delattr(self._jitpy_plain, name))
