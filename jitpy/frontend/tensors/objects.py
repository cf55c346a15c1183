"""Attributes of tensors that hold objects: `.grad`, read and assigned while tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..source import attr
from ..values.base import ConstValue, TensorValue, Value, const, unsupported
from .attributes import has_no_grad

if TYPE_CHECKING:
    from ..executor import Executor


def load_grad(ex: Executor, value: TensorValue) -> Value:
    """`value.grad`: what was assigned while tracing, else what the real tensor has (guarded)."""
    from ..calls import from_payload, recording

    if value.grad is None:
        is_leaf = value.source is not None and value.real.is_leaf
        real = value.real.grad if is_leaf else None
        if isinstance(real, torch.Tensor):
            value.grad = ex.world.wrap(real, attr(value.source, "grad"))  # type: ignore[arg-type]
        elif is_leaf:
            ex.recorder.guards.add(value.source, "python", has_no_grad, "grad was read")
            value.grad = const(None)
        else:
            with recording(ex, "Tensor.grad"):
                value.grad = from_payload(ex, ex.recorder.attribute(value.traced, "grad"))
    return value.grad


def store_grad(ex: Executor, value: TensorValue, new: Value) -> None:
    """`value.grad = new`, replayed later; what torch may refuse to assign breaks the graph."""
    if value.source is None or not value.real.is_leaf or not _assignable(value, new):
        raise unsupported(value, ".grad = ...")
    load_grad(ex, value)  # guards what was there before
    assign_grad(ex, value, new)


def assign_grad(ex: Executor, value: TensorValue, new: Value) -> None:
    """`value.grad` is `new` from now on; it is replayed when the graph has run."""
    value.grad, value.grad_assigned = new, True
    if value.source is not None or not ex.recorder.bets.is_leaf(value.traced):
        ex.world.touch(value)  # a leaf that was made here is no result


def _assignable(value: TensorValue, new: Value) -> bool:
    if isinstance(new, ConstValue):
        return new.value is None
    if not isinstance(new, TensorValue) or new is value:
        return False
    want, have = value.traced.spec, new.traced.spec
    return (want.shape, want.dtype, want.device) == (have.shape, have.dtype, have.device)
