"""Which values of a graph may share memory: what every rewrite must know before it replaces one value by another."""

from __future__ import annotations

from collections.abc import Iterable

from .graph import CONSTANT, GETITEM, INPUT, Graph, Node
from .op import NotCovered
from .spec import Spec, TensorSpec


def alias_kind(graph: Graph, node: Node) -> str:
    """What a node's result is to its arguments' memory: `'copy'` (new memory), `'view'`, `'self'` (the argument
    itself), or `'unknown'`."""
    op = node.op
    if op is INPUT or op is CONSTANT or not has_tensor(node.spec):
        return "copy"
    if op is GETITEM:
        return alias_kind(graph, node.args[0])
    from . import ops

    try:
        return ops.aliasing(op, graph.sizes, node.args, node.kwargs)
    except NotCovered:
        return "unknown"


class AliasGroups:
    """The partition of a graph's values into groups that may share memory.

    A group *escapes* when it holds an output, and is *foreign* when it holds an input or a constant: memory that
    others see.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._parent: dict[Node, Node] = {}
        self._kinds: dict[Node, str] = {}
        self._escapes: set[Node] = set()
        self._foreign: set[Node] = set()
        for node in graph.all_nodes():
            self.add(node)
        for node in graph.outputs:
            self._escapes.add(self._find(node))

    def add(self, node: Node) -> None:
        """Take in a node whose arguments are known."""
        self._parent[node] = node
        if node.op is INPUT or node.op is CONSTANT:
            self._foreign.add(node)
        elif node.op is GETITEM:
            # the parts of one op count as one memory: some ops return views of one buffer
            self._join(node, node.args[0])
        elif self.kind(node) != "copy":
            for source in node.input_nodes():
                if has_tensor(source.spec):
                    self._join(node, source)

    def kind(self, node: Node) -> str:
        """See `alias_kind`."""
        found = self._kinds.get(node)
        if found is None:
            found = self._kinds[node] = alias_kind(self._graph, node)
        return found

    def escapes(self, node: Node) -> bool:
        """Whether the caller may get to see this node's memory as an output."""
        return self._find(node) in self._escapes

    def foreign(self, node: Node) -> bool:
        """Whether this node's memory may be an input's or a constant's."""
        return self._find(node) in self._foreign

    def substitute(self, node: Node, new: Node) -> None:
        """`new` now stands for `node`: whoever sees the one sees the other."""
        if node in self._parent and new in self._parent:
            self._join(node, new)

    def __contains__(self, node: Node) -> bool:
        return node in self._parent

    def same(self, a: Node, b: Node) -> bool:
        return self._find(a) is self._find(b)

    def _find(self, node: Node) -> Node:
        parent = self._parent
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def _join(self, a: Node, b: Node) -> None:
        a, b = self._find(a), self._find(b)
        if a is b:
            return
        self._parent[a] = b
        for marked in (self._escapes, self._foreign):
            if a in marked:
                marked.add(b)


def has_tensor(spec: Spec) -> bool:
    if isinstance(spec, tuple):
        return any(map(has_tensor, spec))
    return isinstance(spec, TensorSpec)


def needs_grad(spec: Spec) -> bool:
    if isinstance(spec, tuple):
        return any(map(needs_grad, spec))
    return isinstance(spec, TensorSpec) and spec.requires_grad


def any_needs_grad(nodes: Iterable[Node]) -> bool:
    return any(needs_grad(node.spec) for node in nodes)


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
