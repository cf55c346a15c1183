"""The backend `inductor`: hands the graph to torch's own compiler.

The only place that imports it, and only when it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ir import Graph
from .fx_bridge import adapt


def compile_graph(graph: Graph, options: dict[str, Any]) -> Callable[..., tuple[Any, ...]]:
    """Compile with `torch._inductor.compile_fx`, in the mode `options["mode"]` of torch.compile."""
    mode = options.get("mode", "default")
    return adapt(lambda module, examples: _compile(module, examples, mode))(graph, options)


def _compile(module: torch.fx.GraphModule, examples: list[Any], mode: str) -> Callable[..., Any]:
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(module, examples, config_patches=list_mode_options(mode) or None)
