"""Facts for the graph builder about tensors that eager's autograd keeps: whether a write would hit it.

In a functional graph nothing changes, so the graph builder leaves such writes to eager, whose backward pass raises.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch

from jitpy.ir import CONSTANT, GETITEM, INPUT, Node, Spec, TensorSpec
from jitpy.ir.autograd_saves import saved_by

from .traced import GraphBuilder

#: Ops whose written arguments have no history, whatever the op is given, and keep their version: eager's own ops do not
#: say that they write there.
WRITES_STATISTICS = frozenset({torch.ops.aten._native_batch_norm_legit_functional.default})


def keepers(builder: GraphBuilder, values: Iterable[Node], since: int, writers: Collection[Node]) -> list[Node]:
    """The nodes for which autograd keeps one of `values`, which have been in one memory, or a view of one. Nodes that
    a backward pass has run through keep nothing any more.

    Looks at the ops that made them, and at the nodes recorded from position `since` on. `writers`, which computed what
    was written, may keep what they read: eager's in-place ops see to that themselves.
    """
    memory = set(values)
    found: list[Node] = []
    freed = builder.history.freed
    for value in values:
        producer = value.args[0] if value.op is GETITEM else value
        if producer not in freed and keeps_result(builder, producer, value):
            found.append(producer)
    for node in builder.graph.nodes[since:]:
        # in this order: an optimizer writes behind a pass that has run through nearly all of them
        if node in freed or node in writers or node.op.is_view or node.op is GETITEM or \
                not requires_grad(node.spec) or not node.op.keeps_input:
            continue
        reads = [n for n in node.input_nodes() if shows(n, memory)]
        if reads and not saved_values(builder, node)[0].isdisjoint(reads):
            found.append(node)
    return found


def keeps_result(builder: GraphBuilder, producer: Node, value: Node) -> bool:
    """Whether autograd keeps a `value`, or a part of what `producer` computes, for the backward pass of that."""
    return (
        producer.op not in (INPUT, CONSTANT)
        and producer.op.keeps_result
        and requires_grad(value.spec)
        and (value.args[1] if value.op is GETITEM else 0) in saved_values(builder, producer)[1]
    )


def shows(node: Node, memory: Collection[Node]) -> bool:
    """Whether a node is one of some values, or a view of one; it may have been made at any time."""
    while node not in memory:
        if not node.op.is_view and node.op is not GETITEM:
            return False
        node = node.input_nodes()[0]
    return True


def saved_values(builder: GraphBuilder, node: Node) -> tuple[set[Node], set[int]]:
    """The inputs that autograd keeps for a node's backward pass, and the positions of the results that it keeps."""
    found = saved_by(builder.sizes, node)
    if found is None:  # not known: assume the worst
        return set(node.input_nodes()), set(range(len(node.spec) if isinstance(node.spec, tuple) else 1))
    sources = list(dict.fromkeys(node.input_nodes()))
    return {sources[i] for i in found.operands}, set(found.results)


def keeps_anything(builder: GraphBuilder, node: Node) -> bool:
    """Whether autograd keeps any tensor for a node's backward pass, be it one that only the op knows."""
    if node.op is GETITEM:
        return False
    found = saved_by(builder.sizes, node)
    return found is None or found.anything


def requires_grad(spec: Spec) -> bool:
    """Whether any tensor of a result requires grad."""
    if isinstance(spec, tuple):
        return any(map(requires_grad, spec))
    return isinstance(spec, TensorSpec) and spec.requires_grad
