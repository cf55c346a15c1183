"""The order in which eager's engine comes to the leaves of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.alias import needs_grad
from ..ir.graph import Graph, Node

#: For ops that eager composes of others, the order in which the pass comes to arguments, where it is not theirs.
_ORDER = {"aten.linear.default": (2, 0, 1)}


def order_of_accumulation(graph: Graph, inputs: Sequence[int]) -> list[int]:
    """Positions of inputs, the one whose gradient is complete first in front: a pass goes backwards, and has all parts
    of a gradient behind the first node that reads the value."""
    read: dict[Node, tuple[int, int]] = {}
    for position, node in enumerate(graph.nodes):
        if not (node.grad_enabled and needs_grad(node.spec)):
            continue
        order = _ORDER.get(node.op.name)
        for place, argument in enumerate(node.input_nodes()):
            rank = place if order is None or place >= len(order) else order.index(place)
            read.setdefault(argument, (-position, rank))
    last = (1, 0)
    return sorted(inputs, key=lambda k: read.get(graph.inputs[k], last))


__all__ = ["order_of_accumulation"]
