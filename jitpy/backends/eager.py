"""The backend `eager`: runs the captured graph op by op with torch's kernels, under eager's autograd."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from ..ir import CONSTANT, GETITEM, Graph, Node
from ..ir.algebra import sympy
from ..ir.alias import alias_kind, any_needs_grad, copies_before_write, views_behind_writes
from ..ir.graph import IN_INFERENCE_MODE, OWN_VERSIONS
from ..ir.interpret import in_inference_mode
from ..ir.ops.registered import looks_at_grad_mode
from ..ir.trees import tree_map
from ..runtime.autograd_node import watch_change
from ..runtime.plan import CallStep, CopyStep, Plan, SlotRef, counted_writes, freed_early
from .size_table import SizeTable


def compile_graph(graph: Graph, options: dict[str, Any]) -> Callable[..., tuple[Any, ...]]:
    """Make `graph` callable; `options` are not used."""
    from ..runtime.executable import make_executable

    return make_executable(plan_graph(graph))


def plan_graph(graph: Graph) -> Plan:
    """The graph as a plan of eager calls, in the graph's order.

    Raises `NotCovered` where a size cannot be computed from the inputs.
    """
    return _Planner(graph).plan()


class _Planner:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.table = SizeTable(graph)
        self.slots: dict[Node, int] = {node: i for i, node in enumerate(graph.inputs)}
        self.n_slots = len(graph.inputs)
        self.steps: list[Any] = []
        #: the grad mode matters only where something requires grad
        self.follows_grad = any_needs_grad(graph.nodes)
        # An output that is a view shares its base's version counter only where autograd's own kernels made it.
        self.autograd = self.follows_grad or any(alias_kind(graph, node) != "copy" for node in graph.outputs)

    def plan(self) -> Plan:
        graph = self.graph
        parts = self._parts_read_alone()
        calls = [node for node in graph.nodes
                 if node.op is not CONSTANT and not (node.op is GETITEM and node.args[0] in parts)]
        behind = views_behind_writes(graph) if self.autograd else set()
        for node in calls:
            if node not in behind:
                self._call(node, parts.get(node))
        self._copy_back()
        for node in calls:
            if node in behind:
                self._call(node, parts.get(node))
        outputs = tuple(self._slot_of(node) for node in graph.outputs)
        if self.follows_grad:
            self._watch_changes()
        self.table.finish()
        if not self.follows_grad:
            self.steps = freed_early(self.steps, len(graph.inputs), outputs)
        return Plan(len(graph.inputs), self.n_slots, outputs, self.steps, symbols=self.table.symbols,
                    n_sizes=len(self.table), size_function_py=self.table.python_function(),
                    size_entries=self.table.start_entries, n_symbols=self.table.n_symbols,
                    unseen=self.graph.unseen_inputs(), more_writes=self.graph.more_writes(), autograd=self.autograd)

    def _parts_read_alone(self) -> dict[Node, dict[int, list[Node]]]:
        """Multi-output nodes of which only parts are read: for each, the getitem nodes by index."""
        whole: set[Node] = set(self.graph.outputs)
        parts: dict[Node, dict[int, list[Node]]] = {
            node: {} for node in self.graph.nodes
            if isinstance(node.spec, tuple) and node.spec and node.op is not GETITEM
        }
        for node in self.graph.nodes:
            if node.op is GETITEM and node.args[0] in parts:
                parts[node.args[0]].setdefault(node.args[1], []).append(node)
            else:
                whole.update(node.input_nodes())
        return {node: found for node, found in parts.items() if node not in whole}

    def _new_slot(self) -> int:
        self.n_slots += 1
        return self.n_slots - 1

    def _slot_of(self, node: Node) -> int:
        slot = self.slots.get(node)
        if slot is None:
            assert node.op is CONSTANT, f"{node.name} is read before it is computed"
            slot = self.slots[node] = self._new_slot()
            self.steps.append(CallStep(_constant, (node.args[0],), {}, (slot,)))
        return slot

    def _argument(self, value: Any) -> Any:
        return tree_map(self._leaf, value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, Node):
            if value.op is CONSTANT and value not in self.slots:
                return value.args[0]
            return SlotRef(self.slots[value])
        if isinstance(value, sympy.Basic):
            return self.table.ref(value)
        return value

    def _call(self, node: Node, parts: dict[int, list[Node]] | None) -> None:
        function = operator.getitem if node.op is GETITEM else node.op.target
        if OWN_VERSIONS in node.meta:
            function = torch.Tensor.data.__get__  # type: ignore[attr-defined]
        elif node.op.copies_memory:
            function = functools.partial(_scattered, function)
        elif IN_INFERENCE_MODE in node.meta:
            function = in_inference_mode(function)
        args = tuple(self._argument(arg) for arg in node.args)
        kwargs = {key: self._argument(arg) for key, arg in node.kwargs.items()}
        grad = node.grad_enabled if self.autograd and node.op is not GETITEM else \
            False if looks_at_grad_mode(node.op) else None
        if parts is None:
            slot = self.slots[node] = self._new_slot()
            self.steps.append(CallStep(function, args, kwargs, (slot,), grad=grad))
            self.steps += self.table.bind(node, slot)
            return
        slots: list[int | None] = [None] * len(node.spec)  # type: ignore[arg-type]
        for index, readers in parts.items():
            slot = slots[index] = self._new_slot()
            for reader in readers:
                self.slots[reader] = slot
        self.steps.append(CallStep(function, args, kwargs, tuple(slots), multiple=True, grad=grad))
        for readers in parts.values():
            for reader in readers:
                self.steps += self.table.bind(reader, self.slots[reader])

    def _copy_back(self) -> None:
        first = copies_before_write(self.graph)
        sources = []
        for mutation in self.graph.mutations:
            source = self._slot_of(mutation.value)
            if mutation.value in first:
                copy = self._new_slot()
                grad = mutation.runs_with_grad if self.autograd else None
                self.steps.append(CallStep(torch.ops.aten.clone.default, (SlotRef(source),), {}, (copy,), grad=grad))
                source = copy
            sources.append(source)
        for mutation, source in zip(self.graph.mutations, sources, strict=True):
            if self.autograd and not mutation.unseen and any_needs_grad(
                (mutation.value, self.graph.inputs[mutation.input])
            ):
                # copy_ takes part in autograd: its grad mode counts
                self.steps.append(CallStep(torch.ops.aten.copy_.default, (SlotRef(mutation.input), SlotRef(source)), {},
                                           (self._new_slot(),), grad=mutation.runs_with_grad))
            else:
                self.steps.append(CopyStep(mutation.input, source))
        self.steps += counted_writes(self.graph.more_writes())

    def _watch_changes(self) -> None:
        """A value that an in-place op wrote is not in the memory that it was written to: autograd has to be told."""
        from ..autograd.watching import unseen_by_autograd

        for one in unseen_by_autograd(self.graph):
            nodes = self.graph.inputs if one.place[0] == "input" else self.graph.outputs
            seen = SlotRef(self._slot_of(nodes[one.place[1]]))
            text = one.text or self._argument(one.value)
            for saver in one.savers:
                parts = [saver] if saver in self.slots and not isinstance(saver.spec, tuple) else [
                    node for node in self.graph.nodes if node.op is GETITEM and node.args[0] is saver]
                for part in parts[:1]:
                    self.steps.append(CallStep(watch_change, (SlotRef(self.slots[part]), seen, text), {},
                                               (self._new_slot(),)))


def _scattered(scatter: Callable[..., torch.Tensor], base: torch.Tensor, *args: Any) -> torch.Tensor:
    """The tensor that eager writes to has memory of its own, which begins where the tensor does."""
    if base.storage_offset():
        copy = base.clone()
        base = copy if copy.stride() == base.stride() else base
    return scatter(base, *args)


def _constant(tensor: torch.Tensor) -> torch.Tensor:
    """An output that is a constant is the constant itself."""
    return tensor
