"""Values in the layout of the tensor that receives them: what a write in place, or a gradient, is copied into."""

from __future__ import annotations

from typing import Any

import torch

from jitpy.ir import Dim, Node, SizeEnv, TensorSpec, contiguous_stride
from jitpy.ir.ops.functional import check_write

from . import aliasing
from .traced import GraphBuilder, Storage, TracedTensor, Uncapturable

_aten = torch.ops.aten


def conform(builder: GraphBuilder, value: Node, target: TracedTensor, spec: TensorSpec) -> Node:
    """`value` in the dtype and layout of the tensor that receives it."""
    have = value.tensor
    if have.dtype != spec.dtype:
        try:
            check_write(spec.dtype, have.dtype)
        except RuntimeError as error:
            raise Uncapturable("exception", str(error)) from None
    if have.device != spec.device:
        raise Uncapturable("unsupported_op", "a write across devices")
    if have.dtype == spec.dtype and (target.chain or stays(have, spec, target.storage)):
        return value
    return copy_into(builder, value, spec, target)


def copy_into(builder: GraphBuilder, value: Node, spec: TensorSpec, old: TracedTensor) -> Node:
    """A fresh copy of `value` with the shape, dtype, device and, unless `old` is a view, the strides of `spec`."""
    have = value.tensor
    contiguous = {"memory_format": torch.contiguous_format}
    if len(have.shape) != len(spec.shape) or have.shape != spec.shape:
        value = builder.emit(_aten.expand.default, (value, spec.shape), {})
    order = list(range(spec.ndim))
    if spec.stride != contiguous_stride(spec.shape):  # on axes of size 1, too, which layouts do not depend on
        dense = dense_order(builder.sizes, spec)
        own = old.storage.input is None and not old.chain
        if dense is not None and not (own and _ordered_strides(spec.shape, dense) != spec.stride):
            order = dense
        elif own or not old.chain and not spec.is_contiguous():
            if have.requires_grad and builder.state.grad_enabled:
                return builder.emit("ir.in_layout_of", (builder.node(old), value), {},
                                     spec.with_(requires_grad=True, offset=0))
            return builder.emit(_aten.copy.default, (builder.node(old), value), {}, spec.with_(requires_grad=False))
    permuted = order != sorted(order)
    if permuted:
        value = builder.emit(_aten.permute.default, (value, order), {})
    if have.dtype != spec.dtype or have.device != spec.device:
        value = builder.emit(
            _aten._to_copy.default, (value,), {"dtype": spec.dtype, "device": spec.device, **contiguous}
        )
    else:
        value = builder.emit(_aten.clone.default, (value,), contiguous)
    if permuted:
        inverse = [order.index(axis) for axis in range(spec.ndim)]
        value = builder.emit(_aten.permute.default, (value, inverse), {})
    return value


def with_history(builder: GraphBuilder, old: Node, value: Node) -> Node:
    """`value` written over all of `old`: eager keeps that in the autograd graph, with a gradient of zero."""
    if not old.tensor.ndim:
        raise Uncapturable("unsupported_op", "a value written over a 0-dim tensor that requires grad")
    return aliasing.scatter_along(builder, _aten.slice_scatter.default, old, value, 0, 0, old.tensor.shape[0])


def in_layout(builder: GraphBuilder, value: Node, storage: Storage) -> Node:
    """`value` with the strides of the base that it replaces."""
    base = storage.base
    if stays(value.tensor, base.tensor, storage):
        return value
    return copy_into(builder, value, base.tensor, TracedTensor(builder, storage, (), base, base.tensor))


def _ordered_strides(shape: tuple[Dim, ...], order: list[int]) -> tuple[Dim, ...]:
    """The strides of memory without gaps, axes from the outermost to the innermost."""
    inner = contiguous_stride(tuple([shape[axis] for axis in order]))
    return tuple([inner[order.index(axis)] for axis in range(len(shape))])


def dense_order(env: SizeEnv, spec: TensorSpec) -> list[int] | None:
    """The axes from the outermost to the innermost in memory, None where the memory has gaps."""
    order = sorted(range(spec.ndim), key=lambda axis: (-env.hint(spec.stride[axis]), spec.shape[axis] == 1, axis))
    expected: Any = 1
    for axis in reversed(order):
        if type(spec.shape[axis]) is int and spec.shape[axis] == 1:
            continue
        if not env.equal(spec.stride[axis], expected, "layout of a tensor that is written to"):
            return None
        expected = expected * spec.shape[axis]
    return order


def stays(value: TensorSpec, base: TensorSpec, storage: Storage) -> bool:
    """Whether a value may take the place of a storage's base. It is a result, unless an input's memory gets it: then
    all strides count, those of axes of size 1, too."""
    return value.stride == base.stride or storage.input is not None and same_layout(value, base)


def same_layout(a: TensorSpec, b: TensorSpec) -> bool:
    """Equal strides, axes of size 1 aside."""
    if a.stride == b.stride:
        return True
    return all(size == 1 or x == y for size, x, y in zip(a.shape, a.stride, b.stride, strict=True))


def shifted(spec: Any, shift: Dim) -> Any:
    """The specs of views that begin so much later in their memory."""
    if type(spec) is tuple:
        return tuple([shifted(s, shift) for s in spec])
    return spec.with_(offset=spec.offset + shift)
