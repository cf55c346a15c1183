"""Backends by name.

Inside jitpy a backend is `compile(graph: Graph, options: dict) -> callable(*inputs) -> tuple of outputs`. A user's
backend is any callable `(torch.fx.GraphModule, example_inputs) -> callable`, as torch.compile takes;
`fx_bridge.adapt` makes the one of the other.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitpy import logs

if TYPE_CHECKING:
    from ..ir import Graph

#: `compile(graph, options)`: the compiled callable takes the graph's inputs and returns the tuple of its outputs.
GraphBackend = Callable[["Graph", dict[str, Any]], Callable[..., tuple[Any, ...]]]

#: `(GraphModule, example_inputs)`: the compiled callable takes the same inputs and returns a tuple, a list or one
#: tensor.
FxBackend = Callable[..., Callable[..., Any]]

#: Backends that come with jitpy: name -> (module, function), imported on first use.
_BUILT_IN = {
    "aot_eager": ("jitpy.backends.inductor", "aot_eager"),
    "codegen": ("jitpy.backends.codegen", "compile_graph"),
    "cudagraphs": ("jitpy.backends.inductor", "cudagraphs"),
    "eager": ("jitpy.backends.eager", "compile_graph"),
    "inductor": ("jitpy.backends.inductor", "compile_graph"),
}

_registered: dict[str, GraphBackend] = {}

#: the group of entry points in which packages register backends for torch.compile
ENTRY_POINTS = "torch_dynamo_backends"

#: the backends of installed packages by name, once asked for; None: it cannot be imported
_installed: dict[str, GraphBackend | None] = {}


def register_backend(name: str, fn: Any = None, *, takes_graph: bool = False) -> Any:
    """Make a backend known by `name`; also usable as a decorator, `@register_backend("mine")`. Returns `fn`.

    fn           `(torch.fx.GraphModule, example_inputs) -> callable`; with `takes_graph=True`
                 `(jitpy.ir.Graph, options) -> callable(*inputs) -> tuple`

    A later registration of a user's name replaces the earlier one. Raises TypeError where `fn` is not callable or
    `name` is no string, ValueError for the names that come with jitpy.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"a backend's name is a string, not {name!r}")
    if name in _BUILT_IN:
        raise ValueError(f"the backend {name!r} comes with jitpy and cannot be replaced")
    if fn is None:
        return lambda decorated: register_backend(name, decorated, takes_graph=takes_graph)
    if not callable(fn):
        raise TypeError(f"a backend is a callable, not {type(fn).__name__}")
    if takes_graph:
        from .fx_bridge import guarded

        _registered[name] = guarded(fn, name)
    else:
        _registered[name] = _adapt(fn, name)
    return fn


def is_known(name: Any) -> bool:
    """Whether it is the name of a backend of jitpy or of `register_backend`; nothing is imported."""
    return isinstance(name, str) and (name in _BUILT_IN or name in _registered)


def list_backends() -> list[str]:
    """The names that `backend=` takes, sorted: those of jitpy, of `register_backend`, and of installed packages."""
    return sorted({*_BUILT_IN, *_registered, *(point.name for point in _entry_points() if _load(point) is not None)})


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    """The backends that installed packages register, without jitpy's own, by which torch.compile calls it."""
    return [point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)
            if point.module.partition(".")[0] != "jitpy"]


def _load(point: importlib.metadata.EntryPoint) -> GraphBackend | None:
    if point.name not in _installed:
        try:
            found = point.load()
            if not callable(found):
                raise TypeError(f"{point.value} is no callable but {type(found).__name__}")
            _installed[point.name] = _adapt(found, point.name)
        except Exception as error:
            logs.log("backends", f"{point.name} ({point.value}) cannot be imported: {type(error).__name__}: {error}")
            _installed[point.name] = None
    return _installed[point.name]


def get_backend(backend: str | FxBackend) -> GraphBackend:
    """The backend of a name, or of a user's callable.

    Raises ValueError, naming the choices, for an unknown name; TypeError for anything that is neither name nor
    callable.
    """
    if isinstance(backend, str):
        found = _registered.get(backend)
        if found is not None:
            return found
        if backend in _BUILT_IN:
            module, function = _BUILT_IN[backend]
            return getattr(importlib.import_module(module), function)
        for point in _entry_points():
            installed = _load(point) if point.name == backend else None
            if installed is not None:
                return installed
        raise ValueError(f"unknown backend {backend!r}; the backends are: {', '.join(list_backends())}, "
                         "or any callable (torch.fx.GraphModule, example_inputs) -> callable")
    if callable(backend):
        return _adapt(backend)
    raise TypeError(f"backend is a name or a callable, not {type(backend).__name__}; the names are: "
                    f"{', '.join(list_backends())}")


def _adapt(fn: FxBackend, name: str | None = None) -> GraphBackend:
    from .fx_bridge import adapt

    return adapt(fn, name)
