"""Large probabilities on GPUs: the backward pass computes them again, from the scores and two numbers a row.

    y = log_softmax(x)      becomes      y = (x - top) - total      top = max(x), total = log(sum(exp(x - top)))
    y = softmax(x)          becomes      y = exp(x - top) / total   top = max(x), total = sum(exp(x - top))

What is kept of a softmax over many classes is then the scores, which were in memory anyway and often have 16 bits
where `y` has 32; a softmax whose scores have as many bits is kept itself. The arithmetic is that of eager's functions.
"""

from __future__ import annotations

from typing import Any

import torch

from ... import config
from ..builder import Builder
from ..graph import Graph, Node
from ..ops.promotion import compute_dtype
from ..ops.reductions import cast
from .cleanup import remove_dead_code

#: Bytes of log-probabilities that are worth another node or two.
LARGE = 1 << 24


def keep_statistics(graph: Graph) -> list[str]:
    """Rewrite the joint graph's large `log_softmax` and `softmax` nodes, where a gradient reads them and they are no
    results."""
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for source in node.input_nodes():
            readers.setdefault(source, []).append(node)
    mapping = {}
    for node in list(graph.nodes):
        if node.op.softmax is not None and node not in graph.outputs and _is_large(graph, node):
            gradient = f"aten._{node.op.softmax}_backward_data.default"
            if node.op.softmax == "softmax" and not _is_widening(node.args[0], compute_dtype(node.tensor.dtype)):
                continue
            if any(reader.op.name == gradient for reader in readers.get(node, ())):
                mapping[node] = _from_statistics(Builder(graph, before=node), node, *node.args[:2])
    if mapping:
        graph.replace(mapping)
        remove_dead_code(graph)
    return [f"{node.name} is computed again from its statistics" for node in mapping]


def _is_large(graph: Graph, node: Node) -> bool:
    spec = node.tensor
    on_gpu = spec.device.type == "cuda" or config.triton_on_cpu
    return on_gpu and bool(spec.shape) and graph.sizes.hint(spec.nbytes) >= LARGE


def _from_statistics(b: Builder, node: Node, x: Any, dim: int) -> Node:
    """The node's value, the last steps of which share no node with the statistics: they may be repeated alone."""
    compute = compute_dtype(node.tensor.dtype)
    source = x.args[0] if _is_widening(x, compute) else x
    scores, again = cast(b, source, compute), cast(b, _repeated(b, source), compute)
    top = b.call("aten.amax.default", scores, [dim], True)
    powers = b.call("aten.exp.default", b.call("aten.sub.Tensor", scores, top))
    total = b.call("aten.sum.dim_IntList", powers, [dim], True)
    shifted = b.call("aten.sub.Tensor", again, top)
    if node.op.softmax == "log_softmax":
        found = b.call("aten.sub.Tensor", shifted, b.call("aten.log.default", total))
    else:
        found = b.call("aten.div.Tensor", b.call("aten.exp.default", shifted), total)
    return cast(b, found, node.tensor.dtype)


def _repeated(b: Builder, node: Node, depth: int = 4) -> Node:
    """The same scores by nodes of their own, back to what a product wrote: kept is that, not what was made of it."""
    if "cuda" not in node.op.cheap_on or not depth:
        return node
    args = [_repeated(b, value, depth - 1) if isinstance(value, Node) and value.spec == node.spec else value
            for value in node.args]
    return b.call(node.op.name, *args, **node.kwargs)


def _is_widening(x: Node, compute: torch.dtype) -> bool:
    """Whether `x` is a plain conversion of fewer bits."""
    if (x.op.name, len(x.args)) not in (("aten.to.dtype", 2), ("aten._to_copy.default", 1)):
        return False
    if x.kwargs.keys() - {"dtype", "layout", "device"} or x.tensor.dtype is not compute:
        return False
    source = x.args[0].tensor
    return source.device == x.tensor.device and source.dtype.is_floating_point and \
        source.dtype.itemsize < compute.itemsize


__all__ = ["keep_statistics"]
