"""Backends of torch's own compiler: `inductor`, `aot_eager`, `cudagraphs`. They are imported when they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ir import Graph, ScalarSpec
from ..ir.failures import has_effect
from ..ir.graph import Node
from ..ir.passes.cleanup import remove_dead_code
from ..ir.specialize import specialize
from . import eager
from .fx_bridge import Compiled, GraphBackend, adapt


def compile_graph(graph: Graph, options: dict[str, Any]) -> Compiled:
    """Compile with `torch._inductor.compile_fx`, in the mode `options["mode"]` of torch.compile."""
    mode = options.get("mode", "default")
    backend = adapt(lambda module, examples: _compile(module, examples, mode), "inductor")
    return _numbers_apart(backend, graph, options)


def aot_eager(graph: Graph, options: dict[str, Any]) -> Compiled:
    """The backend of torch.compile that traces forward and backward graphs, and runs them op by op."""
    return _numbers_apart(adapt(_backend_of_torch("aot_eager"), "aot_eager"), graph, options)


def cudagraphs(graph: Graph, options: dict[str, Any]) -> Compiled:
    """The backend of torch.compile that records CUDA graphs."""
    return _numbers_apart(adapt(_backend_of_torch("cudagraphs"), "cudagraphs"), graph, options)


def _numbers_apart(backend: GraphBackend, graph: Graph, options: dict[str, Any]) -> Compiled:
    """Compile by a backend that takes no numbers as results, such as a float that changes. Those that need no tensor
    are computed beside it."""
    apart = [k for k, node in enumerate(graph.outputs) if _is_host_number(node)]
    if not apart:
        return backend(graph, options)
    beside, rest = specialize(graph, {}), specialize(graph, {})
    beside.outputs = [beside.outputs[k] for k in apart]
    needed = set(beside.outputs)
    for node in reversed(beside.nodes):
        if node in needed:
            needed.update(node.input_nodes())
    beside.nodes, beside.mutations = [node for node in beside.nodes if node in needed], []
    rest.outputs = [node for k, node in enumerate(rest.outputs) if k not in apart]
    remove_dead_code(rest)
    left = [node for node in rest.nodes if not _is_host_number(node) or not has_effect(node)]
    if len(left) < len(rest.nodes) and (rest.mutations or any(map(has_effect, left))):
        return backend(graph, options)  # what fails first is to be seen
    rest.nodes = left
    remove_dead_code(rest)
    read = {source for node in rest.nodes for source in node.input_nodes()} | set(rest.outputs)
    kept = [k for k, node in enumerate(rest.inputs) if node in read or not _is_host_number(node)]
    rest.inputs = [rest.inputs[k] for k in kept]
    for mutation in rest.mutations:
        mutation.input = kept.index(mutation.input)
    numbers = eager.compile_graph(beside, {})
    if not rest.nodes and not rest.outputs:
        return numbers
    others = backend(rest, options)

    def run(*inputs: Any) -> tuple[Any, ...]:
        computed = numbers(*inputs)
        results = list(others(*[inputs[k] for k in kept]))
        for k, number in zip(apart, computed, strict=True):
            results.insert(k, number)
        return tuple(results)

    return run


def _is_host_number(node: Node) -> bool:
    return isinstance(node.spec, ScalarSpec) and node.spec.expr is None and \
        all(isinstance(source.spec, ScalarSpec) and _is_host_number(source) for source in node.input_nodes())


def _backend_of_torch(name: str) -> Callable[..., Any]:
    def compile_by_name(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        from torch._dynamo.backends.registry import lookup_backend

        return lookup_backend(name)(module, examples)

    return compile_by_name


def _compile(module: torch.fx.GraphModule, examples: list[Any], mode: str) -> Callable[..., Any]:
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(module, examples, config_patches=list_mode_options(mode) or None)  # type: ignore[return-value]
