"""The state of a GPU's random generator as a tensor, for kernels that draw numbers themselves.

The generator goes on as it does for eager's kernels. While a CUDA graph is captured, it gives addresses of what each
replay starts from in place of numbers; so the same kernel serves both, and what reads the tensor knows of neither."""

from __future__ import annotations

import functools
from typing import Any

import torch

from jitpy.runtime.native_build import load_native, load_or_none

from ...ir.ops.philox import draws_by
from .compile import submit
from .kernel import GpuKernel
from .load import target_of

_NAME = "generator_state"
_SOURCE = f'''import triton
import triton.language as tl


@triton.jit
def {_NAME}(state, captured, seed, offset, skipped):
    # no branch: what a load writes must not be what it reads its address from
    found = tl.load(seed.to(tl.pointer_type(tl.int64)), mask=captured != 0, other=0)
    start = tl.load(offset.to(tl.pointer_type(tl.int64)), mask=captured != 0, other=0)
    tl.store(state, tl.where(captured != 0, found, seed))
    tl.store(state + 1, tl.where(captured != 0, start + skipped, offset))
'''
_NUMBERS = ("captured", "seed", "offset", "skipped")
_KERNEL = GpuKernel(_SOURCE, _NAME, (("state", "*i64"), *((name, "i64") for name in _NUMBERS)), num_warps=1)


@functools.cache
def blocks_of(device: torch.device) -> int:
    """How many blocks of 256 threads a GPU holds at a time; 0 where its generator cannot be read. The kernel that
    writes states down begins to compile."""
    native = load_or_none("runtime")
    if torch.version.hip is not None or native is None or not native.has_philox():
        return 0
    submit(_KERNEL, target_of(device))
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count * (properties.max_threads_per_multi_processor // 256)


@functools.cache
def _writer(device: torch.device) -> Any:
    from ..executable import make_executable
    from ..plan import AllocStep, LaunchStep, Plan, SlotRef, Step

    count = len(_NUMBERS)
    steps: list[Step] = [AllocStep(count, (2,), (1,), torch.int64, device),
                         LaunchStep(_KERNEL, (1,), (SlotRef(count), *map(SlotRef, range(count))), _NAME)]
    return make_executable(Plan(count, count + 1, (count,), steps, device=device))


def draw(device: torch.device, increment: int) -> torch.Tensor:
    """Seed and offset (two int64 on `device`) that numbers are drawn from; the generator goes on by `increment`."""
    writer = _writer(device)  # first: it may fail
    return writer(*load_native("runtime").philox_state(device.index, increment))[0]


draws_by(draw)
