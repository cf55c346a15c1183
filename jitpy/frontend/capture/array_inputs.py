"""Arrays of numpy's as inputs of the graph: as tensors in the same memory."""

from __future__ import annotations

from typing import Any

import torch

from ..guards.source import Source
from ..values.array import TORCH_DTYPES

_CANONICAL = {dtype.char: dtype for dtype in TORCH_DTYPES}


def as_tensor(array: Any) -> torch.Tensor | None:
    """An array as a tensor in the same memory, None where there is none, or where it would be another kind of array."""
    dtype, flags = array.dtype, array.flags
    if _CANONICAL.get(dtype.char) is not dtype or not flags.writeable or not flags.aligned:
        return None
    try:
        return torch.from_numpy(array)
    except ValueError:  # strides that torch does not know
        return None


class _TensorOf(property):
    """Reads an array, or a tensor of a class of the program's, as a plain tensor."""

    __name__ = "tensor"


tensor_of = _TensorOf(as_tensor)
plain_of = _TensorOf(lambda tensor: torch._C.TensorBase.as_subclass(tensor, torch.Tensor))


def is_array_source(source: Source) -> bool:
    """Whether this is where the tensor of an array from outside is found."""
    return source.step[1] is tensor_of
