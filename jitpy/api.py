"""The public surface. Importing it is cheap: the engine is imported at the first call of a jitted function."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import options as _options
from .backends.registry import list_backends, register_backend
from .explain import explain as _explain
from .jitted import SharingObject, can_share, forwarding_function, jitted_function, share
from .marks import allow_in_graph, disabled_function, graph_break, is_compiling, mark_dynamic, mark_static, original_of
from .options import Options

if TYPE_CHECKING:
    from .explain.report import Report
    from .ir.passes.pipeline import RegisteredPass

F = TypeVar("F", bound=Callable[..., Any])


@overload
def jit(fn: F, *, backend: str | Callable[..., Any] = ..., mode: str = ..., fullgraph: bool = ...,
        dynamic: bool | None = ..., options: dict[str, Any] | None = ..., disable: bool = ...) -> F: ...
@overload
def jit(fn: None = None, *, backend: str | Callable[..., Any] = ..., mode: str = ..., fullgraph: bool = ...,
        dynamic: bool | None = ..., options: dict[str, Any] | None = ..., disable: bool = ...) -> Callable[[F], F]: ...
def jit(fn: Any = None, *, backend: str | Callable[..., Any] = "codegen", mode: str = "default",
        fullgraph: bool = False, dynamic: bool | None = None, options: dict[str, Any] | None = None,
        disable: bool = False) -> Any:
    """Compile a function's tensor code at its first call; also as `@jitpy.jit` and `@jitpy.jit(...)`.

    fn         a function, method, static or class method, nn.Module, or any other callable
    backend    a name of `list_backends()`, or a callable `(torch.fx.GraphModule, example_inputs) -> callable`
    mode       "default", "reduce-overhead" or "max-autotune"; on the CPU they are the same
    fullgraph  True raises FullGraphError where the graph breaks
    dynamic    sizes: None makes those symbolic that change, True all from the start, False none
    options    flags of `jitpy.config` for this function: debug, disk_cache, dynamic, fusion, inline_depth,
               raise_errors, recompile_limit, simd, threads_grain, unroll_limit
    disable    True returns `fn` as it is

    A jitted function has the name, doc and signature of `fn`, binds as a method does, and is pickled by reference. A
    jitted module is an instance of its class with the same `__dict__`: its state is the module's own, both ways.
    Raises TypeError for what is not callable and for options of the wrong type, ValueError for unknown names.
    """
    chosen = _options.check(backend, mode, fullgraph, dynamic, options)
    if fn is None:
        return lambda decorated: _jit(decorated, chosen, disable)
    return _jit(fn, chosen, disable)


def _jit(fn: Any, chosen: Options, disable: bool = False) -> Any:
    if disable:
        return fn
    if isinstance(fn, SharingObject):
        return share(fn._jitpy_plain, chosen)
    return _transform(fn, "jit", lambda function: jitted_function(function, chosen), lambda obj: share(obj, chosen))


def disable(fn: F) -> F:
    """`fn` as plain Python wherever it is called, with all that it calls; also as a decorator.

    In a jitted function its call breaks the graph. TypeError for what is not callable.
    """
    if isinstance(fn, SharingObject):
        return share(fn._jitpy_plain, None)
    return _transform(fn, "disable", disabled_function, lambda obj: share(obj, None))


def _transform(fn: Any, what: str, of_function: Callable[[Any], Any], of_object: Callable[[Any], Any]) -> Any:
    """`of_function` of what runs behind any kind of callable; `of_object` of objects with a Python `__call__`."""
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(_transform(fn.__func__, what, of_function, of_object))
    if isinstance(fn, types.MethodType):
        return types.MethodType(_transform(fn.__func__, what, of_function, of_object), fn.__self__)
    if isinstance(fn, type):
        raise TypeError(f"jitpy.{what} takes a callable that is no class: apply it to the methods or to the instances "
                        f"of {fn.__qualname__}")
    if not callable(fn):
        raise TypeError(f"jitpy.{what} takes a callable (a function, method, nn.Module, ...), not "
                        f"{type(fn).__name__}")
    function = original_of(fn) or fn
    if isinstance(function, types.FunctionType):
        return of_function(function)
    if can_share(type(fn)):
        return of_object(fn)
    return of_function(forwarding_function(fn))


def explain(fn: Callable[..., Any], **options: Any) -> Callable[..., Report]:
    """`jitpy.explain(fn)(*args, **kwargs)` runs `fn` once, compiled anew, and reports what became of it.

    options: as `jit` takes them (default: those of `fn`, where it is jitted).
    """
    return _explain(fn, options)


def reset() -> None:
    """Forget everything that was compiled, in this process. Files on disk stay."""
    engine = sys.modules.get(f"{__package__}.engine")
    if engine is not None:
        engine.reset_all()


def register_pass(fn_or_rules: Any, *, before: str | None = None, after: str | None = None,
                  name: str | None = None) -> RegisteredPass:
    """Add a pass on the graph to every later compilation; the handle's `unregister()` takes it out again.

    fn_or_rules: a function that changes a `jitpy.ir.Graph` in place, or `jitpy.ir.passes.Rules`. before, after: the
    pass next to which it runs (default: before dead code is removed). TypeError, ValueError: see the docs' usage page.
    """
    from .ir.passes.pipeline import register_pass as register

    return register(fn_or_rules, before=before, after=after, name=name)


__all__ = ["allow_in_graph", "disable", "explain", "graph_break", "is_compiling", "jit", "list_backends",
           "mark_dynamic", "mark_static", "register_backend", "register_pass", "reset"]
