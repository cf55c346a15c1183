"""A convolution's call as passes read it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..graph import Node
from ..ops import normalize
from ..ops.layout import channels_last_stride
from ..spec import TensorSpec

#: floats of 16 bits
HALVES = (torch.bfloat16, torch.float16)
#: what calls leave out: operands, bias, stride, padding, dilation
_DEFAULTS = (None, None, None, 1, 0, 1)


@dataclass(frozen=True, slots=True)
class ConvolutionCall:
    """A convolution of a batch; `places` are stride, padding and dilation along each axis."""

    x: Node
    weight: Node
    bias: Node | None
    places: tuple[list[int], list[int], list[int]]
    groups: int

    @staticmethod
    def of(node: Node) -> ConvolutionCall | None:
        """None for what is none, or transposed, or has its padding as a word."""
        if node.op.convolution is None or not isinstance(node.spec, TensorSpec):
            return None
        args, kwargs = normalize(node.op, node.args, node.kwargs)
        groups, transposed = node.op.convolution.reads(args)
        x, weight, bias, *places = (*args, *_DEFAULTS[len(args):])[:6]
        axes = weight.tensor.ndim - 2
        if kwargs or transposed or x.tensor.ndim != axes + 2 or isinstance(places[1], str):
            return None
        stride, padding, dilation = ([one] * axes if isinstance(one, int) else list(one) * (axes // len(one))
                                     for one in places)
        return ConvolutionCall(x, weight, bias, (stride, padding, dilation), groups)


def is_image(spec: TensorSpec, where: str, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Whether a value is channels-last images on a device of type `where`."""
    return spec.device.type == where and spec.dtype in dtypes and spec.ndim == 4 and spec.is_static \
        and spec.stride == channels_last_stride(spec.shape)


__all__ = ["HALVES", "ConvolutionCall", "is_image"]
