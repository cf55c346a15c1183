"""Composite ops that are sometimes a view, sometimes a copy and sometimes their argument itself, in primitive ops.

Each function takes the op's bound arguments and returns the result's payload, with eager's aliasing; or DECLINED,
which leaves the call to the derived path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitpy.ir import Node, TensorSpec, contiguous_stride
from jitpy.ir import ops as table

from . import derived_calls
from .number_checks import check_call
from .traced import DECLINED, GraphBuilder, TracedTensor

_aten = torch.ops.aten

Lowering = Callable[["GraphBuilder", torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]], Any]


def _question(
    builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, TensorSpec]:
    """The relation of the result to its argument ('self', 'view', 'copy'), and its spec."""
    op = table.get(overload)
    nodes, keywords = builder.to_node(args), builder.to_node(kwargs)
    kind = table.aliasing(op, builder.sizes, nodes, keywords)
    spec = table.infer(op, builder.sizes, nodes, keywords, builder.state.grad_enabled)
    assert isinstance(spec, TensorSpec)
    return kind, spec


def _reshaped(builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """reshape, flatten, view_as, ...: a view of the argument, or of a contiguous copy of it."""
    self: TracedTensor = args[0]
    kind, spec = _question(builder, overload, args, kwargs)
    if kind == "self":
        return self
    if kind == "view":
        return builder.record(_aten.view.default, (self, spec.shape), {}, spec)
    copy = builder.emit(_aten.clone.default, (builder.node(self),), {"memory_format": torch.contiguous_format})
    return builder.fresh(builder.emit(_aten._unsafe_view.default, (copy, spec.shape), {}, spec))


def _raveled(builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view even of a copy, which autograd knows for one."""
    if _question(builder, overload, args, kwargs)[0] != "copy":
        return _reshaped(builder, overload, args, kwargs)
    copy = builder.record(_aten.clone.default, (args[0],), {"memory_format": torch.contiguous_format})
    return builder.record(_aten.view.default, (copy, [-1]), {})


def _converted(builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """to, type_as, contiguous: the argument itself, or a copy."""
    self: TracedTensor = args[0]
    kind, spec = _question(builder, overload, args, kwargs)
    if kind == "self":
        return self
    old = self.spec
    if spec.device != old.device:
        return DECLINED
    names = [a.name for a in overload._schema.arguments]
    memory_format = (dict(zip(names, args, strict=False)) | kwargs).get("memory_format")
    options: dict[str, Any] = {} if memory_format in (None, torch.preserve_format) else {"memory_format": memory_format}
    if overload is _aten.contiguous.default:
        options = {"memory_format": memory_format or torch.contiguous_format}
        return builder.record(_aten.clone.default, (self,), options, spec)
    return builder.record(_aten._to_copy.default, (self,), {"dtype": spec.dtype, **options}, spec)


def _recorded_as(
    other: Any, arguments: Callable[..., tuple[Any, ...]] = lambda *args: args
) -> Lowering:
    """Another op, whose positional arguments `arguments` tells."""
    return lambda builder, overload, args, kwargs: builder.record(other, arguments(*args), kwargs)


def _matrix_transposed(builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[0].ndim < 2:
        return DECLINED
    return builder.record(_aten.transpose.int, (args[0], -2, -1), {})


def _unflattened(builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    spec = table.infer(table.get(overload), builder.sizes, builder.to_node(args), builder.to_node(kwargs))
    assert isinstance(spec, TensorSpec)
    return builder.record(_aten.view.default, (args[0], spec.shape), {})


def _normalised(builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """batch_norm by the running statistics: new memory, and nothing written. The derived path knows the other way."""
    training = args[5]
    return DECLINED if training else builder.record(overload, args, kwargs)


def _pooled(builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """max_pool1d: on the CPU a kernel of its own where no gradient is wanted, which takes floats and whose result is
    row-major."""
    self: TracedTensor = args[0]
    if self.spec.device.type != "cpu" or self.spec.requires_grad and builder.state.grad_enabled:
        return DECLINED
    if not self.spec.dtype.is_floating_point:
        check_call(overload, builder.to_node(args), builder.to_node(kwargs), builder.sizes)
    rows = _converted(builder, _aten.contiguous.default, (self,), {})
    padding = args[3] if len(args) > 3 else kwargs.get("padding", 0)
    if self.spec.is_static and padding not in (0, [0], (0,)):  # eager's kernel, which kernels here are slower than
        shape = torch.max_pool1d(torch.empty(self.spec.shape, device="meta"), *args[1:], **kwargs).shape
        spec = TensorSpec(self.spec.dtype, tuple(shape), contiguous_stride(tuple(shape)), self.spec.device)
        return builder.record(overload, (rows, *args[1:]), kwargs, spec)
    return DECLINED if rows is self else derived_calls.run(builder, torch.max_pool1d, (rows, *args[1:]), kwargs)


LOWERINGS: dict[Any, Lowering] = {
    _aten.batch_norm.default: _normalised,
    _aten.reshape.default: _reshaped,
    _aten.reshape_as.default: _reshaped,
    _aten.view_as.default: _reshaped,
    _aten.flatten.using_ints: _reshaped,
    _aten.ravel.default: _raveled,
    _aten.contiguous.default: _converted,
    _aten.to.dtype: _converted,
    _aten.to.device: _converted,
    _aten.to.other: _converted,
    _aten.to.dtype_layout: _converted,
    _aten.type_as.default: _converted,
    _aten.expand_as.default: _recorded_as(_aten.expand.default, lambda self, other: (self, other.shape)),
    _aten.broadcast_to.default: _recorded_as(_aten.expand.default),
    _aten.numpy_T.default: _recorded_as(_aten.permute.default, lambda self: (self, list(range(self.ndim))[::-1])),
    _aten.mT.default: _matrix_transposed,
    _aten.swapaxes.default: _recorded_as(_aten.transpose.int),
    _aten.swapdims.default: _recorded_as(_aten.transpose.int),
    _aten.unflatten.int: _unflattened,
    _aten.chunk.default: _recorded_as(_aten.chunk.default),
    _aten.max_pool1d.default: _pooled,
}


def reshape_node(builder: GraphBuilder, value: Node, shape: tuple[Any, ...]) -> Node:
    """`value` (memory that nobody else sees) in another shape."""
    spec = table.infer(table.get(_aten.reshape.default), builder.sizes, (value, shape), {})
    assert isinstance(spec, TensorSpec)
    if table.aliasing(table.get(_aten.reshape.default), builder.sizes, (value, shape), {}) != "view":
        value = builder.emit(_aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
    return builder.emit(_aten.view.default, (value, shape))
