"""Reverse mode over a graph: the nodes that compute gradients, appended to the graph that computed the values.

Every op has a rule (`rules/`): given the gradient of its result it builds those of its arguments. An op without a rule
of its own is first *expanded*, in place, into ops that have one (`layer_norm` into `native_layer_norm`, whose
statistics the backward pass reads), or gets a rule derived from torch's autograd (`derived.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.alias import needs_grad
from ..ir.builder import Builder
from ..ir.graph import CONSTANT, GETITEM, REENTRANT, Graph, Node
from ..ir.op import NotCovered
from ..ir.ops import normalize
from .derived import derived_rule, is_complex
from .expand import expand_nodes
from .pullback import Pullback
from .rules import COMPLEX, rule_for

#: Gradients of one node: one for each of its results, or None where there is none.
Gradients = list[Node | None]


def vjp(graph: Graph, outputs: Sequence[Node], cotangents: Sequence[Node | None], wrt: Sequence[Node],
        *, into: list[Node] | None = None, create_graph: bool = False, in_parts: bool = True,
        hooks: GradientHooks | None = None) -> list[Node | None]:
    """Append to `graph` the nodes that compute the gradients of `outputs` with respect to `wrt`.

    outputs       nodes of the graph, each a floating point tensor
    cotangents    for each of them a node with its gradient (same shape and dtype), or None for an undefined one
    wrt           nodes of the graph; an output that is one of them passes its gradient on
    into          a list that receives the new nodes instead of `graph.nodes`
    create_graph  whether the new nodes have grad mode on: the graph can be differentiated again, through them
    in_parts      whether a node may be given a gradient in parts, in passes that are one in eager
    hooks         are called in the order of eager's engine

    Returns for each of `wrt` a node of the same shape and dtype, or None where no output depends on it in a way that
    autograd sees: through nodes that ran with grad mode on, and whose specs require grad. The new nodes have the
    `loc` of the node that they differentiate, and grad mode off unless `create_graph`. Nodes on the way may be
    replaced by equivalent ones with results that the backward pass needs; each Node object keeps its meaning. Raises
    NotCovered.
    """
    expand_nodes(graph, lambda nodes: active_nodes(nodes, wrt, outputs))
    active = active_nodes(graph.nodes, wrt, outputs)
    gradients: dict[Node, Gradients] = {}
    made = graph.nodes if into is None else into
    end = len(graph.nodes)
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if cotangent is not None and output in active:
            _accumulate(graph, made, gradients, output, cotangent, create_graph)
    ready = _ready_leaves(graph.nodes[:end], active, hooks) if hooks is not None else {}
    for position in range(end, -1, -1):
        for node in ready.get(position, ()):
            assert hooks is not None
            if node in gradients:
                gradients[node] = [hooks.run(node, gradients[node][0])]  # type: ignore[arg-type]
        if position == 0:
            break
        node = graph.nodes[position - 1]
        grads = gradients.get(node) if node in active else None
        if hooks is not None and grads is not None and node in hooks.nodes:
            grads = gradients[node] = [hooks.run(node, grads[0])]  # type: ignore[arg-type]
        if grads is not None and any(n in active for n in node.input_nodes()):
            for source, grad in _pull(Pullback(graph, made, node, active, create_graph, in_parts), grads):
                _accumulate(graph, made, gradients, source, grad, create_graph)
    results = []
    for node in wrt:
        maker, index = place(node)
        results.append(gradients[maker][index] if maker in gradients else None)
    return results


@dataclass(frozen=True)
class GradientHooks:
    """Hooks on the gradients of some nodes, before these are passed on."""

    #: nodes whose gradients go through `run` where eager's engine comes to the ops that made them, the last one first
    nodes: Collection[Node]
    #: nodes at which a history begins: their gradients go through `run` as soon as they are complete
    leaves: Collection[Node]
    run: Callable[[Node, Node], Node]


def _ready_leaves(nodes: list[Node], active: set[Node], hooks: GradientHooks) -> dict[int, list[Node]]:
    """The leaves with hooks by the position of the first node that reads them, behind which the pass has all of their
    gradients. Raises NotCovered where two become complete at once: which comes first is the engine's."""
    ready: dict[int, list[Node]] = {}
    for leaf in hooks.leaves:
        if leaf in active:
            readers = (i for i, node in enumerate(nodes) if node in active and leaf in node.input_nodes())
            first = next(readers, len(nodes))
            ready.setdefault(first, []).append(leaf)
    if any(len(leaves) > 1 for leaves in ready.values()):
        raise NotCovered("hooks of two leaves whose gradients are complete at once")
    return ready


def active_nodes(nodes: Iterable[Node], wrt: Collection[Node], outputs: Collection[Node]) -> set[Node]:
    """The nodes through which gradients flow from `outputs` to `wrt`."""
    nodes = list(nodes)
    reached = set(wrt)
    for node in nodes:
        if needs_grad(node.spec) and (node.grad_enabled or node.op is GETITEM) and node.op is not CONSTANT:
            if any(n in reached and needs_grad(n.spec) for n in node.input_nodes()):
                reached.add(node)
    used = {node for node in outputs if node in reached}
    for node in reversed(nodes):
        if node in used:
            used.update(n for n in node.input_nodes() if n in reached)
    return used


def _pull(pull: Pullback, grads: Gradients) -> list[tuple[Node, Node]]:
    """The gradients of one node's arguments."""
    node = pull.node
    args, kwargs = normalize(node.op, node.args, node.kwargs)
    try:
        is_covered = node.op.name in COMPLEX or not is_complex(node)
        rule = rule_for(node.op, pull.create_graph) if is_covered else None
        found = _by(rule or derived_rule, pull, grads, args, kwargs)
    except NotCovered:
        # what a rule does not handle is derived
        found = _by(derived_rule, pull, grads, args, kwargs)
    pairs: list[tuple[Node, Node]] = []
    for argument, grad in zip(args, found, strict=False):
        _pair(pull, argument, grad, pairs)
    if REENTRANT in node.meta:
        for made in pull.created:
            made.meta[REENTRANT] = True
    return pairs


def _by(rule: Any, pull: Pullback, grads: Gradients, args: Any, kwargs: Any) -> Any:
    """The gradients that a rule makes. Ops that refuse their arguments do so in eager's backward pass, if that is
    ever run."""
    try:
        return rule(pull, *grads, *args, **kwargs)
    except NotCovered:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise NotCovered(f"the gradient of {pull.node.op.name}: {type(error).__name__}: {error}") from error


def _pair(pull: Pullback, argument: Any, grad: Any, pairs: list[tuple[Node, Node]]) -> None:
    if isinstance(argument, (tuple, list)):
        if grad is not None:
            for item, own in zip(argument, grad, strict=True):
                _pair(pull, item, own, pairs)
    elif grad is not None and pull.needs(argument):
        pairs.append((argument, pull.like(grad, argument.tensor)))


def place(node: Node) -> tuple[Node, int]:
    """Where the gradient of a node is collected: with the op that made it, by number of the result."""
    return (node.args[0], node.args[1]) if node.op is GETITEM else (node, 0)


def _accumulate(graph: Graph, made: list[Node], gradients: dict[Node, Gradients], node: Node, grad: Node,
                create_graph: bool) -> None:
    maker, index = place(node)
    slots = gradients.get(maker)
    if slots is None:
        slots = gradients[maker] = [None] * (len(maker.spec) if isinstance(maker.spec, tuple) else 1)
    before = slots[index]
    if before is not None:
        grad = Builder(graph, into=made, loc=grad.loc, grad_enabled=create_graph).call("aten.add.Tensor", before, grad)
    slots[index] = grad
