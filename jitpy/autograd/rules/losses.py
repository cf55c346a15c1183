"""Gradients of losses."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Node
from ..pullback import Pullback
from .registry import rule

Grads = tuple[Any, ...]


@rule("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def _nll(p: Pullback, g: Node, weight_grad: Any, x: Node, target: Node, weight: Node | None, reduction: int,
         ignore_index: Any) -> Grads:
    name = p.node.op.name.replace("forward", "backward")
    return (p.call(name, g, x, target, weight, reduction, ignore_index, p.part(1)),)


@rule("aten.mse_loss.default")
def _mse(p: Pullback, g: Node, x: Node, target: Node, reduction: int = 1) -> Grads:
    slope = p.call("aten.mse_loss_backward.default", g, x, target, reduction)
    return slope, p.neg(slope) if p.needs(target) else None
