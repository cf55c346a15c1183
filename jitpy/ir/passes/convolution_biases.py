"""Biases of convolutions are added by the kernels that read these (GPUs only).

cuDNN's plain call has no bias: torch adds it to the result by a kernel of its own, which reads and writes all of it.
As a node it becomes part of the kernel behind the convolution (an activation, a gate, a norm), and is rounded with what
that computes. Depthwise convolutions of row-major images keep theirs: torch's kernel for these adds it for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..builder import Builder
from ..graph import Graph, Node
from ..ops import normalize
from ..ops.layout import channels_last_stride
from ..spec import TensorSpec

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def add_biases_later(graph: Graph, where: str = "cuda") -> list[str]:
    """Rewrite convolutions on devices of type `where` in place. One text a change."""
    mapping: dict[Node, Node] = {}
    for node in [node for node in graph.nodes if node.op.convolution is not None]:
        args, kwargs = normalize(node.op, node.args, node.kwargs)
        spec = node.spec
        if kwargs or len(args) < 3 or not isinstance(spec, TensorSpec) or spec.device.type != where:
            continue
        bias, weight = args[2], args[1]
        if not isinstance(bias, Node) or spec.dtype not in _DTYPES or bias.tensor.dtype is not spec.dtype \
                or bias.tensor.device != spec.device or _is_depthwise(node, args):
            continue
        b = Builder(graph, node)
        product = b.call(node.op.name, *args[:2], None, *args[3:], spec=spec)
        shape = [bias.tensor.shape[0], *[1] * (weight.tensor.ndim - 2)]
        mapping[node] = b.call("aten.add.Tensor", product, b.call("aten.view.default", bias, shape), spec=spec)
    if mapping:
        graph.replace(mapping)
        graph.nodes[:] = [node for node in graph.nodes if node not in mapping]
    return [f"{node.name}: its bias is added behind the call" for node in mapping]


def _is_depthwise(node: Node, args: Sequence[Any]) -> bool:
    """Whether torch has a kernel of its own for a convolution: one input channel a group, forwards, row-major."""
    assert node.op.convolution is not None
    groups, transposed = node.op.convolution.reads(args)
    return groups != 1 and not transposed and args[1].tensor.shape[1] == 1 \
        and node.tensor.stride != channels_last_stride(node.tensor.shape)


__all__ = ["add_biases_later"]
