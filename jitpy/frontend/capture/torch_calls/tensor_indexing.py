"""`x[index]` and `x[index] = value`, as torch's own indexing does them: views first, then at most one gather or
scatter.
"""

from __future__ import annotations

from typing import Any

import torch

from jitpy.ir import TensorSpec
from jitpy.ir import ops as table
from jitpy.ir.graph import short_name
from jitpy.ir.sizes import SCALAR_LIMIT

from ....ir.algebra import sympy
from ..computed_sizes import as_sizes, number_of, size_of
from ..traced import DECLINED, GraphBuilder, TracedScalar, TracedTensor, Uncapturable
from .scalars import item, scalar_methods

_aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)

#: The number that torch passes for an open end.
_OPEN_END = 9223372036854775807


class _Declined(Exception):
    """The index has a part that the derived path converts."""


def getitem(builder: GraphBuilder, self: TracedTensor, index: Any) -> Any:
    """The payload of `self[index]`, or DECLINED."""
    places = index if type(index) is tuple else (index,)
    if builder.state.of_element and all(type(part) in (TracedTensor, int) for part in places):
        return builder.record(_aten.index.Tensor, (self, [_place(builder, self, part) for part in places]), {})
    try:
        sliced, tensors = _slice(builder, self, index)
    except _Declined:
        return DECLINED
    if tensors:
        if any(t is not None and t.dtype is torch.uint8 for t in tensors):
            raise Uncapturable("dynamic_shape", "an index by a mask of bytes")
        return builder.record(_aten.index.Tensor, (sliced, tensors), {})
    return builder.record(_aten.alias.default, (self,), {}) if sliced is self else sliced


def _place(builder: GraphBuilder, tensor: TracedTensor, part: Any) -> TracedTensor:
    if type(part) is TracedTensor:
        return part
    return builder.record(_aten.scalar_tensor.default, (part,), {"dtype": torch.int64, "device": tensor.spec.device})


def setitem(builder: GraphBuilder, self: TracedTensor, index: Any, value: Any) -> Any:
    """Record `self[index] = value`; None, or DECLINED."""
    if type(value) not in (TracedTensor, TracedScalar, int, float, bool, complex):
        return DECLINED
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        raise Uncapturable("unsupported_op", "an item set to a number of more than 64 bits")
    try:
        sliced, tensors = _slice(builder, self, index)
    except _Declined:
        return DECLINED
    if type(value) is TracedTensor:
        if value.spec.device != self.spec.device:
            return DECLINED
        value = _without_leading_ones(builder, value, sliced.ndim)
    if tensors:
        _put(builder, sliced, tensors, value)
    elif type(value) is TracedTensor:
        table.infer(table.get(_aten.expand.default), builder.sizes, (builder.node(value), sliced.shape), {})
        builder.record(_aten.copy_.default, (sliced, value), {})
    else:
        if type(value) is complex and not self.dtype.is_complex:
            return DECLINED
        builder.record(_aten.fill_.Scalar, (sliced, value), {})
    return None


def _put(builder: GraphBuilder, target: TracedTensor, tensors: list[TracedTensor | None], value: Any) -> None:
    mask = tensors[0]
    number = type(value) is not TracedTensor
    is_fill = len(tensors) == 1 and mask is not None and mask.dtype is torch.bool and (number or value.ndim == 0)
    if is_fill and mask.shape == target.shape:
        overload = _aten.masked_fill_.Scalar if number else _aten.masked_fill_.Tensor
        if number or value.dtype == target.dtype:
            builder.record(overload, (target, mask, value), {})
            return
    if number:
        value = builder.record(
            _aten.scalar_tensor.default, (value,), {"dtype": target.dtype, "device": target.spec.device}
        )
    elif value.dtype != target.dtype:
        if not is_fill or not torch.can_cast(value.dtype, target.dtype):
            raise Uncapturable("exception", "index_put_ of another dtype")
        value = builder.record(_aten._to_copy.default, (value,), {"dtype": target.dtype})
    builder.record(_aten.index_put_.default, (target, tensors, value), {})


def _without_leading_ones(builder: GraphBuilder, value: TracedTensor, ndim: int) -> TracedTensor:
    shape = value.shape
    extra = 0
    while len(shape) - extra > ndim and shape[extra] == 1:
        extra += 1
    return builder.record(_aten.view.default, (value, shape[extra:]), {}) if extra else value


def _slice(builder: GraphBuilder, self: TracedTensor, index: Any) -> tuple[TracedTensor, list[TracedTensor | None]]:
    """Apply ints, slices, None and `...`; returns the view and, axis by axis, the tensors that still index it."""
    parts = tuple([_positions(builder, part) for part in (index if type(index) is tuple else (index,))])
    specified = 0
    ellipses = 0
    for part in parts:
        kind = type(part)
        if part is Ellipsis:
            ellipses += 1
        elif kind is TracedTensor:
            specified += max(part.ndim, 1) if part.dtype in _MASKS else 1
        elif kind in (int, slice) or isinstance(part, sympy.Basic) or kind is TracedScalar and part.kind is int:
            specified += 1
        elif part is not None:
            raise _Declined
    if specified > self.ndim or ellipses > 1:
        raise _Declined
    result = self
    dim = 0
    tensors: list[TracedTensor | None] = []
    for part in parts:
        kind = type(part)
        if kind is TracedTensor and part.ndim == 0 and _is_plain_index(part):
            part = item(builder, part)
            kind = type(part)
        if part is None:
            result = builder.record(_aten.unsqueeze.default, (result, dim), {})
            dim += 1
        elif part is Ellipsis:
            dim += self.ndim - specified
        elif kind is slice:
            result = _apply_slice(builder, result, dim, part)
            dim += 1
        elif kind is TracedTensor and part.ndim:
            if part.dtype not in _MASKS and part.dtype not in (torch.int64, torch.int32):
                raise _Declined
            tensors += [None] * (dim - len(tensors))
            tensors.append(part)
            dim += part.ndim if part.dtype in _MASKS else 1
        elif kind is TracedTensor:
            raise _Declined
        elif kind is TracedScalar:
            result = _select_computed(builder, result, dim, part)
        elif builder.sizes.is_unbacked(part):
            result = _select_computed(builder, result, dim, number_of(builder, part))
        else:
            result = builder.record(_aten.select.int, (result, dim, part), {})
    return result, tensors


def _positions(builder: GraphBuilder, part: Any) -> Any:
    """A list of ints, of which the graph computes some, as a tensor."""
    if type(part) is not list or not any(type(p) is TracedScalar for p in part) or \
            not all(type(p) is int or type(p) is TracedScalar and p.kind is int for p in part):
        return part
    return builder.call(torch.tensor, (part,), {}, builder.loc)


def _is_plain_index(tensor: TracedTensor) -> bool:
    """An integer tensor that is no mask."""
    dtype = tensor.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype in _MASKS)


def _apply_slice(builder: GraphBuilder, tensor: TracedTensor, dim: int, part: slice) -> TracedTensor:
    part = slice(*(_bound(builder, bound) for bound in (part.start, part.stop, part.step)))
    for bound in (part.start, part.stop, part.step):
        if bound is not None and type(bound) is not int and not isinstance(bound, sympy.Basic):
            raise _Declined
    step = 1 if part.step is None else part.step
    size = tensor.shape[dim]
    if step == 1 and part.start in (None, 0):
        stop = part.stop
        if stop is None or stop == size or type(stop) is int and type(size) is int and stop >= size:
            return tensor
    start = 0 if part.start is None else part.start
    stop = _OPEN_END if part.stop is None else part.stop
    spec = _assumed(builder, tensor.spec, dim, start, stop) if step == 1 and part.stop is not None else None
    if spec is not None:
        return builder.record(_aten.slice.Tensor, (tensor, dim, start, stop, 1), {}, spec)
    return builder.record(_aten.slice.Tensor, (tensor, dim, start, stop, step), {})


def _assumed(builder: GraphBuilder, old: TensorSpec, dim: int, start: Any, stop: Any) -> TensorSpec | None:
    """The result of `x[i: i + n]` for an `i` that the graph computes: `n` long, as the graph checks. None where that is
    not so, or not known."""
    sizes = builder.sizes
    if not sizes.is_unbacked(start) and not sizes.is_unbacked(stop):
        return None
    length = sizes.canonical(stop - start)
    if sizes.is_unbacked(length) or not sizes.known(sympy.Ge(length, 0)):
        return None
    if not all(sizes.require(bound, "a slice") for bound in (sympy.Ge(start, 0), sympy.Le(stop, old.shape[dim]))):
        return None
    shape = (*old.shape[:dim], length, *old.shape[dim + 1:])
    return TensorSpec(old.dtype, shape, old.stride, old.device, old.requires_grad and builder.state.grad_enabled)


#: how far sums are followed from a slice's bound
_SUMS = 4


def _sum(builder: GraphBuilder, tensor: TracedTensor) -> Any:
    """The number in a 0-d tensor, as a sum of another one and a constant where it is computed as such."""
    node, offset = builder.node(tensor), 0
    for _ in range(_SUMS):
        name = short_name(node.op)
        sign = 1 if name == "add" else -1 if name == "sub" else 0
        if not sign or node.kwargs or len(node.args) != 2 or type(node.args[1]) is not int or \
                node.args[0].spec.dtype is not torch.int64 or abs(node.args[1]) > SCALAR_LIMIT:
            break
        node, offset = node.args[0], offset + sign * node.args[1]
    if not offset:
        return scalar_methods[torch._C.TensorBase.__index__](builder, tensor)
    number = as_sizes(builder, item(builder, builder.fresh(node)))
    return number + offset


def _bound(builder: GraphBuilder, bound: Any) -> Any:
    """A slice's bound; an int that the graph computes as a size, one of more than 64 bits as the nearest of 64."""
    if type(bound) is int:
        return max(-_OPEN_END, min(bound, _OPEN_END))
    if type(bound) is TracedTensor and bound.ndim == 0 and bound.dtype is torch.int64:
        return as_sizes(builder, _sum(builder, bound))
    if type(bound) is TracedTensor:
        bound = scalar_methods[torch._C.TensorBase.__index__](builder, bound)
    return as_sizes(builder, bound)


def _select_computed(builder: GraphBuilder, tensor: TracedTensor, dim: int, index: TracedScalar) -> TracedTensor:
    """`x[i]` for a number that the graph computes: a view at a place that is known when the graph runs."""
    old = tensor.spec
    position, size = size_of(builder, index), old.shape[dim]
    sizes = builder.sizes
    if not all(sizes.require(bound, "an index") for bound in (sympy.Lt(position, size), sympy.Ge(position, -size))):
        raise Uncapturable("exception", f"index {position} is out of bounds")
    spec = TensorSpec(
        old.dtype,
        old.shape[:dim] + old.shape[dim + 1 :],
        old.stride[:dim] + old.stride[dim + 1 :],
        old.device,
        old.requires_grad and builder.state.grad_enabled,
    )
    return builder.record(_aten.select.int, (tensor, dim, index), {}, spec)
