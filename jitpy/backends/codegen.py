"""The backend "codegen": generated kernels, C++ or Triton by the device of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitpy import config

from ..ir.graph import Graph
from ..ir.spec import TensorSpec


def compile_graph(graph: Graph, options: dict[str, Any] | None = None) -> Callable[..., tuple[Any, ...]]:
    """Make `graph` callable: `compiled(*inputs) -> tuple`. Graphs on several devices run with eager kernels."""
    from . import cpp, eager, triton

    device = device_of(graph)
    if device is None:
        return eager.compile_graph(graph, options or {})
    if device.type == "cuda" or device.type == "cpu" and config.triton_on_cpu:
        return triton.compile_graph(graph, options)
    return cpp.compile_graph(graph, options)


def device_of(graph: Graph) -> torch.device | None:
    """The device of all tensors of the graph (the CPU where it has none); None for several."""
    found: torch.device | None = None
    for node in graph.all_nodes():
        for spec in node.spec if isinstance(node.spec, tuple) else (node.spec,):
            if isinstance(spec, TensorSpec) and spec.device != found:
                if found is not None:
                    return None
                found = spec.device
    return found or torch.device("cpu")
