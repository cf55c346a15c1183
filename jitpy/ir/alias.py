"""Which values of a graph may share memory: what every rewrite must know before it replaces one value by another."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import torch

from .graph import BEFORE_WRITES, CONSTANT, GETITEM, INPUT, Graph, Node
from .op import NotCovered
from .spec import Spec, TensorSpec
from .trees import tree_map


def alias_kind(graph: Graph, node: Node) -> str:
    """The relation of a node's result to its arguments' memory: `'copy'` (new memory), `'view'`, `'self'` (the argument
    itself), or `'unknown'`."""
    op = node.op
    if op is INPUT or op is CONSTANT or not has_tensor(node.spec):
        return "copy"
    if op is GETITEM:
        return alias_kind(graph, node.args[0])
    if not isinstance(op.target, torch._ops.OpOverload) and op.infer is None and op.aliasing is None:
        return "unknown"  # a function of the user's: it is not run to find out
    from . import ops

    mark = graph.sizes.checkpoint()
    try:
        kind = ops.aliasing(op, graph.sizes, node.args, node.kwargs)
    except NotCovered:
        return "unknown"
    if graph.sizes.checkpoint() != mark:
        # an answer that holds for these sizes only
        graph.sizes.rollback(mark)
        return "unknown"
    return kind


def hidden_history(graph: Graph, node: Node) -> Node | None:
    """The base of a view that was made under no_grad, if it was computed and requires grad: torch says of such a
    view, as long as it knows the base, that it requires grad, too."""
    source = node
    while not needs_grad(source.spec) and alias_kind(graph, source) == "view":
        maker = source.args[0] if source.op is GETITEM else source
        if maker.op.target is torch.ops.aten.detach.default:
            break
        source = maker.input_nodes()[0]
    return source if source is not node and source.op is not INPUT and needs_grad(source.spec) else None


def is_pending(node: Node) -> bool:
    """Whether a value is a view on which torch left a conjugation or negation pending: a copy has plain memory."""
    conjugated = negated = False
    while node.op is GETITEM or node.op.is_view:
        conjugated ^= node.op.target is torch.ops.aten._conj.default
        negated ^= node.op.target is torch.ops.aten._neg_view.default
        node = node.input_nodes()[0]
    return conjugated or negated


_K = TypeVar("_K", bound=Hashable)


class Partition(Generic[_K]):
    """Union-find over nodes or values, with marks that hold for a whole part."""

    def __init__(self) -> None:
        self.parent: dict[_K, _K] = {}
        self.marks: dict[str, set[_K]] = {}

    def find(self, node: _K) -> _K:
        parent = self.parent
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def join(self, a: _K, b: _K) -> None:
        a, b = self.find(a), self.find(b)
        if a is not b:
            self.parent[a] = b
            for marked in self.marks.values():
                if a in marked:
                    marked.add(b)

    def mark(self, node: _K, mark: str) -> None:
        self.marks.setdefault(mark, set()).add(self.find(node))

    def marked(self, node: _K, mark: str) -> bool:
        return self.find(node) in self.marks.get(mark, ())


class AliasGroups:
    """Two partitions of a graph's values: those that may share memory, and those that are one tensor object.

    Memory *escapes* when it is an output's, and is *foreign* when it is an input's or a constant's: others see it.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._kinds: dict[Node, str] = {}
        self._memory: Partition[Node] = Partition()
        self._objects: Partition[Node] = Partition()
        for node in graph.all_nodes():
            self.add(node)
        for node in graph.outputs:
            self._memory.mark(node, "output")
            self._objects.mark(node, "output")

    def add(self, node: Node) -> None:
        """Take in a node whose arguments are known."""
        self._memory.parent[node] = self._objects.parent[node] = node
        if node.op is INPUT or node.op is CONSTANT:
            self._memory.mark(node, "foreign")
            self._objects.mark(node, "foreign")
        elif node.op is GETITEM:
            # the parts of one op count as one memory: some ops return views of one buffer
            self._memory.join(node, node.args[0])
        else:
            for source in node.args[0] if node.op.passes_on else ():
                self._memory.join(node, source)
            kind = self.kind(node)
            if kind != "copy":
                sources = [n for n in node.input_nodes() if has_tensor(n.spec)]
                for source in sources:
                    self._memory.join(node, source)
                if kind == "self" and sources:
                    # what returns an argument returns its first one
                    self._objects.join(node, sources[0])

    def __contains__(self, node: Node) -> bool:
        return node in self._memory.parent

    def kind(self, node: Node) -> str:
        """See `alias_kind`."""
        found = self._kinds.get(node)
        if found is None:
            found = self._kinds[node] = alias_kind(self._graph, node)
        return found

    def escapes(self, node: Node) -> bool:
        """Whether the caller may get to see this node's memory as an output."""
        return self._memory.marked(node, "output")

    def foreign(self, node: Node) -> bool:
        """Whether this node's memory may be an input's or a constant's."""
        return self._memory.marked(node, "foreign")

    def same(self, a: Node, b: Node) -> bool:
        """Whether the two may share memory."""
        return self._memory.find(a) is self._memory.find(b)

    def objects_must_differ(self, a: Node, b: Node) -> bool:
        """Whether `a` is an output's object and `b` that of an input, a constant or another output."""
        objects = self._objects
        return objects.marked(a, "output") and (objects.marked(b, "output") or objects.marked(b, "foreign")) \
            and objects.find(a) is not objects.find(b)

    def is_one_of_views(self, node: Node) -> bool:
        """Whether `node` is an output's object, and another output may share its memory."""
        objects = self._objects
        return objects.marked(node, "output") and any(
            self.same(node, other) and objects.find(node) is not objects.find(other) for other in self._graph.outputs)

    def substitute(self, node: Node, new: Node) -> None:
        """`new` now stands for `node`: whoever sees the one sees the other."""
        if node in self and new in self:
            self._memory.join(node, new)
            self._objects.join(node, new)


def has_tensor(spec: Spec) -> bool:
    if isinstance(spec, tuple):
        return any(map(has_tensor, spec))
    return isinstance(spec, TensorSpec)


def plain(spec: Spec) -> Spec:
    """The spec without requires_grad."""
    return tree_map(lambda part: part.with_(requires_grad=False)
                    if isinstance(part, TensorSpec) and part.requires_grad else part, spec)


def needs_grad(spec: Spec) -> bool:
    if isinstance(spec, tuple):
        return any(map(needs_grad, spec))
    return isinstance(spec, TensorSpec) and spec.requires_grad


def any_needs_grad(nodes: Iterable[Node]) -> bool:
    return any(needs_grad(node.spec) for node in nodes)


def shown_results(graph: Graph) -> set[Node]:
    """The computed values with a history that the caller gets as tensors: it may watch their gradients."""
    found: set[Node] = set()
    for node in graph.outputs:
        while node.op is not INPUT and node.op is not CONSTANT and needs_grad(node.spec) and node not in found:
            found.add(node)
            if node.op is GETITEM or alias_kind(graph, node) != "self":
                break
            node = node.input_nodes()[0]  # the same tensor
    return found


def shows_grad_input(graph: Graph) -> bool:
    """Whether an output may be a view of an input that requires grad: autograd sees how such a view was made."""
    if not any_needs_grad(graph.inputs):
        return False
    for node in graph.outputs:
        while node.op is not INPUT and alias_kind(graph, node) != "copy":
            sources = [n for n in node.input_nodes() if has_tensor(n.spec)]
            if any(n.op is INPUT and needs_grad(n.spec) for n in sources):
                return True
            if not sources:
                break
            node = sources[0]
    return False


def copies_before_write(graph: Graph) -> set[Node]:
    """The values of mutations that may share memory with an input that another mutation, or the same one, writes:
    they must be copied first, since all mutations happen at once."""
    if not graph.mutations:
        return set()
    groups = AliasGroups(graph)
    targets = [graph.inputs[m.input] for m in graph.mutations]
    found = set()
    for mutation, own in zip(graph.mutations, targets, strict=True):
        value = mutation.value
        if any(groups.same(value, target) for target in targets if not (target is own and value is own)):
            found.add(value)
    return found


def views_behind_writes(graph: Graph) -> set[Node]:
    """Results that are views of inputs that are written at the end, and that the program made behind the writes:
    autograd tells the order."""
    shown = {graph.inputs[mutation.input] for mutation in graph.mutations}
    for node in graph.nodes:
        if (node.op.is_view or node.op is GETITEM) and node.input_nodes()[0] in shown:
            shown.add(node)
    users = graph.users()
    values = {mutation.value for mutation in graph.mutations}
    outputs, found = set(graph.outputs), set[Node]()
    for node in reversed(graph.nodes):
        own = users.get(node, ())
        if node in shown and node not in values and BEFORE_WRITES not in node.meta and \
                (own or node in outputs) and all(n in found for n in own):
            found.add(node)
    return found
