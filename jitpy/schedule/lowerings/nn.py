"""Normalisations and losses, built from reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...ir.op import NotCovered
from ...ir.spec import prod
from ..expr import BOOL, Expr, ScalarBuilder
from ..index import ZERO
from ..lower import Lowering, lowering
from ..values import Value
from .indexing import position
from .pointwise import number
from .reductions import log_softmax_of, mean_of, variance


def _normalised(low: Lowering, x: Value, dims: tuple[int, ...], weight: Value | None, bias: Value | None, eps: float,
                dtype: torch.dtype) -> tuple[Value, Value, Value]:
    """`(x - mean) * rstd * weight + bias`, with mean and rstd (axes kept). Weight and bias broadcast against x."""
    kind = torch.float64 if dtype is torch.float64 else torch.float32
    var, average = variance(low, x, dims, 0.0, kind)
    rstd = low.apply(lambda e, v: e.rsqrt(e.add(v, eps)), [var], var.shape, kind, kind, "rstd")

    def body(e: ScalarBuilder, a: Expr, m: Expr, r: Expr, *rest: Expr) -> Expr:
        result = e.mul(e.sub(a, m), r)
        operands = list(rest)
        if weight is not None:
            result = e.mul(result, operands.pop(0))
        return e.add(result, operands.pop(0)) if bias is not None else result

    operands = [x, average, rstd, *(p for p in (weight, bias) if p is not None)]
    return low.apply(body, operands, x.shape, dtype, kind), average, rstd


@lowering("layer_norm")
def layer_norm(low: Lowering, node: Any, x: Value, shape: Sequence[Any], weight: Value | None = None,
               bias: Value | None = None, eps: float = 1e-5, cudnn_enable: bool = True) -> Value:
    dims = tuple(range(len(x.shape) - len(shape), len(x.shape)))
    return _normalised(low, x, dims, weight, bias, eps, node.tensor.dtype)[0]


@lowering("native_layer_norm")
def native_layer_norm(low: Lowering, node: Any, x: Value, shape: Sequence[Any], weight: Value | None, bias: Value | None,
                      eps: float) -> tuple[Value, ...]:
    dims = tuple(range(len(x.shape) - len(shape), len(x.shape)))
    out, average, rstd = _normalised(low, x, dims, weight, bias, eps, node.spec[0].dtype)
    return out, low.convert(average, node.spec[1].dtype), low.convert(rstd, node.spec[2].dtype)


@lowering("rms_norm")
def rms_norm(low: Lowering, node: Any, x: Value, shape: Sequence[Any], weight: Value | None = None,
             eps: float | None = None) -> Value:
    if not x.dtype.is_floating_point:
        raise NotCovered("integer operand")
    dims = tuple(range(len(x.shape) - len(shape), len(x.shape)))
    kind = torch.float64 if x.dtype is torch.float64 else torch.float32
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    squares = low.apply(lambda e, a: e.mul(a, a), [x], x.shape, kind, kind, "square")
    average = mean_of(low, squares, dims, kind, True)

    def body(e: ScalarBuilder, a: Expr, m: Expr, *rest: Expr) -> Expr:
        result = e.mul(a, e.rsqrt(e.add(m, eps)))
        return e.mul(result, rest[0]) if rest else result

    return low.apply(body, [x, average, *([weight] if weight is not None else [])], x.shape, node.tensor.dtype, kind)


@lowering("group_norm")
def group_norm(low: Lowering, node: Any, x: Value, groups: int, weight: Value | None = None, bias: Value | None = None,
               eps: float = 1e-5, cudnn_enabled: bool = True) -> Value:
    n, c, *rest = x.shape
    if not isinstance(c, int):
        raise NotCovered("symbolic channels")
    shape = (n, groups, c // groups, prod(tuple(rest)))
    affine = (1, groups, c // groups, 1)
    params = [None if p is None else low.reshape(p, affine) for p in (weight, bias)]
    out = _normalised(low, low.reshape(x, shape), (2, 3), params[0], params[1], eps, node.tensor.dtype)[0]
    return low.reshape(out, x.shape)


@lowering("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(low: Lowering, node: Any, x: Value, weight: Value | None, bias: Value | None, mean: Value | None,
               var: Value | None, *args: Any) -> Value:
    if not isinstance(node.spec, torch.Tensor) and isinstance(node.spec, tuple):
        raise NotCovered("results for the backward pass")
    training, _momentum, eps = args[0], args[1], args[2]
    if training or mean is None or var is None:
        raise NotCovered("training statistics")
    shape = (1, x.shape[1], *([1] * (len(x.shape) - 2)))
    params = [p if p is None else low.reshape(p, shape) for p in (mean, var, weight, bias)]
    kind = torch.float64 if x.dtype is torch.float64 else torch.float32

    def body(e: ScalarBuilder, a: Expr, m: Expr, v: Expr, *rest: Expr) -> Expr:
        operands = list(rest)
        scale = e.rsqrt(e.add(v, eps))
        if weight is not None:
            scale = e.mul(scale, operands.pop(0))
        result = e.mul(e.sub(a, m), scale)
        return e.add(result, operands.pop(0)) if bias is not None else result

    return low.apply(body, [x, *(p for p in params if p is not None)], x.shape, node.tensor.dtype, kind)


# losses; `reduction` is 0 none, 1 mean, 2 sum

def _reduced(low: Lowering, node: Any, loss: Value, reduction: int) -> Value:
    dtype = node.tensor.dtype
    if reduction == 0:
        return loss
    dims = tuple(range(len(loss.shape)))
    return mean_of(low, loss, dims, dtype, False) if reduction == 1 else low.reduce("sum", loss, dims, dtype)


def _elementwise_loss(name: str, fn: Any) -> None:
    @lowering(name)
    def op(low: Lowering, node: Any, x: Value, target: Value, reduction: int = 1, *rest: Any) -> Value:
        dtype = node.tensor.dtype
        shape = x.shape if len(x.shape) >= len(target.shape) else target.shape
        if [*x.shape] != [*target.shape]:
            raise NotCovered("operands of different shapes")
        loss = low.apply(lambda e, a, b: fn(e, a, b, *rest), [x, target], shape, dtype, low.promote(x, target))
        return _reduced(low, node, loss, reduction)


def _huber(e: ScalarBuilder, a: Expr, b: Expr, beta: float = 1.0) -> Expr:
    distance = e.abs(e.sub(a, b))
    if beta == 0:
        return distance
    return e.where(e.lt(distance, beta), e.truediv(e.mul(e.mul(distance, distance), 0.5), beta), e.sub(distance, 0.5 * beta))


def _square_distance(e: ScalarBuilder, a: Expr, b: Expr) -> Expr:
    distance = e.sub(a, b)
    return e.mul(distance, distance)


_elementwise_loss("mse_loss", _square_distance)
_elementwise_loss("l1_loss", lambda e, a, b: e.abs(e.sub(a, b)))
_elementwise_loss("smooth_l1_loss", _huber)


@lowering("binary_cross_entropy_with_logits")
def bce_with_logits(low: Lowering, node: Any, x: Value, target: Value, weight: Value | None = None,
                    pos_weight: Value | None = None, reduction: int = 1) -> Value:
    if weight is not None or pos_weight is not None or not target.dtype.is_floating_point:
        raise NotCovered("weights")
    loss = low.apply(lambda e, a, t: e.add(e.sub(e.maximum(a, 0), e.mul(a, t)), e.log1p(e.exp(e.neg(e.abs(a))))),
                     [x, target], x.shape, node.tensor.dtype, node.tensor.dtype)
    return _reduced(low, node, loss, reduction)


@lowering("cross_entropy_loss")
def cross_entropy(low: Lowering, node: Any, x: Value, target: Value, weight: Value | None = None, reduction: int = 1,
                  ignore_index: int = -100, label_smoothing: float = 0.0) -> Value:
    if weight is not None or label_smoothing or target.dtype is not torch.int64 or len(target.shape) != len(x.shape) - 1:
        raise NotCovered("weights, smoothing or class probabilities")
    return _nll(low, node, log_softmax_of(low, x, 1 if len(x.shape) > 1 else 0), target, reduction, ignore_index)


@lowering("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(low: Lowering, node: Any, x: Value, target: Value, weight: Value | None = None, reduction: int = 1,
             ignore_index: int = -100) -> Value:
    if weight is not None or target.dtype is not torch.int64:
        raise NotCovered("weights")
    return _nll(low, node, x, target, reduction, ignore_index)


def _nll(low: Lowering, node: Any, logs: Value, target: Value, reduction: int, ignore_index: int) -> Value:
    number(ignore_index, "ignore_index")
    axis = 1 if len(logs.shape) > 1 else 0
    dtype = logs.dtype
    kept = low.apply(lambda e, t: e.ne(t, ignore_index), [target], target.shape, BOOL, target.dtype, "kept")

    def body(trace: Any, index: Any) -> Expr:
        e = trace.e
        keep = trace.read(kept, index)
        value = trace.masked(keep, lambda: trace.read(
            logs, (*index[:axis], position(trace, target, index, logs.shape[axis]), *index[axis:])))
        return e.where(keep, e.neg(value), 0.0)

    loss = low.pointwise(target.shape, dtype, body, "loss")
    if reduction == 0:
        return loss
    dims = tuple(range(len(target.shape)))
    total = low.reduce("sum", loss, dims, dtype)
    if reduction == 2:
        return total
    counted = low.reduce("sum", kept, dims, dtype, name="count")
    return low.apply(lambda e, a, n: e.truediv(a, n), [total, counted], (), dtype, dtype)


__all__ = ["ZERO", "layer_norm"]
