"""Batch norms whose momentum the graph computes: `BatchNorm2d(momentum=None)` averages over all batches so far."""

from __future__ import annotations

import operator
from typing import Any

import torch

from jitpy.ir import GETITEM

from .. import fast_calls
from ..autograd_facts import WRITES_STATISTICS
from ..traced import GraphBuilder, TracedScalar, TracedTensor, Uncapturable

_aten = torch.ops.aten


def batch_norm(builder: GraphBuilder, input: TracedTensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool,
               momentum: Any, eps: float, cudnn_enabled: bool) -> Any:
    """`torch.batch_norm`. The batch's own statistics are what running ones become with a momentum of 1.0; where those
    are not finite, what the op returns besides says them. It is given the running ones, because autograd keeps them."""
    if type(momentum) is not TracedScalar or type(mean) is not TracedTensor or type(var) is not TracedTensor:
        given = (input, weight, bias, mean, var, training, momentum, eps, cudnn_enabled)
        return fast_calls.run(builder, torch.batch_norm, given, {})
    rest = (eps, cudnn_enabled)
    if not training:
        return builder.record_call(torch.batch_norm, (input, weight, bias, mean, var, training, 0.0, *rest), {})
    if mean.spec.requires_grad or var.spec.requires_grad:
        raise Uncapturable("unsupported_op", "batch_norm that writes to statistics which require grad")
    rest_of_one = builder.scalar_op(operator.sub, 1.0, momentum)
    former = [builder.record_call(torch.mul, (running, rest_of_one), {}) for running in (mean, var)]
    finite = [builder.record_call(torch.isfinite, (running,), {}) for running in (mean, var)]
    result = builder.record_call(torch.batch_norm, (input, weight, bias, mean, var, training, 1.0, *rest), {})
    of_batch, scale = _of_batch(builder, result)
    about = of_batch, builder.record_call(torch.pow, (scale, -2), {})
    for running, known, other, before in zip((mean, var), finite, about, former, strict=True):
        own = builder.record_call(torch.where, (known, running, other), {})
        share = builder.record_call(torch.mul, (own, momentum), {})
        total = builder.record(_aten.add.Tensor, (share, before), {})
        builder.write(running, builder.node(total), unseen=True)
    return result


def _of_batch(builder: GraphBuilder, result: TracedTensor) -> list[TracedTensor]:
    """The mean and the scale of the batch, which the op of a result returns besides."""
    node = builder.node(result)
    if node.op is not GETITEM or node.args[0].op.target not in WRITES_STATISTICS:
        raise Uncapturable("unsupported_op", "batch_norm that updates nothing")
    return [builder.fresh(builder.part(node.args[0], i)) for i in (1, 2)]


__all__ = ["batch_norm"]
