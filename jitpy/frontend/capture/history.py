"""Which parts of a recorded graph autograd still has to know about.

A backward pass that was captured has run when the graph has: eager has freed by then what it kept, and values on the
way still say that they require grad, but a second backward pass through them raises. Everything that no result's
history leads through is ordinary computation, and runs without autograd.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from jitpy.ir import GETITEM, INPUT, Graph, Node, Spec, TensorSpec
from jitpy.ir.alias import hidden_history, needs_grad

from .autograd_facts import keeps_anything
from .traced import GraphBuilder

_DETACH = torch.ops.aten.detach.default

#: Eager's error when a backward pass meets tensors that another one has freed.
TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


class History:
    """The nodes that backward passes have run through, without `retain_graph`."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self.freed: frozenset[Node] = frozenset()
        #: those that functions of `torch.autograd.functional` have asked for
        self.functional_passes = 0
        self._keeps: dict[Node, bool] = {}

    def free(self, nodes: Iterable[Node]) -> None:
        """A backward pass has run through `nodes`."""
        self._builder.set(self, "freed", self.freed.union(node for node in nodes if node.op is not INPUT))

    def is_spent(self, nodes: Iterable[Node]) -> bool:
        """Whether a backward pass through `nodes` meets what was freed. A node that kept nothing may be used again."""
        return any(self._keeps_anything(node) for node in nodes if node in self.freed)

    def _keeps_anything(self, node: Node) -> bool:
        found = self._keeps.get(node)
        if found is None:
            found = self._keeps[node] = keeps_anything(self._builder, node)
        return found

    def inputs_if_gone(self, node: Node) -> list[Node] | None:
        """The inputs that a backward pass from `node` would come to, if it would raise; else None."""
        if not self.freed or not needs_grad(node.spec):
            return None
        from jitpy.autograd.reverse import active_nodes

        graph = self._builder.graph
        inputs = [n for n in graph.inputs if needs_grad(n.spec)]
        active = active_nodes(graph.nodes, [*inputs, *self._builder.speculation.leaves], [node])
        return [n for n in inputs if n in active] if self.is_spent(active) else None


def drop_unused_history(graph: Graph, spent: bool = False) -> None:
    """Let everything run without autograd through which the history of no result or value written back leads.

    `spent`: a backward pass was captured. Else what results that were made under no_grad look at has a history."""
    wanted = {node for node in graph.outputs if needs_grad(node.spec)}
    if not spent:
        wanted.update(base for node in graph.outputs if (base := hidden_history(graph, node)) is not None)
    for mutation in graph.mutations:
        target = graph.inputs[mutation.input]
        if mutation.runs_with_grad and (needs_grad(mutation.value.spec) or needs_grad(target.spec)):
            wanted.add(mutation.value)
    for node in reversed(graph.nodes):
        # not by their specs: those of what composite ops do inside need not tell
        if node in wanted and (node.grad_enabled or node.op is GETITEM) and node.op.target is not _DETACH:
            wanted.update(node.input_nodes())
    for node in graph.nodes:
        if node.op is GETITEM and node.args[0] in wanted:
            continue  # as the other parts of one result
        if node not in wanted and needs_grad(node.spec):
            node.spec, node.grad_enabled = plain(node.spec), False


def plain(spec: Spec) -> Spec:
    """The spec of a value, or of several, without a history."""
    if isinstance(spec, tuple):
        return tuple(map(plain, spec))
    return spec.with_(requires_grad=False) if isinstance(spec, TensorSpec) else spec


def without_history(tensor: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    """The tensor as eager leaves it behind a backward pass (run by compiled code): it requires grad, and a second
    backward pass raises, also one to the inputs of which it was computed."""
    leaf = tensor.detach().requires_grad_()
    result = torch._C._functions.DelayedError(TWICE, 1 + len(inputs))(leaf, *inputs)  # type: ignore[attr-defined]
    return result[0] if inputs else result


def retain_gradient(tensor: torch.Tensor, grad: torch.Tensor | None) -> None:
    """A result retains its gradient (run by compiled code): what it has of captured passes, and what comes later."""
    tensor.retain_grad()
    if grad is not None:
        tensor.grad = grad


def bring_up_to_date(*views: torch.Tensor) -> None:
    """Eager's step where it computes something of a view whose base was written to (run by compiled code): until
    then the view counts as a leaf that nobody may write."""
    for view in views:
        view.grad_fn  # noqa: B018


__all__ = ["TWICE", "History", "bring_up_to_date", "drop_unused_history", "plain", "retain_gradient",
           "without_history"]
