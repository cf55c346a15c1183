"""In which order random numbers fill a tensor.

`bernoulli_` of torch's CPU library walks memory; on some processors it takes the numbers of another library, in the
order of the indices. Functional forms always fill row-major memory. `normal_` draws many numbers at once where memory
is contiguous, which a copy without the gaps of a tensor may be.
"""

from __future__ import annotations

import functools

import torch

from ..sizes import SizeEnv
from ..spec import TensorSpec
from .layout import is_contiguous, preserved_stride, stride_less


@functools.cache
def _walks_memory() -> bool:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return x.bernoulli_(0.5, generator=torch.Generator().manual_seed(1))

    with torch._C.DisableTorchFunction():
        across, along = (torch.empty(shape, device="cpu", dtype=torch.float32) for shape in ((8, 8), (8, 8)))
        return not torch.equal(draw(across.t()), draw(along))


def fills_by_index(x: TensorSpec) -> bool:
    """Whether `bernoulli_` fills memory like that of `x` as it fills row-major memory."""
    return x.device.type != "cpu" or is_contiguous(x.shape, x.stride) or not _walks_memory()


def fills_alike(env: SizeEnv, x: TensorSpec) -> bool:
    """Whether `normal_` fills a tensor with the numbers that it fills a copy with."""
    copied = preserved_stride(env, x.shape, x.stride)
    return x.device.type != "cpu" or is_contiguous(x.shape, x.stride) or not is_contiguous(x.shape, copied)


def filling_order(env: SizeEnv, x: TensorSpec) -> list[int]:
    """The axes of `torch.empty_like(x)` from the outermost to the innermost in memory."""
    stride = preserved_stride(env, x.shape, x.stride)

    def compare(a: int, b: int) -> int:
        if stride[a] == stride[b]:
            return 0
        return 1 if stride_less(env, stride[a], stride[b]) else -1

    return sorted(range(len(stride)), key=functools.cmp_to_key(compare))
