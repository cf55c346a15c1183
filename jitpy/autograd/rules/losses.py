"""Gradients of losses."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Node
from ..pullback import Pullback
from .registry import rule

Grads = tuple[Any, ...]

#: `reduction=` as ATen numbers it
_MEAN = 1


@rule("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def _nll(p: Pullback, g: Node, weight_grad: Any, x: Node, target: Node, weight: Node | None, reduction: int,
         ignore_index: Any) -> Grads:
    name = p.node.op.name.replace("forward", "backward")
    return (p.call(name, g, x, target, weight, reduction, ignore_index, p.part(1)),)


@rule("aten.mse_loss.default")
def _mse(p: Pullback, g: Node, x: Node, target: Node, reduction: int = 1) -> Grads:
    slope = p.call("aten.mse_loss_backward.default", g, x, target, reduction)
    return slope, p.neg(slope) if p.needs(target) else None


@rule("aten.huber_loss.default", "aten.smooth_l1_loss.default")
def _huber(p: Pullback, g: Node, x: Node, target: Node, reduction: int = 1, edge: float = 1.0) -> Grads:
    name = p.node.op.name.replace(".default", "_backward.default")
    return tuple(p.call(name, g, a, b, reduction, edge) if p.needs(a) else None
                 for a, b in ((x, target), (target, x)))


@rule("aten.binary_cross_entropy.default")
def _cross_entropy(p: Pullback, g: Node, x: Node, target: Node, weight: Node | None = None,
                   reduction: int = 1) -> Grads:
    slope = None
    if p.needs(x):
        slope = p.call("aten.binary_cross_entropy_backward.default", g, x, target, weight, reduction)
    if not p.needs(target):
        return slope, None
    odds = p.neg(p.call("aten.logit.default", x))
    return slope, p.mul(_weighted(p, odds, weight), _shared(p, g, x, reduction))


@rule("aten.binary_cross_entropy_with_logits.default")
def _cross_entropy_of_logits(p: Pullback, g: Node, x: Node, target: Node, weight: Node | None = None,
                             positive: Node | None = None, reduction: int = 1) -> Grads:
    """Of `(1 - t) x + (1 + (positive - 1) t) log(1 + exp(-x))`."""
    g = _shared(p, g, x, reduction)
    slope = other = None
    if p.needs(x):
        chance = p.call("aten.sigmoid.default", x)
        if positive is None:
            slope = p.sub(chance, target)
        else:
            hits = p.mul(positive, target)
            slope = p.sub(p.mul(p.sub(p.add(hits, 1), target), chance), hits)
        slope = p.mul(_weighted(p, slope, weight), g)
    if p.needs(target):
        if positive is None:
            other = p.neg(x)
        else:
            log = p.call("aten.log_sigmoid.default", x)
            other = p.sub(p.neg(x), p.mul(p.sub(positive, 1), log))
        other = p.mul(_weighted(p, other, weight), g)
    return slope, other


def _weighted(p: Pullback, slope: Node, weight: Node | None) -> Node:
    return slope if weight is None else p.mul(slope, weight)


def _shared(p: Pullback, g: Node, x: Node, reduction: int) -> Node:
    """The gradient of each element's loss, before they were reduced."""
    return p.div(g, x.tensor.numel) if reduction == _MEAN else g
