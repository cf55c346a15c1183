"""Gradients of elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...ir.graph import Node
from ...ir.op import NotCovered
from ..pullback import Pullback
from .registry import RULES, by_kernel, rule

Grads = tuple[Node | None, ...]


def _call(name: str) -> Callable[..., Node]:
    return lambda p, *args, **kwargs: p.call(f"aten.{name}.default", *args, **kwargs)


def _scale(p: Pullback, x: Node, factor: Any) -> Node:
    return x if isinstance(factor, (int, float)) and factor == 1 else p.mul(x, factor)


# -- functions of one tensor: (p, gradient, x, result) ------------------------------------------------------------

_sin, _cos, _exp = map(_call, ("sin", "cos", "exp"))

UNARY: dict[str, Callable[[Pullback, Node, Node, Node], Node]] = {
    "neg": lambda p, g, x, y: p.neg(g),
    "abs": lambda p, g, x, y: p.mul(g, p.call("aten.sgn.default", x)),
    "square": lambda p, g, x, y: p.mul(g, p.mul(x, 2)),
    "exp": lambda p, g, x, y: p.mul(g, y),
    "log": lambda p, g, x, y: p.div(g, x),
    "log1p": lambda p, g, x, y: p.div(g, p.add(x, 1)),
    "sqrt": lambda p, g, x, y: p.div(g, p.mul(y, 2)),
    "rsqrt": lambda p, g, x, y: p.mul(p.mul(g, -0.5), p.call("aten.pow.Tensor_Scalar", y, 3)),
    "reciprocal": lambda p, g, x, y: p.mul(p.neg(g), p.mul(y, y)),
    "sin": lambda p, g, x, y: p.mul(g, _cos(p, x)),
    "cos": lambda p, g, x, y: p.mul(g, p.neg(_sin(p, x))),
    "tanh": lambda p, g, x, y: p.call("aten.tanh_backward.default", g, y),
    "sigmoid": lambda p, g, x, y: p.call("aten.sigmoid_backward.default", g, y),
    "erf": lambda p, g, x, y: p.mul(p.mul(g, 2 / math.sqrt(math.pi)), _exp(p, p.neg(p.mul(x, x)))),
    "alias": lambda p, g, x, y: g,
    "relu": lambda p, g, x, y: p.call("aten.threshold_backward.default", g, y, 0),
    "relu6": lambda p, g, x, y: p.call("aten.hardtanh_backward.default", g, x, 0, 6),
    # d/dx log(sigmoid(x)) = 1 - sigmoid(x) = sigmoid(-x)
    "log_sigmoid": lambda p, g, x, y: p.mul(g, p.call("aten.sigmoid.default", p.neg(x))),
}


def _unary(name: str) -> None:
    formula = UNARY[name]
    # the result has the dtype of x wherever x has a gradient
    RULES[f"aten.{name}.default"] = lambda p, g, x: (formula(p, g, x, p.node),)


for _name in UNARY:
    _unary(_name)

@rule("floor", "ceil", "trunc", "fix", "round", "sign", "sgn", "zero", "round.decimals", "fill.Scalar")
def _flat(p: Pullback, g: Node, x: Node, *rest: Any, **options: Any) -> Grads:
    return (p.zeros_like(g),)


@rule("empty_like", "zeros_like", "ones_like", "full_like")
def _like(p: Pullback, g: Node, x: Node, *rest: Any, **options: Any) -> Grads:
    """Where torch's own code fills such a tensor, and then writes to it what has a history."""
    return (None,)


@rule("aten.clone.default", "aten.contiguous.default", "aten.to.dtype", "aten.to.device", "aten.to.other",
      "aten.to.dtype_layout", "aten._to_copy.default", "aten.type_as.default", "aten.lift_fresh.default")
def _copied(p: Pullback, g: Node, x: Node, *rest: Any, **options: Any) -> Grads:
    if x.tensor.device != g.tensor.device:
        raise NotCovered("the gradient of a copy to another device")
    return (g,)


# -- activations with parameters ------------------------------------------------------------------------------------


by_kernel("gelu", "glu", "hardsigmoid", "hardswish", "softplus", "threshold", "hardtanh", "softshrink", "hardshrink")
# for gradients with a history torch writes these out: autograd knows no derivative of the backward kernels
by_kernel("silu", "mish", once=True)


@rule("aten.leaky_relu.default")
def _leaky_relu(p: Pullback, g: Node, x: Node, slope: Any = 0.01) -> Grads:
    return (p.call("aten.leaky_relu_backward.default", g, x, slope, False),)


# -- arithmetic of two tensors ----------------------------------------------------------------------------------------


def _both(name: str) -> list[str]:
    return [f"{name}.{overload}" for overload in ("Tensor", "Scalar")]


@rule(*_both("add"))
def _add(p: Pullback, g: Node, x: Any, y: Any, alpha: Any = 1) -> Grads:
    return g, _scale(p, g, alpha) if p.needs(y) else None


@rule(*_both("sub"), *_both("subtract"))
def _sub(p: Pullback, g: Node, x: Any, y: Any, alpha: Any = 1) -> Grads:
    return g, _scale(p, p.neg(g), alpha) if p.needs(y) else None


@rule(*_both("rsub"))
def _rsub(p: Pullback, g: Node, x: Any, y: Any, alpha: Any = 1) -> Grads:
    return _scale(p, p.neg(g), alpha) if p.needs(x) else None, g


@rule(*_both("mul"), *_both("multiply"))
def _mul(p: Pullback, g: Node, x: Any, y: Any) -> Grads:
    return p.mul(g, y) if p.needs(x) else None, p.mul(g, x) if p.needs(y) else None


@rule(*_both("div"), *_both("divide"), *_both("true_divide"))
def _div(p: Pullback, g: Node, x: Any, y: Any) -> Grads:
    return (p.div(g, y) if p.needs(x) else None,
            p.mul(p.neg(g), p.div(p.div(x, y), y)) if p.needs(y) else None)


@rule("aten.pow.Tensor_Scalar")
def _pow_scalar(p: Pullback, g: Node, x: Node, exponent: Any) -> Grads:
    if not isinstance(exponent, (int, float)):
        raise NotCovered("an exponent known only at run time")
    if exponent == 0:
        return (p.zeros_like(g, x.tensor),)
    if exponent == 2:
        return (p.mul(g, p.mul(x, 2)),)
    return (p.mul(g, p.mul(p.call("aten.pow.Tensor_Scalar", x, exponent - 1), exponent)),)


def _selecting(better: str, worse: str) -> Callable[..., Grads]:
    """maximum, minimum: equal operands share the gradient."""

    def pull(p: Pullback, g: Node, x: Node, y: Node) -> Grads:
        shared = p.where(p.call("aten.eq.Tensor", x, y), p.div(g, 2), g)

        def part(comparison: str) -> Node:
            return p.call("aten.masked_fill.Scalar", shared, p.call(f"aten.{comparison}.Tensor", x, y), 0)

        return part(worse) if p.needs(x) else None, part(better) if p.needs(y) else None

    return pull


rule("aten.maximum.default", "aten.max.other")(_selecting("gt", "lt"))
rule("aten.minimum.default", "aten.min.other")(_selecting("lt", "gt"))


# -- selection, clamps ------------------------------------------------------------------------------------------------


@rule("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther")
def _where(p: Pullback, g: Node, condition: Node, x: Any, y: Any) -> Grads:
    return None, p.where(condition, g, 0.0) if p.needs(x) else None, p.where(condition, 0.0, g) if p.needs(y) else None


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(p: Pullback, g: Node, x: Node, mask: Node, value: Any) -> Grads:
    return (p.call("aten.masked_fill.Scalar", g, mask, 0) if p.needs(x) else None, None,
            p.where(mask, g, 0.0) if p.needs(value) else None)


@rule("aten.clamp.default", "aten.clip.default", "aten.clamp_min.default")
def _clamp(p: Pullback, g: Node, x: Node, low: Any = None, high: Any = None) -> Grads:
    inside = None
    for name, bound in (("ge", low), ("le", high)):
        if bound is not None:
            within = p.call(f"aten.{name}.Scalar", x, bound)
            inside = within if inside is None else p.call("aten.logical_and.default", inside, within)
    return (g if inside is None else p.where(inside, g, 0.0),)


@rule("aten.clamp_max.default")
def _clamp_max(p: Pullback, g: Node, x: Node, high: Any) -> Grads:
    return _clamp(p, g, x, None, high)


@rule("ir.in_layout_of")
def _in_layout_of(p: Pullback, g: Node, old: Node, value: Node) -> Grads:
    return None, g


@rule("aten.copy.default")
def _copy(p: Pullback, g: Node, x: Node, source: Node, *rest: Any) -> Grads:
    return p.zeros_like(g) if p.needs(x) else None, g
