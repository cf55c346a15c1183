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


@rule("aten.mm.default", "aten.bmm.default")
def _product(p: Pullback, g: Node, a: Node, b: Node) -> Grads:
    name = p.node.op.name
    return (p.call(name, g, p.transpose(b)) if p.needs(a) else None,
            p.call(name, p.transpose(a), g) if p.needs(b) else None)


@rule("aten.addmm.default", "aten.baddbmm.default")
def _added_product(p: Pullback, g: Node, bias: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Grads:
    name = "aten.mm.default" if p.node.op.name == "aten.addmm.default" else "aten.bmm.default"
    return (_scale(p, g, beta) if p.needs(bias) else None,
            _scale(p, p.call(name, g, p.transpose(b)), alpha) if p.needs(a) else None,
            _scale(p, p.call(name, p.transpose(a), g), alpha) if p.needs(b) else None)


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
        flat = rows(p, g)
        return (p.reshape(p.call("aten.mm.default", flat, p.transpose(b)), shape_a) if p.needs(a) else None,
                p.call("aten.mm.default", p.call("aten.t.default", rows(p, a)), flat) if p.needs(b) else None)
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


@rule("aten.mv.default")
def _mv(p: Pullback, g: Node, a: Node, b: Node) -> Grads:
    return (p.mul(p.call("aten.unsqueeze.default", g, 1), b) if p.needs(a) else None,
            p.call("aten.mv.default", p.transpose(a), g) if p.needs(b) else None)


@rule("aten.dot.default")
def _dot(p: Pullback, g: Node, a: Node, b: Node) -> Grads:
    return p.mul(g, b) if p.needs(a) else None, p.mul(g, a) if p.needs(b) else None


@rule("aten.outer.default")
def _outer(p: Pullback, g: Node, a: Node, b: Node) -> Grads:
    return (p.call("aten.mv.default", g, b) if p.needs(a) else None,
            p.call("aten.mv.default", p.transpose(g), a) if p.needs(b) else None)
