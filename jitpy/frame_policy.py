"""Frames below a jitted call that tracing did not inline: which of them are compiled, and by which engine.

While an entry with `needs_hook` runs, the frame hook asks `_handler` once about each code object that it meets. Code
of torch, of Triton, of jitpy and of the standard library runs as it is, as do functions that have nothing to do with
tensors. For the others, the engine whose compiled code is innermost on the stack makes a dispatcher, which lives as
long as the code object and the jitted function that the engine serves.

Functions that `torch.utils.checkpoint` calls run without the hook: it is run again in the backward pass, mostly when
no jitted call is on the stack, and has to keep the same tensors both times. So does what torch compiles for its
higher-order operations, what the program has given to torch.compile or kept from it, and what a backward pass calls
that was not captured: its nodes may be those of another compiler. Where a graph runs through a backend that is
Python, the backend turns the hook off (`backends/fx_bridge.py`). """

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch._higher_order_ops.utils import _maybe_compile_and_run_fn

from . import config
from .frontend import hook
from .frontend.bytecode.code import all_positional
from .frontend.bytecode.resume_codes import is_resume_code
from .frontend.models.tensors.compiler_controls import disabled_alone, runs_by_itself
from .runtime import beside_dynamo
from .runtime.dispatch import (
    PythonDispatcher,
    is_compiling,
    make_dispatcher,
    native_runtime,
    set_hook_api,
    set_hook_functions,
    set_hook_pause,
    turned_off,
)

if TYPE_CHECKING:
    from .engine import Engine

_SUSPENDED = (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
              | inspect.CO_ITERABLE_COROUTINE)
_SITE = f"{os.sep}site-packages{os.sep}"
_OURS = os.path.dirname(__file__) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_TRITON = f"{_SITE}triton{os.sep}"
_CHECKPOINTS = torch.utils.checkpoint.__file__
_NOT_OURS = (_maybe_compile_and_run_fn.__code__, torch.autograd.graph._engine_run_backward.__code__)
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep

_selected = False
#: id of a code object -> (the code object, the engine that made it, or that serves it as a root or resume function)
_owned: dict[int, tuple[weakref.ref[types.CodeType], weakref.ref[Engine]]] = {}
#: code objects for which the handler gave a dispatcher, by id, with the engine that made it
_served: dict[int, tuple[weakref.ref[types.CodeType], weakref.ref[Engine]]] = {}
#: functions that call themselves, whose frames are replaced although they are owned as well
_recursive: dict[int, weakref.ref[types.CodeType]] = {}


def install() -> None:
    """Choose the hook's provider (once) and connect it; called before an entry that needs the hook."""
    global _selected
    if not _selected:
        hook.select(config.hook)
        _selected = True
    hook.set_eval_frame(_handler)
    set_hook_api(hook.native_api() if native_runtime() is not None else None)
    set_hook_functions(hook.enter, hook.leave)
    set_hook_pause(hook.suspend, hook.resume)


def own(code: types.CodeType, engine: Engine) -> None:
    """Frames of this code belong to `engine`, and are not replaced."""
    key = id(code)
    if key not in _owned or _owned[key][1]() is None:
        _owned[key] = (weakref.ref(code, lambda _: _owned.pop(key, None)), weakref.ref(engine))


def keep_plain(code: types.CodeType) -> None:
    """Frames of this code are not replaced."""
    install()
    hook.skip_code(code)


def hand_over(codes: Iterable[types.CodeType | None]) -> None:
    """Frames of these functions are compiled by themselves too where compiled code calls them: they call themselves."""
    for code in codes:
        if code is not None and id(code) not in _recursive:
            key = id(code)
            _recursive[key] = weakref.ref(code, lambda _, key=key: _recursive.pop(key, None))  # type: ignore[misc]
            hook.forget_code(code)


def forget(engine: Engine | None = None) -> None:
    """Ask again about every code object below, and give up what was compiled for it; or what one engine compiled."""
    for key, (code_ref, served_by) in list(_served.items()):
        if engine is None or served_by() is engine:
            _served.pop(key, None)
            code = code_ref()
            if code is not None:
                hook.forget_code(code)


@contextlib.contextmanager
def asked_anew() -> Iterator[None]:
    """For a `with` block, frames below go to the engine that runs in it."""
    forget()
    try:
        yield
    finally:
        forget()


# -- the handler --------------------------------------------------------------------------------------------


def _handler(function: types.FunctionType, code: types.CodeType) -> Any:
    """The hook's answer for frames of `code`: a dispatcher, or None to run them as they are.

    The answer is kept for good. Code that is met first while something is compiled is mostly the compiler's own code,
    and left alone, but for that which decides about the frames below it.
    """
    if code.co_flags & _SUSPENDED:
        return None
    if code in _NOT_OURS or code.co_filename == _CHECKPOINTS or runs_by_itself(code, function.__globals__):
        return _without_hook
    if disabled_alone(code, function.__globals__, function.__closure__) is not None:
        return _without_its_frame
    if is_compiling() or id(code) in _owned and id(code) not in _recursive or is_resume_code(code):
        return None
    if _is_library(code.co_filename):
        return None
    engine = _running_engine()
    if engine is None or engine.options.fullgraph:
        return None
    dispatcher = make_dispatcher(code, function.__globals__, name=function.__name__,
                                 qualname=function.__qualname__, on_miss=functools.partial(_on_miss, engine),
                                 native=None if config.native and hook.native_api() is not None else False)
    key = id(code)
    _served[key] = (weakref.ref(code, lambda _: _served.pop(key, None)), weakref.ref(engine))
    if isinstance(dispatcher, PythonDispatcher):
        return functools.partial(_look_up, dispatcher)
    return dispatcher


def _is_library(filename: str) -> bool:
    if filename.startswith(("<frozen", "<string>", "<jitpy ", _OURS, _TORCH)) or _TRITON in filename:
        return True
    return filename.startswith(_STDLIB) and _SITE not in filename


def _running_engine() -> Engine | None:
    """The engine of the innermost compiled code on this thread's stack."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        found = _owned.get(id(frame.f_code))
        if found is not None:
            return found[1]()
        frame = frame.f_back
    return None


def _on_miss(engine: Engine, dispatcher: Any, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> Any:
    if not dispatcher.entries and (engine.is_loser(dispatcher.code) or _is_of_subclass(dispatcher.code, params)
                                   or not _concerns_tensors(dispatcher.code, params, globals, closure)):
        dispatcher.run_original_always = True
        return None
    entry = engine.on_miss(dispatcher, params, globals, closure)
    if entry is not None and dispatcher.run_original_always:  # there is nothing to compile
        engine.variants.pop()
        return None
    return entry


#: what a subclass of tensors does instead of torch's operations, and to make its instances
_OF_SUBCLASSES = frozenset({"__torch_function__", "__torch_dispatch__", "__new__", "__init__"})


def _is_of_subclass(code: types.CodeType, params: tuple[Any, ...]) -> bool:
    """Whether a frame is the inside of a subclass of tensors: all that there is to capture there are breaks."""
    if code.co_name not in _OF_SUBCLASSES or not params:
        return False
    cls = params[0] if isinstance(params[0], type) else type(params[0])
    return issubclass(cls, torch.Tensor)


def _without_hook(function: types.FunctionType, params: tuple[Any, ...]) -> Callable[..., Any]:
    """The function that runs instead of a frame: its code, below which no frame is replaced."""
    plain = types.FunctionType(all_positional(function.__code__), function.__globals__, function.__name__, None,
                               function.__closure__)

    def run(*params: Any) -> Any:
        depth = hook.suspend()
        try:
            return plain(*params)
        finally:
            hook.resume(depth)

    return run


def _without_its_frame(function: types.FunctionType, params: tuple[Any, ...]) -> None:
    """For a function that calls another one whose frames are not replaced: what that one calls may be."""
    code = disabled_alone(function.__code__, function.__globals__, function.__closure__)
    if code is not None:
        hook.skip_code(code)


def _look_up(dispatcher: Any, function: types.FunctionType, params: tuple[Any, ...]) -> Callable[..., Any] | None:
    """As the native dispatcher does it: the function that runs instead of a frame."""
    if turned_off() or dispatcher.run_original_always or is_compiling():
        return None
    globals, closure = function.__globals__, function.__closure__
    entry = dispatcher.choose(params, globals, closure)
    if entry is None:
        return None
    entry.hits += 1
    code = entry.code
    return types.FunctionType(code, globals, code.co_name, None, closure if code.co_freevars else None)


# -- which functions are worth it ---------------------------------------------------------------------------


def _concerns_tensors(code: types.CodeType, params: tuple[Any, ...], globals: dict[str, Any], closure: Any) -> bool:
    """Whether tensors are in reach of a call: among its parameters, or behind a name that its code mentions."""
    if any(_holds_tensor(value, 3) for value in params):
        return True
    for cell in closure or ():
        with contextlib.suppress(ValueError):
            if _leads_to_torch(cell.cell_contents):
                return True
    return any(name in globals and _leads_to_torch(globals[name]) for name in _names(code))


def _holds_tensor(value: Any, depth: int) -> bool:
    # by their types: `__class__` and attributes may be code of the user's, and nothing of it may run here
    cls = type(value)
    if issubclass(cls, (torch.Tensor, torch.nn.Module)):
        return True
    if not depth:
        return False
    items: Iterable[Any] = ()
    if issubclass(cls, list):
        items = list.__iter__(value)
    elif issubclass(cls, tuple):
        items = tuple.__iter__(value)
    elif issubclass(cls, dict):
        items = list(dict.values(value))
    elif cls.__dictoffset__:
        # a `typing.TypeVar` has a dict that nobody can reach, from 3.12 on
        with contextlib.suppress(AttributeError):
            items = list(object.__getattribute__(value, "__dict__").values())
    return any(_holds_tensor(item, depth - 1) for item in itertools.islice(items, 16))


def _leads_to_torch(value: Any) -> bool:
    if type(value) is types.MethodType:
        return _leads_to_torch(value.__self__) or _leads_to_torch(value.__func__)
    if type(value) is types.FunctionType:
        return _holds_tensor(value, 2) or "torch" in value.__globals__
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] == "torch" or "torch" in vars(value)
    return _holds_tensor(value, 2)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)


beside_dynamo.hide_all(globals())
