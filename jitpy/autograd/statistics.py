"""Large log-probabilities on GPUs: the backward pass computes them again, from the scores and two numbers a row.

    y = log_softmax(x)      becomes      y = (x - top) - total      top = max(x), total = log(sum(exp(x - top)))

What is kept of a softmax over many classes is then the scores, which were in memory anyway and often have 16 bits
where `y` has 32. The arithmetic is that of `log_softmax` itself.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import config
from ..ir.builder import Builder
from ..ir.graph import Graph, Node
from ..ir.ops.promotion import compute_dtype
from ..ir.ops.reductions import cast
from ..ir.passes.cleanup import remove_dead_code

#: Bytes of log-probabilities that are worth another node or two.
LARGE = 1 << 24
_NAMES = ("aten.log_softmax.int", "aten._log_softmax.default")
_GRADIENT = "aten._log_softmax_backward_data.default"


def keep_statistics(graph: Graph) -> None:
    """Rewrite the joint graph's large `log_softmax` nodes, where a gradient reads them and they are no results."""
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for source in node.input_nodes():
            readers.setdefault(source, []).append(node)
    mapping = {}
    for node in list(graph.nodes):
        if node.op.name in _NAMES and node not in graph.outputs and _is_large(graph, node):
            if any(reader.op.name == _GRADIENT for reader in readers.get(node, ())):
                mapping[node] = _from_statistics(Builder(graph, before=node), node, *node.args[:2])
    if mapping:
        graph.replace(mapping)
        remove_dead_code(graph)


def _is_large(graph: Graph, node: Node) -> bool:
    spec = node.tensor
    on_gpu = spec.device.type == "cuda" or config.triton_on_cpu
    return on_gpu and bool(spec.shape) and graph.sizes.hint(spec.nbytes) >= LARGE


def _from_statistics(b: Builder, node: Node, x: Any, dim: int) -> Node:
    """`log_softmax(x, dim)`, the last steps of which share no node with the statistics: they may be repeated alone."""
    compute = compute_dtype(node.tensor.dtype)
    source = x.args[0] if _is_widening(x, compute) else x
    scores, again = cast(b, source, compute), cast(b, source, compute)
    top = b.call("aten.amax.default", scores, [dim], True)
    powers = b.call("aten.exp.default", b.call("aten.sub.Tensor", scores, top))
    total = b.call("aten.log.default", b.call("aten.sum.dim_IntList", powers, [dim], True))
    return cast(b, b.call("aten.sub.Tensor", b.call("aten.sub.Tensor", again, top), total), node.tensor.dtype)


def _is_widening(x: Node, compute: torch.dtype) -> bool:
    """Whether `x` is a plain conversion of fewer bits."""
    plain = x.op.name == "aten.to.dtype" and len(x.args) == 2 or x.op.name == "aten._to_copy.default" and \
        len(x.args) == 1 and set(x.kwargs) == {"dtype"}
    if not plain or x.kwargs.keys() - {"dtype"} or x.tensor.dtype is not compute:
        return False
    source = x.args[0].tensor
    return source.dtype.is_floating_point and source.dtype.itemsize < compute.itemsize


__all__ = ["keep_statistics"]
