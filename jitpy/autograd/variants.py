"""A backward half for some of the gradients: those that are there, and those that are wanted."""

from __future__ import annotations

import torch

from ..ir.builder import Builder
from ..ir.graph import GETITEM, Graph, Node
from ..ir.op import NotCovered
from ..ir.ops import normalize
from ..ir.passes.cleanup import remove_dead_code
from ..ir.spec import Spec, TensorSpec
from ..ir.specialize import specialize


def select(graph: Graph, n_saved: int, defined: int, wanted: int) -> tuple[Graph, list[bool]]:
    """The backward half for the gradients that are defined, and for those that are wanted, as bit masks.

    An undefined gradient stays undefined as far as it reaches alone; where it meets others it counts as zero. Also
    returns, for each wanted one, whether it is there at all. Raises NotCovered.
    """
    copy = specialize(graph, {})
    cotangents = copy.inputs[n_saved:]
    missing = {node for j, node in enumerate(cotangents) if not defined >> j & 1}
    copy.outputs = [node for k, node in enumerate(copy.outputs) if wanted >> k & 1]
    absent = _without(copy, cotangents, missing) if missing else missing
    present = [node not in absent for node in copy.outputs]
    copy.inputs = [node for node in copy.inputs if node not in missing]
    copy.outputs = [node for node in copy.outputs if node not in absent]
    remove_dead_code(copy)
    _mask_unread_results(copy)
    return copy, present


def _mask_unread_results(graph: Graph) -> None:
    """Let ops that can leave out results, such as the gradient of a convolution, leave out those that nothing reads."""
    read: dict[Node, set[int]] = {}
    for node in graph.nodes:
        if node.op is GETITEM:
            read.setdefault(node.args[0], set()).add(node.args[1])
    for node, parts in read.items():
        arguments = node.op.target._schema.arguments if isinstance(node.op.target, torch._ops.OpOverload) else ()
        at = next((k for k, argument in enumerate(arguments) if argument.name == "output_mask"), None)
        args, named = normalize(node.op, node.args, node.kwargs)
        if at is None or at >= len(args) or not isinstance(node.spec, tuple):
            continue
        mask = [wanted and k in parts for k, wanted in enumerate(args[at])]
        if mask != list(args[at]):
            node.args, node.kwargs = (*args[:at], mask, *args[at + 1:]), named
            node.spec = tuple(spec if wanted else None for spec, wanted in zip(node.spec, mask, strict=True))


def _without(graph: Graph, cotangents: list[Node], missing: set[Node]) -> set[Node]:
    """Take undefined gradients out of a graph; returns all nodes that are undefined then."""
    absent, flowing = set(missing), set(cotangents)
    result: list[Node] = []
    replaced: dict[Node, Node] = {}
    for node in graph.nodes:
        node.replace_inputs(lambda n: replaced.get(n, n))
        sources = [n for n in node.input_nodes() if n in flowing]
        undefined = [n for n in sources if n in absent]
        if sources:
            flowing.add(node)
        if sources and len(undefined) == len(sources):
            absent.add(node)
            continue
        if undefined:
            rest = _other_summand(node, absent)
            if rest is not None:
                replaced[node] = rest
                continue
            builder = Builder(graph, into=result, loc=node.loc, grad_enabled=False)
            zeros = {n: _zeros(builder, n.spec) for n in dict.fromkeys(undefined)}
            node.replace_inputs(lambda n, zeros=zeros: zeros.get(n, n))  # type: ignore[misc]
        result.append(node)
    graph.nodes[:] = result
    graph.replace_results(replaced)
    return absent


def _other_summand(node: Node, absent: set[Node]) -> Node | None:
    """The rest of a sum without its undefined part, if that is all of it."""
    if node.op.name != "aten.add.Tensor" or len(node.args) != 2 or node.kwargs:
        return None
    rest = node.args[1] if node.args[0] in absent else node.args[0]
    return rest if isinstance(rest, Node) and rest.spec == node.spec else None


def _zeros(builder: Builder, spec: Spec) -> Node:
    if not isinstance(spec, TensorSpec):
        raise NotCovered("an undefined number")
    return builder.call("aten.full.default", list(spec.shape), 0, dtype=spec.dtype, device=spec.device)
