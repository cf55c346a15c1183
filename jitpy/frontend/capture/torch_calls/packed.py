"""Packed sequences: `pack_padded_sequence`, recurrent layers of what it returns, `pad_packed_sequence`.

How many elements there are, and how many steps, depends on the lengths (`ir/ops/data_sizes.py`). How many sequences the
first step has is the batch that was packed.
"""

from __future__ import annotations

from typing import Any

import torch

from ....ir.algebra import sympy
from ..computed_sizes import as_sizes
from ..known_tensors import packed_batch
from ..traced import GraphBuilder, TracedTensor, Uncapturable

_aten = torch.ops.aten
_LENGTHS = "packed sequences whose lengths were packed elsewhere, or in another way"


def pack(builder: GraphBuilder, input: Any, lengths: Any, batch_first: bool) -> Any:
    """`torch._VF._pack_padded_sequence`."""
    usable = type(input) is type(lengths) is TracedTensor and type(batch_first) is bool
    if not usable or lengths.dtype is not torch.int64 or lengths.spec.device.type != "cpu":
        raise Uncapturable("dynamic_shape", _LENGTHS)
    return builder.record(_aten._pack_padded_sequence.default, (input, lengths, batch_first), {})


def pad(builder: GraphBuilder, data: Any, batch_sizes: Any, batch_first: bool, padding_value: Any,
        total_length: Any) -> Any:
    """`torch._VF._pad_packed_sequence`."""
    batch = packed_batch(builder.node(batch_sizes)) if type(batch_sizes) is TracedTensor else None
    total = as_sizes(builder, total_length)
    numbers = type(padding_value) in (int, float) and (isinstance(total, sympy.Expr) or type(total) is int)
    if batch is None or type(data) is not TracedTensor or not numbers:
        raise Uncapturable("dynamic_shape", _LENGTHS)
    steps = batch_sizes.shape[0]
    length = steps if type(total) is int and total <= 0 else total
    if length is not steps and not builder.sizes.require(sympy.Ge(length, steps), "pad_packed_sequence"):
        raise Uncapturable("exception", "pad_packed_sequence to less than the longest sequence")
    args = (builder.node(data), builder.node(batch_sizes), batch, batch_first, padding_value, length)
    node = builder.emit("ir.pad_packed", args)
    return builder.results(node, node.spec)


def layer(builder: GraphBuilder, name: str, args: tuple[Any, ...]) -> Any:
    """`torch.lstm(data, batch_sizes, hx, params, ...)` and the like."""
    data, batch_sizes, hx, params, _, _, dropout, train, _ = args
    batch = packed_batch(builder.node(batch_sizes))
    states = list(hx) if isinstance(hx, (tuple, list)) else [hx]
    tensors = [data, *states, *params]
    if batch is None or dropout and train or any(
            t.dtype != data.dtype or t.spec.device.type != "cpu" for t in tensors) or data.ndim != 2 or \
            any(s.ndim != 3 or not builder.sizes.equal(s.shape[1], batch, f"states of {name}") for s in states):
        raise Uncapturable("dynamic_shape", f"{name} of {_LENGTHS}")
    node = builder.emit(f"ir.{name}_packed", builder.to_node(args))
    return builder.results(node, node.spec)


__all__ = ["layer", "pack", "pad"]
