"""Graphs from plain functions, for tests of what comes after capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from jitpy.ir import ops
from jitpy.ir.graph import CONSTANT, GETITEM, Graph, Node
from jitpy.ir.spec import TensorSpec


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """The spec of a tensor at hand."""
    return TensorSpec(
        tensor.dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.device,
        tensor.requires_grad,
        tensor.storage_offset(),
    )


class Tracer(TorchDispatchMode):
    """Records every aten call below autograd; composite ops named in `whole` are kept as the user called them."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.known: dict[int, Node] = {}
        self.alive: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor, node: Node) -> None:
        self.known[id(tensor)] = node
        self.alive.append(tensor)

    def node(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        found = self.known.get(id(value))
        if found is None:
            found = self.graph.add(CONSTANT, (value,), {}, spec_of(value), name="constant")
            self.add(value, found)
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        nodes, node_kwargs = tree_map(self.node, args), tree_map(self.node, kwargs)
        if isinstance(result, torch.Tensor):
            self.add(result, self.graph.add(ops.get(func), nodes, node_kwargs, spec_of(result)))
        elif isinstance(result, (tuple, list)):
            specs = tuple(spec_of(r) if isinstance(r, torch.Tensor) else None for r in result)
            node = self.graph.add(ops.get(func), nodes, node_kwargs, specs)
            for k, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    self.add(part, self.graph.add(GETITEM, (node, k), {}, specs[k]))
        return result


def trace(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Graph:
    """The graph of `fn(*inputs)`: functional functions of tensors that return a tensor or a tuple of tensors."""
    graph = Graph()
    tracer = Tracer(graph)
    for tensor in inputs:
        tracer.add(tensor, graph.add_input(spec_of(tensor)))
    with torch.no_grad(), tracer:
        result = fn(*inputs)
    results = result if isinstance(result, (tuple, list)) else (result,)
    graph.outputs = [tracer.node(r) for r in results]
    return graph
