"""Gradients of matrix products."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Node
from ...ir.spec import prod
from ..pullback import Pullback
from .registry import rule

Grads = tuple[Node | None, ...]


def _scale(p: Pullback, x: Node, factor: Any) -> Node:
    return x if factor == 1 else p.mul(x, factor)


def _by_columns(x: Node) -> bool:
    """Whether a matrix lies column by column, as a turned weight does: so does its gradient then, as in eager."""
    shape, stride = x.tensor.shape, x.tensor.stride
    return len(shape) == 2 and stride == (1, shape[0])


def _factors(p: Pullback, name: str, g: Node, a: Node, b: Node, left: bool, right: bool) -> Grads:
    """The gradients of both factors of a product, as far as they are asked for."""
    first = second = None
    if left:
        first = p.transpose(p.call(name, b, p.transpose(g))) if _by_columns(a) else p.call(name, g, p.transpose(b))
    if right:
        second = p.transpose(p.call(name, p.transpose(g), a)) if _by_columns(b) else p.call(name, p.transpose(a), g)
    return first, second


@rule("aten.mm.default", "aten.bmm.default")
def _product(p: Pullback, g: Node, a: Node, b: Node) -> Grads:
    return _factors(p, p.node.op.name, g, a, b, p.needs(a), p.needs(b))


@rule("aten.addmm.default", "aten.baddbmm.default")
def _added_product(p: Pullback, g: Node, bias: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Grads:
    name = "aten.mm.default" if p.node.op.name == "aten.addmm.default" else "aten.bmm.default"
    first, second = _factors(p, name, g, a, b, p.needs(a), p.needs(b))
    return (_scale(p, g, beta) if p.needs(bias) else None,
            None if first is None else _scale(p, first, alpha), None if second is None else _scale(p, second, alpha))


def rows(p: Pullback, x: Node) -> Node:
    """All leading axes as one."""
    shape = x.tensor.shape
    return p.reshape(x, (prod(shape[:-1]), shape[-1]))


@rule("aten.linear.default")
def _linear(p: Pullback, g: Node, x: Node, weight: Node, bias: Node | None = None) -> Grads:
    flat = rows(p, g)
    return (p.reshape(p.call("aten.mm.default", flat, weight), x.tensor.shape) if p.needs(x) else None,
            p.call("aten.mm.default", p.call("aten.t.default", flat), rows(p, x)) if p.needs(weight) else None,
            p.sum_over(flat, [0]) if p.needs(bias) else None)


@rule("aten.matmul.default")
def _matmul(p: Pullback, g: Node, a: Node, b: Node) -> Grads:
    shape_a, shape_b = a.tensor.shape, b.tensor.shape
    if len(shape_b) == 2 and len(shape_a) > 1:
        # one matrix for all rows
        left = a if len(shape_a) == 2 else rows(p, a)
        first, second = _factors(p, "aten.mm.default", rows(p, g), left, b, p.needs(a), p.needs(b))
        return None if first is None else p.reshape(first, shape_a), second
    # vectors as matrices
    left = p.call("aten.unsqueeze.default", a, 0) if len(shape_a) == 1 else a
    right = p.call("aten.unsqueeze.default", b, 1) if len(shape_b) == 1 else b
    if len(shape_b) == 1:
        g = p.call("aten.unsqueeze.default", g, -1)
    if len(shape_a) == 1:
        g = p.call("aten.unsqueeze.default", g, -2)
    first = second = None
    if p.needs(a):
        first = p.like(p.call("aten.matmul.default", g, p.transpose(right)), left.tensor)
        first = p.reshape(first, shape_a)
    if p.needs(b):
        second = p.like(p.call("aten.matmul.default", p.transpose(left), g), right.tensor)
        second = p.reshape(second, shape_b)
    return first, second
