"""`as_strided`, which looks at the memory of a tensor, not at the tensor."""

from __future__ import annotations

from typing import Any

import torch

from jitpy.ir import Node, TensorSpec
from jitpy.ir.ops.strided import strided_places

from ...ir.algebra import sympy
from . import layouts
from .inputs import starts_its_memory
from .torch_calls.tensor_attributes import read_attribute
from .traced import GraphBuilder, GraphInput, TracedTensor, Uncapturable

_aten = torch.ops.aten


def strided_base(builder: GraphBuilder, base: TracedTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """as_strided looks at the whole memory: express it on the storage's base."""
    size, stride = (kwargs.get(n, args[i] if len(args) > i else None) for i, n in ((1, "size"), (2, "stride")))
    offset = kwargs.get("storage_offset", args[3] if len(args) > 3 else None)
    memory = base.storage.base.tensor
    if layouts.dense_order(builder.sizes, memory) is None or memory.dtype is not base.dtype or \
            any(isinstance(a, Node) for step in base.chain for a in step.args):
        raise Uncapturable("unsupported_op", "as_strided of memory whose layout is not known")
    if base.storage.input is not None:
        _check_input(
            builder,
            builder.inputs[base.storage.input],
            memory,
            size,
            stride,
            base.spec.offset if offset is None else offset,
        )
    else:
        _check_memory(builder, memory, size, stride, base.spec.offset if offset is None else offset)
    whole = base
    if base.chain:
        if offset is None:
            offset = base.spec.offset
        # under no_grad the new view is as unconnected as the old one
        if base.is_unrecorded and builder.state.grad_enabled or any(step.multi for step in base.chain):
            raise Uncapturable("unsupported_op", "as_strided of a view that autograd restricts")
        if base.spec.requires_grad and not all(
                step.op.target is not _aten.as_strided.default and
                builder.sizes.equal(step.spec.numel, memory.numel, "as_strided") for step in base.chain):
            # autograd drops the gradient of what the view does not show
            if strided_places(base.spec, tuple(size), tuple(stride), offset) is None:
                raise Uncapturable("unsupported_op", "as_strided of a part of a tensor that requires grad")
            return base, (base, size, stride, offset), {}
        node = base.storage.base
        whole = TracedTensor(builder, base.storage, (), node, node.tensor)
        if base.is_detached:
            whole = read_attribute(builder, whole, "data") if base.is_data else \
                builder.record(_aten.detach.default, (whole,), {})
    return whole, (whole, size, stride, 0 if offset is None else offset), {}


def _check_memory(builder: GraphBuilder, memory: TensorSpec, size: Any, stride: Any, offset: Any) -> None:
    """as_strided of memory that the graph made: what lies outside raises, also where nobody reads it."""
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    sizes = builder.sizes
    fits = 0 in size or sizes.require(sympy.Lt(last, memory.numel), "as_strided")
    if not fits or not sizes.require(sympy.Ge(offset, 0), "as_strided"):
        raise Uncapturable("unsupported_op", "as_strided beyond a tensor's memory")


def _check_input(
    builder: GraphBuilder, entry: GraphInput, memory: TensorSpec, size: Any, stride: Any, offset: Any
) -> None:
    """as_strided counts from the start of the storage: only within an input that begins there."""
    numbers = (*size, *stride, offset, *memory.shape)
    if not all(type(n) is int for n in numbers) or entry.value.storage_offset() != 0:
        raise Uncapturable("unsupported_op", "as_strided of a part of a tensor from outside")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if last >= memory.numel:
        raise Uncapturable("unsupported_op", "as_strided beyond a tensor from outside")
    builder.guards.add(entry.source, "python", starts_its_memory, "as_strided")
