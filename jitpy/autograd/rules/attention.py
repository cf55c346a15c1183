"""Gradients of `flex_attention`: those of its score graph are a graph of one element as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.builder import Builder
from ...ir.flex_attention import NAME, FlexAttention, FlexAttentionBackward, layout_of, strides_of
from ...ir.graph import Graph, Node
from ...ir.op import NotCovered
from ...ir.passes.cleanup import remove_dead_code
from ...ir.spec import contiguous_spec
from ...ir.specialize import specialize
from ..pullback import Pullback
from .registry import rule


@rule(NAME, once=True)
def _flex_attention(p: Pullback, grad_out: Node | None, grad_lse: Node | None, grad_max: Node | None, query: Node,
                    key: Node, value: Node, blocks: Any, captures: Sequence[Node]) -> tuple[Any, ...]:
    if p.create_graph:
        raise NotCovered("second derivatives of flex_attention")
    target: Any = p.node.op.target
    operands = query, key, value
    wanted = [number for number in range(target.score_captures) if p.needs(captures[number])]
    gradient, reads = _score_gradient(target, wanted)
    read = sorted({number for number, _ in reads})
    layouts = tuple(layout_of(p.env, node.tensor.stride, node.tensor.shape) for node in operands)
    specs = [own.with_(stride=strides_of(own.shape, layout), offset=0, requires_grad=False)
             for own, layout in zip((node.tensor for node in operands), layouts, strict=True)]
    specs += [contiguous_spec(own.dtype, own.shape, own.device) for own in (captures[k].tensor for k in read)]
    backward = FlexAttentionBackward(target, gradient, reads, layouts)
    out, lse = p.part(0), p.part(1)
    given = p.zeros(out.tensor) if grad_out is None else grad_out
    back = p.call(backward.op(tuple(specs)), given, grad_lse, out, lse, *operands, blocks, captures,
                  spec=tuple(specs))
    found = [p.getitem(back, k) if p.needs(node) else None for k, node in enumerate(operands)]
    return *found, None, [p.getitem(back, 3 + read.index(number)) if number in read else None
                          for number in range(len(captures))]


def _score_gradient(target: FlexAttention, wanted: list[int]) -> tuple[Graph | None, tuple[tuple[int, int], ...]]:
    """The graph of gradients and the reads of captures that it has gradients for: see `FlexAttentionBackward`."""
    from ..reverse import vjp

    if target.score is None:
        return None, ()
    graph = specialize(target.score, {})
    score, *rest = graph.inputs
    numbers = {rest[4 + number]: number for number in wanted}
    reads = [(node, numbers[node.args[0]], node.args[1]) for node in graph.nodes
             if node.op.name == "aten.index.Tensor" and node.args[0] in numbers]
    reads += [(node, number, []) for node, number in numbers.items() if not node.tensor.ndim]
    (output,) = graph.outputs
    cotangent = graph.add_input(contiguous_spec(output.tensor.dtype, (), output.tensor.device), "grad")
    graph.inputs.insert(5, graph.inputs.pop())
    grad, *found = vjp(graph, [output], [cotangent], [score, *(node for node, _, _ in reads)])
    b = Builder(graph, grad_enabled=False)
    if grad is None:
        grad = b.call("aten.full.default", [], 0.0, dtype=score.tensor.dtype, device=score.tensor.device)
    known = [(one, number, indices) for one, (_, number, indices) in zip(found, reads, strict=True) if one is not None]
    graph.outputs = [grad, *(node for one, _, indices in known for node in (one, *indices))]
    remove_dead_code(graph)
    return graph, tuple((number, len(indices)) for _, number, indices in known)
