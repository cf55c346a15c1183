"""Saved-tensor freeing and refusals as in eager's own nodes, for backward passes over parts of a compiled graph
(`Paths`).

Asked for only when a program makes such a pass: it runs ops on meta tensors, to see what autograd saves of them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence

from ..ir.alias import needs_grad
from ..ir.autograd_saves import saved_by
from ..ir.graph import GETITEM, REGION, Graph, Node
from ..runtime.autograd_node import Paths
from .joint import Halves, Joint
from .watching import Place, Watched


def find_paths(joint: Joint, halves: Halves, watched: Sequence[Watched]) -> Paths:
    """The paths of a graph, for a node that watches `watched`."""
    source = joint.source
    numbers = _savers(source)
    for mutation in source.mutations:
        if mutation.gives_history and mutation.through_view:
            numbers.setdefault(mutation.value, 1 << len(numbers))
    under, over = _between(source, numbers, [source.outputs[k] for k in joint.grad_outputs],
                           [source.inputs[k] for k in joint.grad_inputs])

    def mask(savers: Iterable[Node]) -> int:
        return functools.reduce(operator.or_, (numbers[node] for node in savers), 0)

    saving = (mask(saver for one in joint.watched if one.place == place for saver in one.savers)
              for place in halves.saved)
    return Paths(under, over, _needs(halves.backward, len(halves.saved)), tuple(saving),
                 tuple(mask(one.savers) for one in watched))


def read_unchecked(joint: Joint, halves: Halves) -> set[Node]:
    """Inputs and outputs that are kept as they are, and that some pass reads without running any of eager's nodes that
    keep them: eager lets the program change them in place before such a pass."""
    savers: dict[Place, list[Node]] = {}
    for one in joint.watched:
        savers.setdefault(one.place, []).extend(one.savers)
    asked = [k for k, place in enumerate(halves.saved) if place in savers]
    if not asked:
        return set()
    source = joint.source
    numbers = {node: 1 << k for k, node in enumerate({saver: None for found in savers.values() for saver in found})}
    under, over = _between(source, numbers, [source.outputs[k] for k in joint.grad_outputs],
                           [source.inputs[k] for k in joint.grad_inputs])
    needs = _needs(halves.backward, len(halves.saved))

    def is_unchecked(k: int) -> bool:
        own = functools.reduce(operator.or_, (numbers[node] for node in savers[halves.saved[k]]), 0)
        return any(wanted >> i & 1 and not own & below & above
                   for wanted, below in zip(needs[k], under, strict=True) for i, above in enumerate(over))

    nodes = {"input": joint.graph.inputs, "output": joint.graph.outputs}
    found = {nodes[kind][i] for kind, i in (halves.saved[k] for k in asked if is_unchecked(k))}
    # eager holds what it computes a region from
    return found.difference(*(node.input_nodes() for node in joint.graph.nodes if REGION in node.meta))


def _savers(graph: Graph) -> dict[Node, int]:
    """The nodes of which autograd saves something, each with a bit of its own."""
    numbers: dict[Node, int] = {}
    for node in graph.nodes:
        if needs_grad(node.spec) and node.op is not GETITEM:
            saves = saved_by(graph.sizes, node)
            if saves is None or saves.anything:
                numbers[node] = 1 << len(numbers)
    return numbers


def _between(graph: Graph, numbers: dict[Node, int], outputs: list[Node],
             inputs: list[Node]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For each output the nodes that lie under it, for each input those that lie over it, as sums of `numbers`."""
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
    for k, node in enumerate(backward.outputs):
        if not depends.get(node, 0):  # a gradient that follows from saved values alone: whatever output it is of
            needs[node] = [mask | 1 << k for mask in needs[node]]
    for node in reversed(backward.nodes):
        own = [leads[node] if depends[node] >> j & 1 else 0 for j in range(len(cotangents))] if depends[node] \
            else needs[node]
        for source in node.input_nodes():
            leads[source] |= leads[node]
            if not depends.get(source, 0):
                needs[source] = [a | b for a, b in zip(needs[source], own, strict=True)]
    return tuple(tuple(needs[node]) for node in values)
