"""Closing a graph: outputs, copy-backs, and guards that keep separate memory separate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitpy.ir import Mutation, Node

from .traced import TracedScalar, TracedTensor, Uncapturable

if TYPE_CHECKING:
    from .recorder import Finished, Recorder


def finish_graph(recorder: Recorder, live: list[TracedTensor | TracedScalar]) -> Finished:
    """See `Recorder.finish`."""
    from .recorder import Finished

    graph = recorder.graph
    written = [(i, entry.payload) for i, entry in enumerate(recorder._inputs)
               if isinstance(entry.payload, TracedTensor) and entry.payload.storage.written]
    places: list[tuple[str, int]] = []
    outputs: dict[int, int] = {}
    for payload in live:
        if isinstance(payload, TracedTensor) and payload.input is not None and \
                recorder._inputs[payload.input].payload is payload:
            places.append(("input", payload.input))
            continue
        position = outputs.get(id(payload))
        if position is None:
            position = outputs[id(payload)] = len(graph.outputs)
            graph.outputs.append(output_node(recorder, payload))
        places.append(("output", position))
    for index, payload in written:
        graph.mutations.append(Mutation(index, payload.storage.base))
    _guard_separate_memory(recorder, [i for i, _ in written])
    return Finished(graph, places)


def output_node(recorder: Recorder, payload: TracedTensor | TracedScalar) -> Node:
    """The node of a result: a view of the input or of the base that it shares memory with, or its own value."""
    if isinstance(payload, TracedScalar):
        return payload.node
    storage = payload.storage
    if storage.input is not None:
        # The copy-back writes into this memory, so that a view of the input itself has the final content.
        node = recorder.graph.inputs[storage.input]
        if payload.generation == 0 == storage.generation and payload.anchored:
            return payload.node
        for step in payload.chain:
            node = recorder._apply_step(step, node)
        if not payload.chain:
            raise Uncapturable("unsupported_op", "a second object for a whole input")
        return node
    if payload.generation != storage.generation or not payload.anchored:
        recorder._refresh(payload)
    return payload.node


def _guard_separate_memory(recorder: Recorder, written: list[int]) -> None:
    """A call in which a changed input overlaps with another input needs another graph."""
    tensors = [i for i, entry in enumerate(recorder._inputs) if isinstance(entry.payload, TracedTensor)]
    done: set[int] = set()
    for index in written:
        done.add(index)
        others = tuple(recorder._inputs[i].source for i in tensors if i not in done)
        if others:
            recorder.guards.add(recorder._inputs[index].source, "overlap", others)
