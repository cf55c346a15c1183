"""What the forward pass keeps for the backward pass."""

from __future__ import annotations

from ..ir.graph import CONSTANT, GETITEM, INPUT, Node
from ..ir.op import NotCovered
from .joint import Bases, Joint, ahead, behind_cotangents


def choose_saved(joint: Joint) -> list[Node]:
    """The values to save, in the order of the graph: inputs, outputs and intermediates. Raises NotCovered."""
    return _as_eager(joint)


def _as_eager(joint: Joint) -> list[Node]:
    """Save what gradient rules read; what the forward pass does not need itself, and views, are computed again."""
    graph = joint.graph
    late = behind_cotangents(joint)
    early = ahead(graph.nodes, joint.results)
    bases = Bases(graph)
    written = {graph.inputs[m.input] for m in graph.mutations}
    saved: set[Node] = set()
    needed = set(joint.gradients)
    for node in reversed(graph.nodes):
        if node not in needed:
            continue
        maker = node.args[0] if node.op is GETITEM else node
        if maker in late or maker.op is CONSTANT or bases.is_view(maker) or maker not in early:
            needed.update(node.input_nodes())
        else:
            saved.add(node)
    saved.update(n for n in graph.inputs[:joint.n_inputs] if n in needed)
    if not written.isdisjoint(saved):
        raise NotCovered("a saved input that the graph changes")
    outputs = set(graph.outputs[:joint.n_outputs])
    shown = frozenset().union(*map(bases.of, outputs))
    for node in saved:
        if node not in outputs and node.op is not INPUT and not shown.isdisjoint(bases.of(node)):
            raise NotCovered("a saved value that shares memory with a result")
    return [n for n in graph.all_nodes() if n in saved]


__all__ = ["choose_saved"]
