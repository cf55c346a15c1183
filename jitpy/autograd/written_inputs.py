"""Arguments that get a value with a history, from which results are computed: the graph is cut at the write.

A gradient reaches such results through the argument, which the program may watch, retain or differentiate to. So the
first part writes the argument, and the second part takes it as it is then. Plain Python cannot make up for a failure of
the second part, as the argument has changed: nothing in such a graph may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..ir.alias import needs_grad
from ..ir.failures import graph_may_fail, is_effect
from ..ir.graph import INPUT, REGION, Graph, Node
from ..ir.spec import ScalarSpec
from .cuts import Cutter, Part
from .results import Bases

Compiled = Callable[..., tuple[Any, ...]]


def cut_at_writes(graph: Graph, inputs: Sequence[Node]) -> list[Part] | None:
    """The two parts of a graph that computes results from the new values of these inputs; None where one cannot run
    behind the other."""
    if graph.runs_once or graph.sizes.has_unbacked or graph.sizes.run_time_checks() or graph_may_fail(graph) or any(
            is_effect(node.op) or REGION in node.meta or isinstance(node.spec, ScalarSpec) for node in graph.nodes):
        return None
    values = {graph.inputs[mutation.input]: mutation.value for mutation in graph.mutations}
    written = {node: values[node] for node in inputs}
    behind = _behind(graph, written)
    if behind is None or not _is_apart(graph, written, behind):
        return None
    return Cutter(graph, Bases(graph), {node: int(node in behind) for node in graph.nodes}, 1, written).parts


def _behind(graph: Graph, written: dict[Node, Node]) -> set[Node] | None:
    """The nodes that gradients reach through the inputs, and all that is computed from these. None where one of the
    inputs gets such a value, or random numbers would be drawn in another order."""
    new, found = set(written.values()), set[Node]()
    draws = False
    for node in graph.nodes:
        ordered = node.op.is_random or not node.op.is_pure
        reads_new = needs_grad(node.spec) and not new.isdisjoint(node.input_nodes())
        if reads_new or not found.isdisjoint(node.input_nodes()):
            found.add(node)
            draws |= ordered
        elif ordered and draws:
            return None
    return found if new.isdisjoint(found) else None


def _is_apart(graph: Graph, written: dict[Node, Node], behind: set[Node]) -> bool:
    """Whether the second part needs nothing of the memory that the first part writes to but the inputs' new values, the
    first part reads nothing that the second one writes to, and no result shows memory that is written to."""
    bases, new = Bases(graph), set(written.values())

    def show(nodes: Iterable[Node], memory: set[Node]) -> bool:
        return any(not memory.isdisjoint({node, *bases.of(node)}) for node in nodes)

    targets = {graph.inputs[mutation.input] for mutation in graph.mutations}
    early = {source for node in graph.nodes if node not in behind for source in node.input_nodes()}
    read = {source for node in behind for source in node.input_nodes()} - behind - new
    # gradients of gradients take what the first part reads
    return not (any(value.op is INPUT for value in new) or not new.isdisjoint(graph.outputs) or
                show(graph.outputs, targets) or show(early, targets - set(written)) or show(read, set(written)))


def in_order(graph: Graph, parts: Sequence[Part], compiled: Sequence[Compiled]) -> Compiled:
    """The compiled parts of a graph as one callable."""
    places = {node: k for k, node in enumerate(graph.inputs)}
    runs: list[tuple[Compiled, list[int]]] = []
    for part, run in zip(parts, compiled, strict=True):
        runs.append((run, [places[node] for node in part.reads]))
        for node in part.results:
            places.setdefault(node, len(places))
    outputs = [places[node] for node in graph.outputs]

    def call(*inputs: Any) -> tuple[Any, ...]:
        values = list(inputs)
        for run, reads in runs:
            values += run(*[values[k] for k in reads])
        return tuple([values[k] for k in outputs])

    return call
