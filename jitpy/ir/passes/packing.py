"""Weights of convolutions on CPUs that stay as they are lie as oneDNN's kernels read them.

Its calls put weights in the order of their kernels each time: for (4, 512, 7, 7) images that takes 2.7 of 6.4 ms. The
library could apply relu as well, but makes zero of NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..graph import FIXED, Graph
from ..op import Op
from .convolutions import ConvolutionCall, is_image


def pack_weights(graph: Graph) -> list[str]:
    """Rewrite convolutions of channels-last images by fixed weights in place. One text a change."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_convolution_weight"):
        return []
    done = []
    for node in graph.nodes:
        call = ConvolutionCall.of(node)
        if call is None or not all(is_image(one.tensor, "cpu", (torch.float32,)) for one in (node, call.x)):
            continue
        weight = call.weight
        while weight.op.is_copy and weight.tensor.dtype is weight.args[0].tensor.dtype:
            weight = weight.args[0]
        if weight.meta.get(FIXED):
            stride, padding, dilation = call.places
            node.op = Op("ir.packed_convolution", _Convolution((padding, stride, dilation), call.groups),
                         infer=lambda env, *args, spec=node.spec, **kwargs: spec,
                         aliasing=lambda *args, **kwargs: "copy")
            node.args, node.kwargs = (call.x, weight, call.bias), {}
            done.append(f"{node.name}: its weights are packed once")
    return done


@dataclass(slots=True, eq=False)
class _Convolution:
    """`(x, weight, bias) -> result`: weights are packed when they are another tensor than in the call before."""

    places: tuple[list[int], list[int], list[int]]
    groups: int
    known: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.known is None or self.known[0] is not weight:
            packed = torch.ops.mkldnn._reorder_convolution_weight(weight.clone(), *self.places, self.groups, x.shape)
            self.known = weight, packed
        return torch.ops.mkldnn._convolution_pointwise(x, self.known[1], bias, *self.places, self.groups, "none", [],
                                                       "")


__all__ = ["pack_weights"]
