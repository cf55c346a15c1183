"""Results that are computed from each other: the graph is cut, so that each of them has a node of autograd's in front
of it.

A compiled graph is one node of autograd's. Where `z` is computed from `y` and both are results, a hook on `y`,
`y.retain_grad()` and `torch.autograd.grad(z, y)` want the gradient that reaches `y` through `z`. So `y` is a result of
one part of the graph and an input of the next one, and autograd itself adds up what arrives. Within a part no result
that requires grad depends on another, but for views, which torch's autograd makes (`results.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..ir.algebra import sympy
from ..ir.alias import has_tensor, needs_grad, shown_results
from ..ir.graph import CONSTANT, DROPS_GRAD, GETITEM, INPUT, REENTRANT, REGION, Graph, Node, map_nodes
from ..ir.op import NotCovered
from ..ir.spec import ScalarSpec, TensorSpec
from .joint import check, narrow_specs, standing_for, symbols_in
from .results import Bases
from .watching import MADE_BY


@dataclass
class Part:
    """A part of a graph, which takes inputs of the whole and results of earlier parts.

    reads     the nodes of the whole that its inputs stand for
    results   those that its outputs stand for
    """

    graph: Graph
    reads: list[Node] = field(default_factory=list)
    results: list[Node] = field(default_factory=list)


def cut(graph: Graph) -> list[Part]:
    """The parts of a graph, in the order in which they run; none where it can stay whole.

    Random numbers are drawn in the order of the graph, and inputs are written by the last part. Raises NotCovered for
    graphs that torch's autograd has to run.
    """
    shown = _seen(graph)
    if not _depends(graph, shown):
        return []
    check(graph)
    narrow_specs(graph)
    shown = _seen(graph)
    bases = Bases(graph)
    levels = _levels(graph, shown, bases)
    last = max(levels.values(), default=0)
    if not last:
        return []
    stages = _stages(graph, levels, last, bases)
    _check_written_late(graph, bases, stages, last)
    return Cutter(graph, bases, stages, last).parts


# -- where the graph is cut ---------------------------------------------------------------------------------------


def _seen(graph: Graph) -> set[Node]:
    """The values whose gradients the program may watch: results, and those that inputs get."""
    return shown_results(graph) | {mutation.value for mutation in graph.mutations if mutation.gives_history}


def _depends(graph: Graph, shown: set[Node]) -> bool:
    """Whether a gradient flows from one of these results to another one."""
    if len(shown) < 2:
        return False
    behind: set[Node] = set()
    for node in graph.nodes:
        if needs_grad(node.spec) and any(n in behind or n in shown for n in node.input_nodes()):
            if node in shown:
                return True
            behind.add(node)
    return False


def _levels(graph: Graph, shown: set[Node], bases: Bases) -> dict[Node, int]:
    """For each node the first part that it can be in.

    A value that is computed from a result, and leads to another one, is a level above it; views are on the level of
    what they show. Random nodes stay in order, and a reentrant checkpoint stays together: in eager it is one node.
    """
    leading = _leading(graph, shown)
    floors: dict[Any, int] = {}
    while True:
        levels: dict[Node, int] = dict.fromkeys(graph.inputs, 0)
        seen: set[Node] = set()  # results, and views of them
        order = 0
        for node in graph.nodes:
            region = _reentrant(node)
            level = 0 if region is None else floors.get(region, 0)
            is_view = node.op is GETITEM or node.op is not CONSTANT and bases.is_view(node)
            for source in node.input_nodes():
                above = source in seen and node in leading and not is_view and (
                    region is None or _reentrant(source) is not region)
                level = max(level, levels[source] + above)
                if is_view and source in seen and needs_grad(node.spec):
                    seen.add(node)
            if node.op.is_random or not node.op.is_pure:
                order = level = max(level, order)
            if node in shown:
                seen.add(node)
            levels[node] = level
        higher = dict(floors)
        for node in graph.nodes:
            if (region := _reentrant(node)) is not None:
                higher[region] = max(higher.get(region, 0), levels[node])
        if higher == floors:
            return levels
        floors = higher


def _reentrant(node: Node) -> Any:
    return node.meta.get(REGION) if REENTRANT in node.meta else None


def _leading(graph: Graph, shown: set[Node]) -> set[Node]:
    """The nodes through which a gradient flows from one of these results."""
    found = set(shown)
    for node in reversed(graph.nodes):
        if node in found and (node.grad_enabled or node.op is GETITEM):
            found.update(n for n in node.input_nodes() if needs_grad(n.spec))
    return found


def _stages(graph: Graph, levels: dict[Node, int], last: int, bases: Bases) -> dict[Node, int]:
    """For each node the part that it is in: that of its first reader, where that does not make more cross the cut.

    Results that show an input which is written are made by the part that writes it.
    """
    stages = dict(levels)
    outputs = set(graph.outputs)
    written = {graph.inputs[mutation.input] for mutation in graph.mutations}
    for node in outputs if written else ():
        if not needs_grad(node.spec) and not written.isdisjoint(bases.of(node)):
            levels[node] = last
    first: dict[Node, int] = {mutation.value: last for mutation in graph.mutations}
    for node in reversed(graph.nodes):
        fixed = node in outputs or node.op.is_random or not node.op.is_pure or REENTRANT in node.meta
        stage = stages[node] = levels[node] if fixed or node not in first else first[node]
        for source in node.input_nodes():
            first[source] = min(stage, first.get(source, stage))

    def size(node: Node) -> int:
        specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
        return sum(int(graph.sizes.hint(spec.nbytes)) for spec in specs if isinstance(spec, TensorSpec))

    for node in graph.nodes:
        sources = [n for n in dict.fromkeys(node.input_nodes()) if n.op is not INPUT and n.op is not CONSTANT]
        if node.op is GETITEM:
            stages[node] = stages[node.args[0]]
        elif stages[node] > levels[node]:
            crossing = [n for n in sources if stages[n] < stages[node] and n not in outputs]
            if crossing and size(node) < sum(map(size, crossing)):
                stages[node] = max([levels[node], *(stages[n] for n in sources)])
    return stages


def _check_written_late(graph: Graph, bases: Bases, stages: dict[Node, int], last: int) -> None:
    """Values that an earlier part keeps are in memory of their own, and would not change with an input that gets it
    later."""
    written = frozenset().union(*(bases.of(mutation.value) for mutation in graph.mutations)).difference(graph.inputs)
    for node in graph.nodes if written else ():
        if stages[node] < last and needs_grad(node.spec) and any(
                not written.isdisjoint(bases.of(n)) for n in node.input_nodes() if has_tensor(n.spec)):
            raise NotCovered("a value that an earlier part may keep, and the last one writes to an input")


# -- the parts ----------------------------------------------------------------------------------------------------


class Cutter:
    """Distributes a graph's nodes over its parts.

    `written`: values that the first part writes to inputs (input -> value), which later parts read there. The last part
    writes all others.
    """

    def __init__(self, graph: Graph, bases: Bases, stages: dict[Node, int], last: int,
                 written: Mapping[Node, Node] | None = None) -> None:
        self.graph = graph
        self.bases = bases
        self.stages = stages
        self.read_at = {value: source for source, value in (written or {}).items()}
        self.outputs = set(graph.outputs)
        self.parts = [Part(graph.derived(f"{graph.name}_part{k + 1}")) for k in range(last + 1)]
        self.made: list[dict[Node, Node]] = [{} for _ in self.parts]
        for node in graph.nodes:
            if node.op is not CONSTANT:
                self._add(node, stages[node])
        for node in graph.outputs:
            if node.op is CONSTANT:
                self._result(node, last)
            elif node.op is not INPUT:
                self._result(node, stages[node])
        for mutation in graph.mutations:
            stage = 0 if mutation.value in self.read_at else last
            target, value = self._at(graph.inputs[mutation.input], stage), self._at(mutation.value, stage)
            part = self.parts[stage].graph
            part.mutations.append(replace(mutation, input=part.inputs.index(target), value=value,
                                          grad_enabled=mutation.runs_with_grad))
        for stage in range(last + 1):
            self._bind_symbols(stage)

    def _at(self, node: Node, stage: int) -> Node:
        """The node that stands for one of the whole graph in a part."""
        found = self.made[stage].get(node)
        if found is not None:
            return found
        if node.op is INPUT:
            return self._input(node, stage)
        if stage and node in self.read_at:
            made = self.made[stage][node] = self._at(self.read_at[node], stage)
            made.spec = made.tensor.with_(requires_grad=True)
            made.meta[MADE_BY] = self.graph, node
            return made
        if node.op is CONSTANT or self._is_made_again(node):
            return self._add(node, stage)
        if self.stages[node] > stage:
            raise NotCovered("a result that shows an input that is written")
        if isinstance(node.spec, tuple):
            raise NotCovered("several values at once that are computed from a result")
        self._result(node, self.stages[node])
        return self._input(node, stage)

    def _is_made_again(self, node: Node) -> bool:
        """Whether each part that reads a value makes its own: views, numbers, and what is made from nothing."""
        if node in self.outputs and needs_grad(node.spec) or node.op.is_random or not node.op.is_pure:
            return False
        if node.op is GETITEM:
            return self._is_made_again(node.args[0])
        if not has_tensor(node.spec):
            return True
        return self.bases.is_view(node) or node.op.kind == "factory" and not any(
            has_tensor(n.spec) for n in node.input_nodes())

    def _add(self, node: Node, stage: int) -> Node:
        def operand(n: Node) -> Node:
            return self._at(n, stage)

        args = map_nodes(node.args, operand)
        kwargs = {key: map_nodes(value, operand) for key, value in node.kwargs.items()}
        made = self.parts[stage].graph.add(node.op, args, kwargs, node.spec, node.loc, node.name, node.grad_enabled)
        made.meta.update(node.meta)
        self.made[stage][node] = made
        return made

    def _input(self, node: Node, stage: int) -> Node:
        part = self.parts[stage]
        assert isinstance(node.spec, (TensorSpec, ScalarSpec))
        made = part.graph.add_input(node.spec, node.name)
        if node.op is INPUT:
            made.meta.update(node.meta)
            if stage < len(self.parts) - 1:
                made.meta.pop(DROPS_GRAD, None)  # something may still fail
        else:
            made.meta[MADE_BY] = self.graph, node
            if "memory" in node.meta:
                made.meta["memory"] = node.meta["memory"]
        part.reads.append(node)
        self.made[stage][node] = made
        return made

    def _result(self, node: Node, stage: int) -> None:
        part = self.parts[stage]
        if node not in part.results:
            part.results.append(node)
            part.graph.outputs.append(self._at(node, stage))

    def _bind_symbols(self, stage: int) -> None:
        """Let a part have the inputs that tell the sizes which it mentions."""
        part, places = self.parts[stage].graph, self.graph.symbol_bindings()
        if any(kind == "offset" for _, kind, _ in places.values()) and self.graph.mutations:
            raise NotCovered("offsets that are not known, of inputs that are written")
        while True:
            mentioned: set[sympy.Symbol] = set()
            for node in part.all_nodes():
                mentioned |= symbols_in((node.args, node.kwargs, node.spec))
            mentioned |= standing_for(part.sizes, mentioned)
            missing = sorted((mentioned - part.symbol_bindings().keys()) & places.keys(), key=str)
            if not missing:
                return
            self._input(self.graph.inputs[places[missing[0]][0]], stage)


__all__ = ["Cutter", "Part", "cut"]
