"""Batch norms whose momentum the graph computes: `BatchNorm2d(momentum=None)` averages over all batches so far."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from ..traced import DECLINED, TracedScalar, TracedTensor, Uncapturable

if TYPE_CHECKING:
    from ..recording.recorder import Recorder

_aten = torch.ops.aten


def batch_norm(recorder: Recorder, input: TracedTensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool,
               momentum: Any, eps: float, cudnn_enabled: bool) -> Any:
    """`torch.batch_norm`. The batch's own statistics are what running ones become with a momentum of 1.0."""
    from .calls import record_call

    if type(momentum) is not TracedScalar or type(mean) is not TracedTensor or type(var) is not TracedTensor:
        return DECLINED
    rest = (eps, cudnn_enabled)
    if not training:
        return record_call(recorder, torch.batch_norm, (input, weight, bias, mean, var, training, 0.0, *rest), {})
    if mean.spec.requires_grad or var.spec.requires_grad:
        raise Uncapturable("unsupported_op", "batch_norm that writes to statistics which require grad")
    own = [recorder.record(_aten.zeros_like.default, (statistics,), {}) for statistics in (mean, var)]
    result = record_call(recorder, torch.batch_norm, (input, weight, bias, *own, training, 1.0, *rest), {})
    rest_of_one = recorder.scalar_op(operator.sub, 1.0, momentum)
    for running, found in zip((mean, var), own, strict=True):
        share = record_call(recorder, torch.mul, (found, momentum), {})
        former = record_call(recorder, torch.mul, (running, rest_of_one), {})
        total = recorder.record(_aten.add.Tensor, (share, former), {})
        recorder.write(running, recorder.node(total), unseen=True)
    return result


__all__ = ["batch_norm"]
