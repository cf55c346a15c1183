"""Which inputs and results of a graph eager's autograd would keep, and so check for changes in place.

The compiled node may keep other values than eager's nodes do. It must still raise where eager raises, and nowhere else:
what eager keeps and the node does not is *watched*; what eager does not keep, the node keeps as a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..ir.alias import alias_kind, needs_grad
from ..ir.autograd_saves import saved_by
from ..ir.graph import CONSTANT, GETITEM, INPUT, OWN_VERSIONS, Graph, Node
from ..ir.spec import TensorSpec
from ..runtime.autograd_node import REFUSED_VIEW, type_name
from .results import Bases

_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default

#: In the meta of a part's input: the whole graph, and its node that an earlier part computes.
MADE_BY = "made by"
#: ('input', i) or ('output', k)
Place = tuple[str, int]


@dataclass
class Watched:
    """A tensor whose memory the program sees, kept by eager's nodes.

    text     as eager's error names it: type, shape and maker; empty where only the tensor itself tells
    value    what eager keeps: this memory's value, or a view of it
    savers   the nodes of the graph whose backward passes check it
    """

    place: Place
    text: str
    value: Node
    savers: list[Node] = field(default_factory=list)


@dataclass
class KeptByEager:
    """watched: in the order in which a backward pass comes upon them. places: all that eager keeps, or may keep, of the
    inputs and outputs; through_data: what it keeps through `.data`, whose changes it does not see. counters: of whose
    `.data`s it keeps anything (see `counter_of`)."""

    watched: list[Watched]
    places: set[Place]
    through_data: set[Place]
    counters: set[object]


def kept_by_eager(graph: Graph) -> KeptByEager:
    """The values that eager keeps of the inputs and outputs of a graph (outputs own their memory: see
    `results.separate`).

    A value that was written into an input counts as that input: the graph builder lets no program overwrite what
    autograd keeps, so that the value is the last one.
    """
    bases = Bases(graph)
    places = _places(graph, bases)
    counters: set[object] = set()
    parts: dict[tuple[Node, int], list[Node]] = {}
    for node in graph.nodes:
        if node.op is GETITEM:
            parts.setdefault((node.args[0], node.args[1]), []).append(node)
    found: dict[tuple[Place, str], Watched] = {}
    seen: set[Place] = set()
    through_data: set[Place] = set()

    def watch(saver: Node, value: Node) -> None:
        own, _ = counter_of(bases, value)
        counters.add(own)
        for place in places_of(value):
            if _counter_at(graph, bases, place) is not own:
                through_data.add(place)
                continue
            seen.add(place)
            text = _text(graph, value)
            savers = found.setdefault((place, text), Watched(place, text, value)).savers
            if saver not in savers:
                savers.append(saver)

    def places_of(value: Node) -> list[Place]:
        return [place for base in bases.of(value) for place in places.get(base, ())]

    for node in reversed(graph.nodes):
        if node.op is GETITEM or node.op is CONSTANT or not needs_grad(node.spec):
            continue
        sources = list(dict.fromkeys(node.input_nodes()))
        results = [(0, node)] if isinstance(node.spec, TensorSpec) else \
            [(i, part) for (maker, i), found_parts in parts.items() if maker is node for part in found_parts]
        if not any(places_of(n) for n in sources) and not any(places_of(n) for _, n in results):
            continue
        saves = saved_by(graph.sizes, node)
        if saves is None:
            seen.update(place for n in (*sources, *(part for _, part in results)) for place in places_of(n))
            continue
        overwrites = node.meta.get("overwrites", ())
        for i in saves.operands:
            if not overwrites or not any(base.meta.get("memory") in overwrites for base in bases.of(sources[i])):
                watch(node, sources[i])
        for i, part in results:
            if i in saves.results:
                watch(node, part)
    return KeptByEager(list(found.values()), seen, through_data - seen, counters - {None})


def counter_of(bases: Bases, value: Node) -> tuple[object, Node | None]:
    """Which version counter goes up when a value is written to: that of some `.data` of which it is a view (the step
    that took it, and the node), or None: the one that comes with the memory."""
    while bases.is_view(value) and value.op is not GETITEM:
        if (found := value.meta.get(OWN_VERSIONS)) is not None:
            return found, value
        value = value.input_nodes()[0]
    return None, None


def counter_at_run_time(bases: Bases, value: Node) -> Node | None:
    """Whose version counter goes up when torch itself runs the graph, and a value is written to: that of a view, on the
    way, with one of its own, or None: that of what owns the memory."""
    while bases.is_view(value) and value.op is not GETITEM:
        if OWN_VERSIONS in value.meta or value.op.target is _UNSAFE_VIEW:
            return value
        value = value.input_nodes()[0]
    return None


def _counter_at(graph: Graph, bases: Bases, place: Place) -> object:
    return None if place[0] == "input" else counter_of(bases, graph.outputs[place[1]])[0]


def unseen_by_autograd(graph: Graph) -> list[Watched]:
    """Of a graph that runs op by op under torch's autograd: what eager would keep in the memory of an input or output,
    and this run keeps elsewhere, because it writes at the end; and what an earlier part of the program's graph made."""
    if not graph.mutations and not any(
            "memory" in node.meta or MADE_BY in node.meta for node in graph.all_nodes()):
        return []
    bases = Bases(graph)

    def is_apart(one: Watched) -> bool:
        kind, i = one.place
        seen = (graph.inputs if kind == "input" else graph.outputs)[i]
        same_counter = counter_at_run_time(bases, seen) is counter_at_run_time(bases, one.value)
        return MADE_BY in one.value.meta or not same_counter or bases.of(seen).isdisjoint(bases.of(one.value))

    return [one for one in kept_by_eager(graph).watched if is_apart(one)]


def _places(graph: Graph, bases: Bases) -> dict[Node, list[Place]]:
    """Whose memory each value is in when the graph has ended."""
    places: dict[Node, list[Place]] = {}
    written: dict[object, Place] = {}
    changed = {mutation.input for mutation in graph.mutations if not mutation.unseen}
    for i, node in enumerate(graph.inputs):
        if isinstance(node.spec, TensorSpec) and i not in changed:
            places[node] = [("input", i)]
    for mutation in graph.mutations:
        for base in bases.of(mutation.value):
            if base.op is not INPUT or base is graph.inputs[mutation.input]:
                places.setdefault(base, []).append(("input", mutation.input))
        if (memory := mutation.value.meta.get("memory")) is not None:
            written[memory] = ("input", mutation.input)
    for k, node in enumerate(graph.outputs):
        for base in bases.of(node):
            if base.op is not INPUT:
                places.setdefault(base, []).append(("output", k))
            elif counter_of(bases, node)[0] is not None:
                inside = ("input", graph.inputs.index(base))
                for found in places.values():
                    if inside in found:
                        found.append(("output", k))
        for shown in (node, *bases.of(node)):
            if (memory := shown.meta.get("memory")) is not None:
                written[memory] = ("output", k)
    for node in graph.nodes:
        place = written.get(node.meta.get("memory"))
        for base in bases.of(node):
            if place is not None and base.op is not INPUT and place not in places.setdefault(base, []):
                places[base].append(place)
    return places


def _text(graph: Graph, value: Node) -> str:
    """How eager's error names a kept value."""
    if MADE_BY in value.meta:
        return _text(*value.meta[MADE_BY])
    spec = value.tensor
    if value.op is INPUT or not all(isinstance(size, int) for size in spec.shape):
        return ""
    text = f"[{type_name(spec.dtype, spec.device)} {list(spec.shape)}]"
    if not spec.requires_grad:
        return text
    producer, number = (value.args[0], value.args[1]) if value.op is GETITEM else (value, 0)
    saves = saved_by(graph.sizes, producer)
    maker = saves.makers[number] if saves is not None and number < len(saves.makers) else None
    if maker and _is_one_of_several(graph, value):
        return f"Output {number} of {maker} {REFUSED_VIEW}"
    return f"{text}, which is output {number} of {maker}," if maker else text


def _is_one_of_several(graph: Graph, value: Node) -> bool:
    """Whether a value is one of several views that were made at once, or a view of one: autograd refuses to read it
    once its memory was written to."""
    node = value
    while node.op is not INPUT and alias_kind(graph, node) == "view":
        if node.op is GETITEM:
            return node.grad_enabled
        node = node.input_nodes()[0]
    return False


__all__ = ["KeptByEager", "Watched", "kept_by_eager", "unseen_by_autograd"]
