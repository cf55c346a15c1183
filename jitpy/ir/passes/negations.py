"""Negations that torch leaves pending (`z.conj().imag`) as values of their own: kernels read plain memory."""

from __future__ import annotations

import torch

from ..builder import Builder
from ..graph import Graph, Node

_PENDING = torch.ops.aten._neg_view.default


def compute_negations(graph: Graph) -> list[str]:
    """Let whatever reads a view with a pending negation, or a view of one, read the computed values instead. Results
    stay the views that they are."""
    if not any(node.op.target is _PENDING for node in graph.nodes):
        return []
    done: list[str] = []
    nodes: list[Node] = []
    plain: dict[Node, Node] = {}

    def computed(node: Node) -> Node:
        return plain.get(node, node)

    for node in graph.nodes:
        sources = [n for n in node.input_nodes() if n in plain]
        if node.op.target is _PENDING or node.op.is_view and sources:
            b = Builder(graph, into=nodes, loc=node.loc, grad_enabled=node.grad_enabled)
            nodes.append(node)
            if node.op.target is _PENDING:
                plain[node] = b.call("aten.neg.default", computed(node.args[0]))
                done.append(f"computed: {node.name}")
            else:
                copy = Node(node.op, node.args, dict(node.kwargs), node.spec, graph.unique_name(node.name),
                            grad_enabled=node.grad_enabled)
                copy.replace_inputs(computed)
                nodes.append(copy)
                plain[node] = copy
            continue
        if sources:
            node.replace_inputs(computed)
        nodes.append(node)
    graph.nodes[:] = nodes
    for mutation in graph.mutations:
        mutation.value = computed(mutation.value)
    return done


__all__ = ["compute_negations"]
