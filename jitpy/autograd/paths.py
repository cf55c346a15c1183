"""What eager's own nodes would free and refuse, for backward passes over parts of a compiled graph (`Paths`).

Asked for only when a program makes such a pass: it runs ops on meta tensors, to see what autograd saves of them.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from ..ir.alias import needs_grad
from ..ir.graph import GETITEM, Graph, Node, map_nodes
from ..ir.ops.quiet import without_compiler_import
from ..ir.sizes import SizeEnv
from ..ir.spec import ScalarSpec, TensorSpec
from ..runtime.autograd_node import Paths


def find_paths(source: Graph, backward: Graph, n_saved: int, grad_outputs: tuple[int, ...],
               grad_inputs: tuple[int, ...]) -> Paths:
    """source: the graph that was differentiated. backward: takes the saved values, then the gradients of
    `grad_outputs`; returns the gradients of `grad_inputs`."""
    under, over = _between(source, [source.outputs[k] for k in grad_outputs], [source.inputs[k] for k in grad_inputs])
    return Paths(under, over, _needs(backward, n_saved))


def _between(graph: Graph, outputs: list[Node], inputs: list[Node]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For each output the nodes that lie under it, for each input those that lie over it: bit masks over the nodes of
    which autograd saves something."""
    numbers: dict[Node, int] = {}
    for node in graph.nodes:
        if needs_grad(node.spec) and node.op is not GETITEM and _saves(graph.sizes, node):
            numbers[node] = 1 << len(numbers)
    under: dict[Node, int] = {}
    over: dict[Node, int] = dict.fromkeys(graph.all_nodes(), 0)
    for node in graph.nodes:
        under[node] = 0
        if needs_grad(node.spec):
            under[node] = numbers.get(node, 0)
            for source in node.input_nodes():
                under[node] |= under.get(source, 0)
    for node in reversed(graph.nodes):
        if needs_grad(node.spec):
            above = over[node] | numbers.get(node, 0)
            for source in node.input_nodes():
                over[source] |= above
    return tuple(under.get(node, 0) for node in outputs), tuple(over[node] for node in inputs)


def _needs(backward: Graph, n_saved: int) -> tuple[tuple[int, ...], ...]:
    """See Paths.needs."""
    values, cotangents = backward.inputs[:n_saved], backward.inputs[n_saved:]
    depends: dict[Node, int] = {node: 1 << j for j, node in enumerate(cotangents)}
    leads: dict[Node, int] = dict.fromkeys(backward.all_nodes(), 0)
    for k, node in enumerate(backward.outputs):
        leads[node] |= 1 << k
    for node in backward.nodes:
        depends[node] = 0
        for source in node.input_nodes():
            depends[node] |= depends.get(source, 0)
    # for each node that follows from saved values alone: whose gradients cannot do without it
    needs = {node: [0] * len(cotangents) for node in backward.all_nodes()}
    for node in reversed(backward.nodes):
        own = [leads[node] if depends[node] >> j & 1 else 0 for j in range(len(cotangents))] if depends[node] \
            else needs[node]
        for source in node.input_nodes():
            leads[source] |= leads[node]
            if not depends.get(source, 0):
                needs[source] = [a | b for a, b in zip(needs[source], own, strict=True)]
    for k, node in enumerate(backward.outputs):
        if not depends.get(node, 0) and node in needs:  # a gradient that is a saved value: whatever output it is of
            needs[node] = [mask | 1 << k for mask in needs[node]]
    return tuple(tuple(needs[node]) for node in values)


def _saves(sizes: SizeEnv, node: Node) -> bool:
    """Whether autograd keeps a tensor for the node's backward pass; True where that cannot be found out."""
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    def stand_in(source: Node) -> Any:
        spec = source.spec
        if isinstance(spec, tuple):
            return [_on_meta(sizes, part) for part in spec]
        return _on_meta(sizes, spec)

    try:
        args, kwargs = (_plain(sizes, map_nodes(value, stand_in)) for value in (node.args, node.kwargs))
        with without_compiler_import(), torch.enable_grad(), \
                torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            node.op.target(*args, **kwargs)
    except Exception:
        return True
    return bool(kept)


def _on_meta(sizes: SizeEnv, spec: Any) -> Any:
    if isinstance(spec, TensorSpec):
        shape, stride = ([sizes.hint(d) if isinstance(d, sympy.Basic) else d for d in dims]
                         for dims in (spec.shape, spec.stride))
        tensor = torch.empty_strided(shape, stride, dtype=spec.dtype, device="meta")
        return tensor.requires_grad_(spec.requires_grad)
    return spec.kind(1) if isinstance(spec, ScalarSpec) else None


def _plain(sizes: SizeEnv, value: Any) -> Any:
    """Sizes as ints, devices as meta."""
    if isinstance(value, sympy.Basic):
        return sizes.hint(value)
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(sizes, part) for part in value)
    if isinstance(value, dict):
        return {key: _plain(sizes, part) for key, part in value.items()}
    return value
