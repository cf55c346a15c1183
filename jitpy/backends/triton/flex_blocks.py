"""The launch parameters of attention with computed scores: those that were fastest on an H100, cut to what divides the
blocks of the mask and fits the GPU's memory. The program's own come first."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...schedule.flex import Attention
from .tiles import power_of_two


@dataclass(frozen=True, slots=True)
class Blocks:
    """Queries and keys that a program has at a time, and its launch parameters."""

    queries: int
    keys: int
    warps: int
    stages: int


def forward_blocks(attention: Attention) -> Blocks:
    """The launch parameters of a forward pass, for Hopper."""
    size, dtype = head_size(attention), attention.query.value.dtype
    if dtype is torch.float32:
        found = Blocks(64, 32, 4, 2) if size <= 64 else Blocks(32, 32, 4, 2) if size <= 128 else Blocks(16, 16, 4, 1)
    elif size <= 64:
        found = Blocks(128, 64, 4, 3) if attention.changes_score else Blocks(64, 128, 4, 2)
    elif size <= 128:
        found = Blocks(64, 64, 4, 3)
    else:
        found = Blocks(64, 32, 4, 2)
    return _fitted(attention, found, "fwd_", "BLOCK_M", "BLOCK_N")


def shared_blocks(attention: Attention) -> Blocks:
    """Those where programs share the keys of few queries."""
    narrow = 32 if attention.query.value.dtype is torch.float32 or head_size(attention) > 128 else 64
    found = _fitted(attention, Blocks(16, narrow, 4, 3), "fwd_", "", "BLOCK_N")
    rows = attention.group * int(attention.query.shape[2])
    return replace(found, queries=max(16, power_of_two(rows)))


def query_blocks(attention: Attention) -> Blocks:
    """Those of the gradient of queries."""
    return _fitted(attention, _backward_blocks(attention, True), "bwd_", "BLOCK_M2", "BLOCK_N2")


def key_blocks(attention: Attention) -> Blocks:
    """Those of the gradients of keys and values."""
    return _fitted(attention, _backward_blocks(attention, False), "bwd_", "BLOCK_M1", "BLOCK_N1")


def _backward_blocks(attention: Attention, rows: bool) -> Blocks:
    size, dtype = head_size(attention), attention.query.value.dtype
    if dtype is torch.float32:
        return Blocks(32, 32, 4, 1) if size <= 64 else Blocks(16, 16, 4, 1)
    if size <= 64:
        return Blocks(64, 64, 4, 3)
    if size <= 128:
        return Blocks(128, 64, 8, 3) if rows else Blocks(64, 64, 4, 2)
    return Blocks(32, 32, 4, 1)


def head_size(attention: Attention) -> int:
    return max(int(attention.query.shape[3]), int(attention.value.shape[3]))


def _fitted(attention: Attention, blocks: Blocks, prefix: str, rows: str, columns: str) -> Blocks:
    """The sizes that the program asks for, and those that divide the blocks of the mask."""
    options = attention.target.options

    def asked(*names: str, default: int) -> int:
        for name in names:
            for key in (prefix + name, name):
                given = options.get(key)
                if type(given) is int and power_of_two(given) == given:
                    return given
        return default

    block = attention.target.block
    sizes = [asked(rows, default=blocks.queries), asked(columns, default=blocks.keys)]
    for k, axis in enumerate((attention.query.shape[2], attention.key.shape[2])):
        if type(axis) is int:
            sizes[k] = min(sizes[k], max(16, power_of_two(axis)))
        while block[k] % sizes[k]:
            sizes[k] //= 2
    warps = blocks.warps if sizes[0] * sizes[1] >= blocks.queries * blocks.keys // 2 else 4
    stages = asked("num_stages", default=blocks.stages)
    # a program keeps rows of its own side, and some blocks of the other one that are under way
    row = 2 * head_size(attention) * attention.query.value.dtype.itemsize
    walked, room = (0 if rows == "BLOCK_M1" else 1), shared_memory() - 4096
    while stages > 1 and row * (sizes[1 - walked] + stages * sizes[walked]) > room:
        stages -= 1
    while sizes[walked] > 16 and row * (sizes[1 - walked] + sizes[walked]) > room:
        sizes[walked] //= 2
    return Blocks(sizes[0], sizes[1], asked("num_warps", default=warps), stages)


def shared_memory() -> int:
    """Bytes that a program may have, on the GPU at hand or on Hopper."""
    if not torch.cuda.is_available():
        return 227 << 10
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return getattr(properties, "shared_memory_per_block_optin", 64 << 10)


__all__ = ["Blocks", "forward_blocks", "key_blocks", "query_blocks", "shared_blocks"]
