"""Backends of torch's own compiler: `inductor`, `aot_eager`, `cudagraphs`. They are imported when they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ir import Graph
from .fx_bridge import Compiled, adapt


def compile_graph(graph: Graph, options: dict[str, Any]) -> Compiled:
    """Compile with `torch._inductor.compile_fx`, in the mode `options["mode"]` of torch.compile."""
    mode = options.get("mode", "default")
    return adapt(lambda module, examples: _compile(module, examples, mode), "inductor")(graph, options)


def aot_eager(graph: Graph, options: dict[str, Any]) -> Compiled:
    """The backend of torch.compile that traces forward and backward graphs, and runs them op by op."""
    return adapt(_backend_of_torch("aot_eager"), "aot_eager")(graph, options)


def cudagraphs(graph: Graph, options: dict[str, Any]) -> Compiled:
    """The backend of torch.compile that records CUDA graphs."""
    return adapt(_backend_of_torch("cudagraphs"), "cudagraphs")(graph, options)


def _backend_of_torch(name: str) -> Callable[..., Any]:
    def compile_by_name(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        from torch._dynamo.backends.registry import lookup_backend

        return lookup_backend(name)(module, examples)

    return compile_by_name


def _compile(module: torch.fx.GraphModule, examples: list[Any], mode: str) -> Callable[..., Any]:
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(module, examples, config_patches=list_mode_options(mode) or None)  # type: ignore[return-value]
