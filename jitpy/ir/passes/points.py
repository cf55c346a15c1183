"""Convolutions of images of one pixel are products (GPUs, 16 bits).

    convolution(x, w, bias), x [n, c, 1, 1], w [o, c, 1, 1]  ->  view(addmm(bias, squeeze(x), t(squeeze(w))))

Gates of channels are computed so (squeeze and excitation). cuDNN brings numbers of channels that are no multiples of
eight into another layout, and back, by kernels of their own. cuBLAS reads them as they are, and adds the bias.
"""

from __future__ import annotations

from ..builder import Builder
from ..graph import Graph, Node
from .convolutions import HALVES, ConvolutionCall


def multiply_points(graph: Graph, where: str = "cuda") -> list[str]:
    """Rewrite convolutions on devices of type `where` in place. One text a change."""
    mapping: dict[Node, Node] = {}
    for node in list(graph.nodes):
        call = ConvolutionCall.of(node)
        if call is None or call.groups != 1 or any(call.places[1]) or node.tensor.device.type != where \
                or node.tensor.dtype not in HALVES \
                or any(size != 1 for one in (call.x, call.weight) for size in one.tensor.shape[2:]):
            continue
        b, shape = Builder(graph, node), list(node.tensor.shape)
        axes = list(range(2, len(shape)))
        rows, weight = (b.call("aten.squeeze.dims", one, axes) for one in (call.x, call.weight))
        factors = rows, b.call("aten.t.default", weight)
        product = b.call("aten.mm.default", *factors) if call.bias is None \
            else b.call("aten.addmm.default", call.bias, *factors)
        made = b.call("aten.view.default", product, shape)
        if made.tensor.stride != node.tensor.stride:  # channels-last
            made = b.call("aten.view.default", product, [shape[0], *[1] * len(axes), shape[1]])
            made = b.call("aten.permute.default", made, [0, len(axes) + 1, *range(1, len(axes) + 1)])
        if made.tensor.stride == node.tensor.stride:
            mapping[node] = made
    graph.replace(mapping)
    graph.nodes[:] = [node for node in graph.nodes if node not in mapping]
    return [f"{node.name}: a product" for node in mapping]


__all__ = ["multiply_points"]
