"""Closing a graph: outputs, copy-backs, and guards that keep separate memory separate."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from jitpy.ir import GETITEM, INPUT, Mutation, Node, contiguous_stride
from jitpy.ir import ops as table
from jitpy.ir.autograd_function import lower
from jitpy.ir.graph import BEFORE_WRITES, LATE_HISTORY

from ..breaks import GraphBreak, RestartAnalysis
from .autograd_facts import WRITES_STATISTICS, requires_grad, shows
from .history import drop_unused_history
from .inputs import owns_its_memory
from .traced import Finished, GraphBuilder, Storage, TracedScalar, TracedTensor, Uncapturable, ViewStep

_DETACH = table.get(torch.ops.aten.detach.default)
_CLONE = table.get(torch.ops.aten.clone.default)
_UNSAFE_VIEW = table.get(torch.ops.aten._unsafe_view.default)

#: Ops that the table lists with the views, whose results autograd takes for tensors of their own.
_UNSAFE_VIEWS = frozenset({_UNSAFE_VIEW.target, _DETACH.target})


#: why the graph breaks in front of such a write
NOT_BEHIND_ITS_WRITE = "results are computed from an argument that got a value with a history"


def finish_graph(builder: GraphBuilder, live: list[TracedTensor | TracedScalar]) -> Finished:
    """See `GraphBuilder.finish`."""
    graph = builder.graph
    _refuse_inference_tensors(builder)
    inference = builder.inference.settle(live)
    written = [
        (i, entry.payload)
        for i, entry in enumerate(builder.inputs)
        if isinstance(entry.payload, TracedTensor) and entry.payload.storage.written
    ]
    recorded = len(graph.nodes)
    places: list[tuple[str, int]] = []
    outputs: dict[int, int] = {}
    gone: dict[int, list[Node]] = {}
    shown = _Views(builder)
    for payload in live:
        if (
            isinstance(payload, TracedTensor)
            and payload.input is not None
            and builder.inputs[payload.input].payload is payload
        ):
            places.append(("input", payload.input))
            continue
        position = outputs.get(id(payload))
        if position is None:
            position = outputs[id(payload)] = len(graph.outputs)
            node = output_node(builder, payload, shown)
            passed = builder.history.inputs_if_gone(node)
            if passed is not None:
                gone[position] = passed
                node = builder.graph.add(_DETACH, (node,), {}, node.tensor.with_(requires_grad=False), node.loc,
                                          grad_enabled=False)
            graph.outputs.append(node)
        places.append(("gone" if position in gone else "output", position))
    for index, payload in written:
        storage = payload.storage
        # a leaf is changed under no_grad, and may have been read since
        apart = storage.lost_grad or any(node in builder.speculation.leaves for node in storage.values)
        sliced = any("through_view" in node.meta for node in storage.values)
        graph.mutations.append(Mutation(index, storage.base, False if apart else None, not storage.seen, storage.seen,
                                        sliced))
        if not storage.seen and graph.inputs[index].tensor.requires_grad:
            _write_as_data(builder, index)
    _mark_memory(builder, live)
    connected = _read_under_autograd(builder)
    drop_unused_history(graph, spent=bool(builder.history.freed))
    with_history = _written_histories(builder, written)
    inside = {outputs[id(p)] for p in live if inference is None and isinstance(p, TracedTensor) and p.storage.inference}
    results = frozenset(graph.nodes[recorded:])
    builder.speculation.settle(live)
    lower(graph, all_of_them=False)
    _protect_saved(builder, [i for i, _ in written], results)
    _guard_separate_memory(builder, [*(i for i, _ in written), *builder.speculation.turned])
    return Finished(graph, places, gone, sorted(connected - _read_under_autograd(builder), key=graph.inputs.index),
                    inference is True, sorted(inside), with_history)


def _read_under_autograd(builder: GraphBuilder) -> set[Node]:
    """The inputs that are views, and that something with a history is computed of."""
    graph = builder.graph
    views = {node for node, entry in zip(graph.inputs, builder.inputs, strict=True)
             if isinstance(entry.value, torch.Tensor) and entry.value.requires_grad and entry.value._base is not None}
    if not views:
        return views
    return {n for node in graph.nodes if requires_grad(node.spec) for n in node.input_nodes() if n in views}


def _written_histories(builder: GraphBuilder, written: list[tuple[int, TracedTensor]]) -> dict[Node, int]:
    """The inputs that got a value with a history, from which results are computed, and the steps that wrote it: a
    gradient must reach these results through the argument, which the program may watch. Raises RestartAnalysis where
    backward passes are captured as well."""
    graph = builder.graph
    found: dict[Node, int] = {}
    for index, payload in written:
        storage = payload.storage
        if storage.history is None or not requires_grad(storage.base.spec):
            continue
        behind = {storage.base}
        for node in graph.nodes:
            if requires_grad(node.spec) and not behind.isdisjoint(node.input_nodes()):
                behind.add(node)
        behind.remove(storage.base)
        if not behind.isdisjoint((*graph.outputs, *(mutation.value for mutation in graph.mutations))):
            found[graph.inputs[index]] = storage.history
    if found and (builder.history.freed or builder.speculation.leaves):
        raise RestartAnalysis(min(found.values()), GraphBreak("unsupported_op", NOT_BEHIND_ITS_WRITE))
    return found


def _check_history_of_view(builder: GraphBuilder, payload: TracedTensor) -> None:
    """A view of an argument that was written to gets its history from what owns the memory. The graph makes it from the
    argument, whose hooks see its gradient then: where that is a view itself, the program writes it. Raises
    RestartAnalysis."""
    storage = payload.storage
    if storage.history is None or payload.is_detached or not payload.spec.requires_grad:
        return
    entry = builder.inputs[storage.input]  # type: ignore[index]
    what = "a view of an argument, itself a view, that got a value with a history"
    if not owns_its_memory(entry.value):
        raise RestartAnalysis(storage.history, GraphBreak("input_mutation", what))
    builder.guards.add(entry.source, "python", owns_its_memory, what)


def _write_as_data(builder: GraphBuilder, index: int) -> None:
    """All that was written to an input that requires grad went through `.data`: the graph gets that instead. Not where
    the graph reads the input under grad mode, nor where a result is a view of it."""
    node = builder.graph.inputs[index]
    if not any(node in reader.input_nodes() and requires_grad(reader.spec) for reader in builder.graph.nodes) and \
            not any(shows(result, (node,)) for result in builder.graph.outputs):
        node.meta["as_data"] = True
        node.spec = node.tensor.with_(requires_grad=False)


def _mark_memory(builder: GraphBuilder, live: list[TracedTensor | TracedScalar]) -> None:
    """Values that have been in the same memory, which the program sees, have the same number as `meta["memory"]`:
    autograd refuses a backward pass that reads one of them when the memory was written to since. The nodes that
    computed them have the numbers as `meta["overwrites"]`: an in-place op keeps a copy of what it overwrites."""
    payloads = [*live, *(entry.payload for entry in builder.inputs)]
    storages = {p.storage: None for p in payloads if isinstance(p, TracedTensor) and p.storage.written}
    for number, storage in enumerate(storages):
        for value in storage.values:
            for node in _shown_by(value):
                if node.op is not INPUT:
                    node.meta["memory"] = number
        for node in storage.writers:
            node.meta["overwrites"] = (*node.meta.get("overwrites", ()), number)


def _shown_by(value: Node) -> Iterator[Node]:
    """A value, and what it was computed from without a copy."""
    yield value
    while value.op.is_view:
        value = value.input_nodes()[0]
        yield value


def _refuse_inference_tensors(builder: GraphBuilder) -> None:
    """Eager raises where autograd would keep a tensor made in inference mode, and does so at the user's line."""
    if any(isinstance(e.value, torch.Tensor) and e.value.is_inference() for e in builder.inputs) and any(
        requires_grad(node.spec) for node in builder.graph.nodes
    ):
        raise Uncapturable("unsupported_tensor", "an inference tensor among values that require grad")


def _protect_saved(builder: GraphBuilder, written: list[int], results: frozenset[Node]) -> None:
    """Autograd may keep an input for the backward pass; if the graph changes that input, let it keep a copy. Later
    operations of the program read that, not the nodes that make `results`, which look at the input itself. Nor do
    batch norms, whose backward passes do not read the statistics that the forward pass changes."""
    graph = builder.graph
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for operand in dict.fromkeys(node.input_nodes()) if node not in results else ():
            readers.setdefault(operand, []).append(node)
    for index in written:
        source = graph.inputs[index]
        if not _is_saved(source, readers):
            continue
        spec = source.tensor
        clone = Node(builder.op(torch.ops.aten.clone.default), (source,), {}, spec, graph.unique_name("clone"))
        for node in readers.get(source, ()):
            if node.op.target in WRITES_STATISTICS:
                continue
            node.replace_inputs(lambda n, old=source, new=clone: new if n is old else n)
        readers[clone] = readers.pop(source, [])
        graph.nodes.insert(0, clone)


def _is_saved(source: Node, readers: dict[Node, list[Node]]) -> bool:
    """Whether autograd may keep a tensor, or a view of it, for one of its readers."""
    memory = [source]
    for one in memory:
        for node in readers.get(one, ()):
            if node.op.is_view or node.op is GETITEM:
                memory.append(node)
            elif requires_grad(node.spec) and node.op.target not in WRITES_STATISTICS:
                return True
    return False


class _Views:
    """The views among results. A view of another view is made from that again: a view under `detach()` is the
    base of those that show it, and what the program writes to these later counts for it alone. A view behind a write
    has a history of its own: autograd makes it anew from what owns the memory."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._made: dict[tuple[Node, int], Node] = {}
        self._anew: dict[tuple[Node, int, int], Node] = {}
        self._owners: dict[Storage, Node] = {}

    def view(self, step: ViewStep, base: Node) -> Node:
        """`base` looked at through `step`: one node for each view that the program made."""
        found = self._made.get((base, id(step)))
        if found is None:
            found = self._made[base, id(step)] = self._builder.apply_step(step, base, as_made=True)
        return found

    def behind_writes(self, payload: TracedTensor, base: Node) -> Node:
        """A view of an argument that was made, or written to, behind a write to that."""
        chain, rebased = payload.chain, self._builder.rebased
        last = max((k for k, step in enumerate(chain) if id(step) in rebased), default=-1)
        anew = None if last < 0 or payload.is_detached else chain[last]
        node = base
        for step in chain[:last + 1] if anew is not None else ():
            key = node, id(step), id(anew)
            if key not in self._anew:
                self._anew[key] = self._builder.apply_step(step, node)
            node = self._anew[key]
        for step in chain[last + 1:] if anew is not None else chain:
            node = self.view(step, node)
        return node

    def owner(self, storage: Storage) -> Node:
        """The tensor that owns this memory for the program: the base of its views."""
        found = self._owners.get(storage)
        if found is None:
            found = self._owners[storage] = no_view(self._builder, storage.base)
        return found

    def mark_before_writes(self, node: Node) -> None:
        """The program made this view before it wrote to what it shows."""
        node.meta[BEFORE_WRITES] = True
        if node.op is GETITEM:
            node.args[0].meta[BEFORE_WRITES] = True


def output_node(builder: GraphBuilder, payload: TracedTensor | TracedScalar, shown: _Views) -> Node:
    """The node of a result: a view of the input or of the base that it shares memory with, or its own value."""
    if isinstance(payload, TracedScalar):
        return payload.node
    storage = payload.storage
    if storage.input is not None:
        # The copy-back writes into this memory, so that a view of the input itself has the final content.
        node = builder.graph.inputs[storage.input]
        if payload.generation == 0 == storage.generation and payload.anchored:
            return payload.node
        if not payload.chain:
            raise Uncapturable("unsupported_op", "a second object for a whole input")
        # autograd makes a view of what has a history already as one that is made behind the write which gave it that
        before = payload.made < (storage.generation if storage.turned is None else storage.turned)
        if not before:
            _check_history_of_view(builder, payload)
            return shown.behind_writes(payload, node)
        for step in payload.chain:
            node = shown.view(step, node)
            shown.mark_before_writes(node)
        return node
    owner = shown.owner(storage)
    if payload.generation != storage.generation or not payload.anchored or storage.written and payload.is_detached \
            or owner is not storage.base:
        is_anew = requires_grad(owner.spec) and payload.generation != storage.generation and \
            not payload.is_detached and not any(step.multi for step in payload.chain)
        builder.refresh(payload, None if is_anew else shown.view, owner)
    if payload.is_late:
        payload.node.meta[LATE_HISTORY] = True
    return payload.node


def no_view(builder: GraphBuilder, node: Node) -> Node:
    """A result that owns its memory, which to the program is no view, whatever it was computed through."""
    if not node.op.is_view or node.op.target in _UNSAFE_VIEWS:
        return node
    if not requires_grad(node.spec):
        return builder.graph.add(_DETACH, (node,), {}, node.tensor, node.loc, grad_enabled=False)
    shape = node.tensor.shape
    # it makes its own strides for axes of size 1
    if any(type(size) is int and size == 1 for size in shape) and node.tensor.stride != contiguous_stride(shape):
        return builder.graph.add(_CLONE, (node,), {}, node.tensor, node.loc, grad_enabled=True)
    return builder.graph.add(_UNSAFE_VIEW, (node, shape), {}, node.tensor, node.loc, grad_enabled=True)


def _guard_separate_memory(builder: GraphBuilder, written: list[int]) -> None:
    """A call in which a changed input, or one that was told to require grad, overlaps with another input needs another
    graph."""
    tensors = [i for i, entry in enumerate(builder.inputs) if isinstance(entry.payload, TracedTensor)]
    done: set[int] = set()
    for index in written:
        done.add(index)
        others = tuple(builder.inputs[i].source for i in tensors if i not in done)
        if others:
            builder.guards.add(builder.inputs[index].source, "overlap", others)
