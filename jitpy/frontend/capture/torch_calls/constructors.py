"""Tensors made from Python data, and torch's operators that are written in Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ....ir.algebra import sympy
from ..traced import DECLINED, GraphBuilder, TracedScalar, TracedTensor, Uncapturable

_aten = torch.ops.aten
_Tensor = torch.Tensor


def tensor(
    builder: GraphBuilder,
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Any:
    """`torch.tensor` of data that only the graph knows: computed numbers, symbolic sizes and tensors in lists."""
    if type(data) is TracedTensor:
        raise Uncapturable("unsupported_op", "torch.tensor() of a tensor, which warns: clone().detach() is captured")
    if requires_grad or pin_memory or not _mentions_computed(data):
        return DECLINED
    kinds = _kinds(data)
    tensors = _tensors(data)
    if complex in kinds or not all(map(_is_plain_number, tensors)):
        return DECLINED
    if dtype is None:
        dtypes = [builder.state.default_dtype if kind is float else torch.int64 if kind is int else torch.bool
                  for kind in kinds if kind is not TracedTensor]
        dtype = functools.reduce(torch.promote_types, [*dtypes, *(t.dtype for t in tensors)])
    if not dtype.is_floating_point and any(t.dtype.is_floating_point for t in tensors):
        return DECLINED  # eager refuses them
    options = {"dtype": dtype, "device": torch.device(device or "cpu")}

    def build(value: Any) -> TracedTensor:
        if type(value) in (list, tuple):
            return builder.record(_aten.stack.default, ([build(v) for v in value], 0), {})
        if type(value) is TracedTensor:
            number = builder.record(_aten.detach.default, (value,), {})
            if dtype.is_floating_point and not value.dtype.is_floating_point:  # a number of Python's in between
                number = builder.record(_aten._to_copy.default, (number,), {"dtype": torch.float64})
            return builder.record(_aten._to_copy.default, (number,), options)
        return builder.record(_aten.scalar_tensor.default, (value,), options)

    return build(data)


def _mentions_computed(data: Any) -> bool:
    if type(data) in (list, tuple):
        return any(map(_mentions_computed, data))
    return type(data) in (TracedScalar, TracedTensor) or isinstance(data, sympy.Basic)


def _tensors(data: Any) -> list[TracedTensor]:
    if type(data) in (list, tuple):
        return [t for item in data for t in _tensors(item)]
    return [data] if type(data) is TracedTensor else []


def _is_plain_number(tensor: TracedTensor) -> bool:
    """Whether a tensor is as good as a number of Python's: of one that requires grad torch warns."""
    spec = tensor.spec
    return tensor.ndim == 0 and spec.device.type == "cpu" and not spec.dtype.is_complex and not spec.requires_grad


def _kinds(data: Any) -> set[type]:
    if type(data) in (list, tuple):
        return set().union(*map(_kinds, data))
    if type(data) is TracedScalar:
        return {data.kind}
    return {int if isinstance(data, sympy.Basic) else type(data)}


def _reversed_division(builder: GraphBuilder, self: Any, other: Any) -> Any:
    return builder.record_call(torch.mul, (builder.record(_aten.reciprocal.default, (self,), {}), other), {})


def _polygamma_in_place(builder: GraphBuilder, self: TracedTensor, n: int) -> TracedTensor:
    value = builder.record(_aten.polygamma.default, (n, self), {})
    builder.write(self, builder.node(value))
    return self


def _randint_like(builder: GraphBuilder, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Python's function has no history, the operator would have one: of a derivative that is not implemented."""
    if type(input) is not TracedTensor or not input.spec.requires_grad:
        return DECLINED
    return builder.record_call(torch.randint_like, (builder.record(_aten.detach.default, (input,), {}), *args),
                       kwargs)


CONSTRUCTORS: dict[Any, Callable[..., Any]] = {
    torch.tensor: tensor,
    torch.randint_like: _randint_like,
    torch._C.TensorBase.polygamma_: _polygamma_in_place,
    _Tensor.__rtruediv__: _reversed_division,
    _Tensor.__rdiv__: _reversed_division,
}
