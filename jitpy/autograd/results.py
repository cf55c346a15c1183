"""Results that are views: which of them the compiled node returns, and which are made again from others by torch
itself.

A result that shares memory with an input, with another result or with what the backward pass keeps must be a view
that autograd knows: the program may change either in place. So the node returns what owns the memory, and a small
graph of view ops, run under torch's autograd, makes the results from that and from the inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..ir.alias import alias_kind, has_tensor, hidden_history
from ..ir.autograd_function import NAME as AUTOGRAD_FUNCTION
from ..ir.graph import BEFORE_WRITES, CONSTANT, GETITEM, IN_INFERENCE_MODE, INPUT, LATE_HISTORY, Graph, Node, map_nodes
from ..ir.op import NotCovered
from ..ir.passes.cleanup import remove_dead_code
from ..ir.spec import ScalarSpec, TensorSpec
from ..ir.specialize import specialize

_DETACH = torch.ops.aten.detach.default


@dataclass
class Views:
    """How results are made: `graph` takes `sources`, ('input', i) of the whole or ('output', i) of the node."""

    graph: Graph
    sources: tuple[tuple[str, int], ...]

    def in_order(self) -> tuple[Views | None, Views, tuple[int, ...]]:
        """The views of inputs that the program made before it wrote to these (None where there are none), the other
        results, and the place of each result in (others, those)."""
        early = [node for node in self.graph.outputs if BEFORE_WRITES in node.meta]
        if not early:
            return None, self, tuple(range(len(self.graph.outputs)))
        late = [node for node in self.graph.outputs if BEFORE_WRITES not in node.meta]
        order = {node: k for k, node in enumerate((*late, *early))}
        before = self._only(early, [k for k, (kind, _) in enumerate(self.sources) if kind == "input"])
        return before, self._only(late, range(len(self.sources))), tuple(order[node] for node in self.graph.outputs)

    def _only(self, results: list[Node], inputs: Sequence[int]) -> Views:
        """Some results, made of some sources: the others are not there yet when the program makes views first."""
        everything, self.graph.outputs = self.graph.outputs, results
        copy = specialize(self.graph, {})
        self.graph.outputs = everything
        remove_dead_code(copy)
        copy.inputs = [copy.inputs[k] for k in inputs]
        return Views(copy, tuple(self.sources[k] for k in inputs))


class Bases:
    """Whose memory each value of a graph may show: the nodes that made it, inputs and constants included."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._kinds: dict[Node, str] = {}
        self._found: dict[Node, frozenset[Node]] = {}

    def kind(self, node: Node) -> str:
        """See `alias_kind`."""
        found = self._kinds.get(node)
        if found is None:
            found = self._kinds[node] = alias_kind(self._graph, node)
        return found

    def is_view(self, node: Node) -> bool:
        """Whether a node certainly shows its argument's memory."""
        return self.kind(node) in ("view", "self")

    def of(self, node: Node) -> frozenset[Node]:
        found = self._found.get(node)
        if found is None:
            found = self._found[node] = self._bases(node)
        return found

    def _bases(self, node: Node) -> frozenset[Node]:
        kind = self.kind(node)
        own = frozenset((node,)) if kind in ("copy", "unknown") else frozenset()
        if kind == "copy":
            return own
        maker = node.args[0] if node.op is GETITEM else node
        return own.union(*(self.of(n) for n in maker.input_nodes() if has_tensor(n.spec)))


def separate(graph: Graph, all_views: bool) -> Views | None:
    """Make the graph's outputs values that own their memory, each once and no inputs; returns how to get its results.

    Results that share memory with nothing that the caller sees stay as they are, unless `all_views`. None where nothing
    had to be done. Raises NotCovered.
    """
    bases = Bases(graph)
    shown: dict[Node, int] = {}
    for node in graph.outputs:
        for base in bases.of(node):
            shown[base] = shown.get(base, 0) + 1
    made = _Maker(graph, bases)
    results = []
    for node in graph.outputs:
        own = bases.of(node)
        if isinstance(node.spec, ScalarSpec) or not isinstance(node.spec, TensorSpec):
            raise NotCovered("a number as a result")
        shared = any(shown[base] > 1 or base.op in (INPUT, CONSTANT) for base in own) or _is_custom_view(node) or \
            hidden_history(graph, node) is not None or _is_restricted(bases, node) or LATE_HISTORY in node.meta
        results.append(made.again(node) if shared or all_views else made.given(node))
    if results == made.graph.inputs and len(made.core) == len(graph.outputs):
        return None
    made.graph.outputs = results
    graph.outputs = made.core
    return Views(made.graph, tuple(made.sources))


def has_odd_views(graph: Graph) -> bool:
    """Whether autograd would tell a result of a graph without gradients from a plain strided view: another one may be
    written to, or it does not come to require grad with what it shows."""
    bases = Bases(graph)
    shown = Counter(base for node in graph.outputs for base in bases.of(node))
    return any(_is_restricted(bases, node) or _is_detached(bases, node) and any(
        shown[base] > 1 or base.op in (INPUT, CONSTANT) for base in bases.of(node)) for node in graph.outputs)


def _is_restricted(bases: Bases, node: Node) -> bool:
    """Whether what may be written to a result is not what may be written to a plain view that is made when the graph
    runs, in the grad mode of the caller: it is a view, or shows one, that was made as one of several, in the other
    grad mode or in inference mode (autograd lets nobody write what has a gradient to a view that was made under
    no_grad)."""
    mode = torch.is_grad_enabled()
    while bases.is_view(node):
        other_mode = node.grad_enabled != mode or IN_INFERENCE_MODE in (
            node.args[0] if node.op is GETITEM else node).meta
        if (node.op is GETITEM and node.grad_enabled) or other_mode and node.op.target is not _DETACH:
            return isinstance(node.spec, TensorSpec) and node.spec.dtype.is_floating_point
        node = node.input_nodes()[0]
    return False


def _is_detached(bases: Bases, node: Node) -> bool:
    while bases.is_view(node):
        if node.op.target is _DETACH:
            return isinstance(node.spec, TensorSpec) and node.spec.dtype.is_floating_point
        node = node.input_nodes()[0]
    return False


def _is_custom_view(node: Node) -> bool:
    """Whether an autograd function shows a tensor with a history: eager refuses to write to such a result."""
    return node.op.name == AUTOGRAD_FUNCTION and node.op.is_view and node.args[0][0].tensor.requires_grad


class _Maker:
    """Builds the graph of views."""

    def __init__(self, graph: Graph, bases: Bases) -> None:
        self.source = graph
        self.bases = bases
        self.graph = graph.derived(f"{graph.name}_views")
        self.core: list[Node] = []
        self.sources: list[tuple[str, int]] = []
        self._made: dict[Node, Node] = {}

    def given(self, node: Node) -> Node:
        """An input of the graph of views: a result of the node, or an input."""
        found = self._made.get(node)
        if found is None:
            if node.op is INPUT:
                self.sources.append(("input", self.source.inputs.index(node)))
            else:
                self.sources.append(("output", len(self.core)))
                self.core.append(node)
            assert isinstance(node.spec, (TensorSpec, ScalarSpec))
            found = self._made[node] = self.graph.add_input(node.spec, node.name)
        return found

    def again(self, node: Node) -> Node:
        """The node made again from what owns its memory."""
        found = self._made.get(node)
        if found is not None:
            return found
        kind = self.bases.kind(node)
        if kind == "unknown" or node.op is CONSTANT:
            raise NotCovered("results that may share memory")
        if kind == "copy":
            return self.given(node)
        if node.op is GETITEM:
            self._copy(node.args[0])
        return self._copy(node)

    def _copy(self, node: Node) -> Node:
        found = self._made.get(node)
        if found is None:
            def operand(n: Node) -> Node:
                if isinstance(n.spec, tuple):
                    return self._copy(n)
                return self.again(n) if isinstance(n.spec, TensorSpec) else self.given(n)

            args = map_nodes(node.args, operand)
            kwargs = {key: map_nodes(value, operand) for key, value in node.kwargs.items()}
            found = self._made[node] = self.graph.add(node.op, args, kwargs, node.spec, node.loc, node.name,
                                                      node.grad_enabled)
            found.meta.update(node.meta)
        return found

