"""Groups of a convolution's channels are padded with zeros to the sizes of the library's kernels (GPUs, 16 bits).

cuDNN's kernels take groups of 4, 8, ... 128 channels. For others it pads image, weights and result by kernels of its
own, which take longer than the convolution. Here the kernels in front of it and behind it do so. On an H200, for
(16, 336, 14, 14) in groups of 24: 52.5 us as it was, and 9.0 for groups of 32.
"""

from __future__ import annotations

import torch

from ..builder import Builder
from ..graph import Graph, Node
from ..ops.layout import channels_last_stride
from ..spec import Dim
from .convolutions import HALVES, ConvolutionCall, is_image

#: the smallest groups that have kernels, and the largest ones that are padded
_LEAST = 4
_MOST = 128


def pad_groups(graph: Graph, where: str = "cuda") -> list[str]:
    """Rewrite convolutions of channels-last images on devices of type `where` in place. One text a change."""
    mapping: dict[Node, Node] = {}
    for node in list(graph.nodes):
        call = ConvolutionCall.of(node)
        if call is None or call.groups == 1 or not all(is_image(one.tensor, where, HALVES) for one in (node, call.x)):
            continue
        count, (rows, each, *kernel) = call.groups, call.weight.tensor.shape
        made, given = rows // count, (each, rows // count)
        wide, made_wide = (max(_LEAST, 1 << (size - 1).bit_length()) for size in given)
        if each == 1 or max(given) > _MOST or given == (wide, made_wide):
            continue
        b, more = Builder(graph, node), made_wide - made
        pixels = [call.x.tensor.shape[k] for k in (0, 2, 3)]
        x = _padded(b, b.call("aten.permute.default", call.x, [0, 2, 3, 1]), [*pixels, count, each], [0, wide - each],
                    [*pixels, count * wide])
        x = b.call("aten.permute.default", x, [0, 3, 1, 2])
        weight = b.call("aten.clone.default", call.weight, memory_format=torch.contiguous_format)
        weight = _padded(b, weight, [count, made, each, *kernel], [0, 0, 0, 0, 0, wide - each, 0, more],
                         [count * made_wide, wide, *kernel])
        weight = b.call("aten.clone.default", weight, memory_format=torch.channels_last)
        bias = call.bias and _padded(b, call.bias, [count, made], [0, more], [count * made_wide])
        shape = node.tensor.shape[0], count * made_wide, *node.tensor.shape[2:]
        y = b.call("aten.convolution.default", x, weight, bias, *call.places, False, [0, 0], count,
                   spec=node.tensor.with_(shape=shape, stride=channels_last_stride(shape)))
        y = b.call("aten.view.default", b.call("aten.permute.default", y, [0, 2, 3, 1]),
                   [*(shape[k] for k in (0, 2, 3)), count, made_wide])
        y = b.call("aten.clone.default", b.call("aten.slice.Tensor", y, 4, 0, made),
                   memory_format=torch.contiguous_format)
        y = b.call("aten.view.default", y, [*y.tensor.shape[:3], rows])
        mapping[node] = b.call("aten.permute.default", y, [0, 3, 1, 2])
    graph.replace(mapping)
    graph.nodes[:] = [node for node in graph.nodes if node not in mapping]
    return [f"{node.name}: its groups of channels are padded" for node in mapping]


def _padded(b: Builder, value: Node, parts: list[Dim], zeros: list[Dim], whole: list[Dim]) -> Node:
    """A value whose parts have zeros behind them."""
    value = b.call("aten.constant_pad_nd.default", b.call("aten.view.default", value, parts), zeros)
    return b.call("aten.view.default", value, whole)


__all__ = ["pad_groups"]
