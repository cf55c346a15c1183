"""Whether a graph is linear in some of its inputs.

Asked of the backward pass of a `torch.autograd.Function`: only a linear one may be given its gradients in parts.
Linearity is known op by op, as sums of products; unknown ops are not linear. """

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .graph import CONSTANT, GETITEM, Graph, Node
from .ops.table import fill_value
from .spec import TensorSpec
from .trees import tree_leaves


def is_linear(graph: Graph, n_inputs: int) -> bool:
    """Whether the outputs are certainly linear in the first `n_inputs` inputs, taken together."""
    linear = set(graph.inputs[:n_inputs])
    zeros: set[Node] = set()
    for node in graph.nodes:
        if node.op is CONSTANT or node.op.kind == "factory" and not node.op.is_random:
            if _makes_zeros(node):
                zeros.add(node)
        elif any(value in linear for value in node.input_nodes()):
            if not _keeps_linear(node, linear, zeros):
                return False
            linear.add(node)
        elif node.op.is_view and all(value in zeros for value in node.input_nodes()):
            zeros.add(node)
    return all(node in linear or node in zeros for node in graph.outputs)


def _makes_zeros(node: Node) -> bool:
    if node.op is CONSTANT:
        value = node.args[0]
        return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1 and \
            not value.item()
    return _is_zero(fill_value(node), set())


def _keeps_linear(node: Node, linear: set[Node], zeros: set[Node]) -> bool:
    """Whether the result of a node that depends on linear values is linear in them."""
    if isinstance(node.spec, TensorSpec) and not node.spec.dtype.is_floating_point:
        return False
    if node.op is GETITEM:
        return True
    terms = node.op.terms
    if terms is None:
        if not (node.op.is_view or node.op.name.split(".")[1].endswith(("_backward", "_backward_data"))):
            return False
        terms = ((0,),)
    named = {position for term in terms for position in term}
    others = [arg for position, arg in enumerate(node.args) if position not in named]
    if any(value in linear for value in _nodes((others, list(node.kwargs.values())))):
        return False
    for term in terms:
        factors = [node.args[position] for position in term if position < len(node.args)]
        if not factors or factors[0] is None:
            continue
        if node.op.joins:
            if not all(part in linear or _is_zero(part, zeros) for part in factors[0]):
                return False
            continue
        parts = [factor in linear if isinstance(factor, Node) else False for factor in factors]
        if any(value in linear for factor in factors if not isinstance(factor, Node) for value in _nodes(factor)):
            return False
        if sum(parts) != 1 and (any(parts) or not any(_is_zero(factor, zeros) for factor in factors)):
            return False
    return True


def _is_zero(value: Any, zeros: set[Node]) -> bool:
    return value in zeros if isinstance(value, Node) else type(value) in (int, float, bool) and value == 0


def _nodes(value: Any) -> Iterable[Node]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Node))


__all__ = ["is_linear"]
