"""The backend "codegen": generated kernels, C++ or Triton by the device of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitpy import config, logs

from ..ir.alias import any_needs_grad, shows_grad_input
from ..ir.graph import Graph
from ..ir.op import NotCovered
from ..ir.spec import TensorSpec

Compile = Callable[[Graph], Callable[..., tuple[Any, ...]]]


def compile_graph(graph: Graph, options: dict[str, Any] | None = None) -> Callable[..., tuple[Any, ...]]:
    """Make `graph` callable: `compiled(*inputs) -> tuple`. Graphs on several devices run with eager kernels."""
    from . import cpp, eager, triton

    device = device_of(graph)
    if device is None:
        return eager.compile_graph(graph, options or {})
    if device.type == "cuda" or device.type == "cpu" and config.triton_on_cpu:
        return triton.compile_graph(graph, options)
    return cpp.compile_graph(graph, options)


def with_gradients(graph: Graph, compile: Compile) -> Callable[..., tuple[Any, ...]]:
    """Compile a graph in halves where its results need gradients; `compile` is for graphs in which nothing does."""
    if not any_needs_grad(graph.nodes) and not shows_grad_input(graph):
        return compile(graph)
    from ..autograd import compile_differentiable
    from . import eager

    if graph.op_by_op:
        return eager.compile_graph(graph, {})
    try:
        return compile_differentiable(graph, compile, lambda made: eager.compile_graph(made, {}))
    except NotCovered as reason:
        logs.log("fusion", f"{graph.name} runs under torch's autograd: {reason}")
        return eager.compile_graph(graph, {})


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
