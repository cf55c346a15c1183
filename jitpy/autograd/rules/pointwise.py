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

_sin, _cos, _sinh, _cosh, _exp, _rsqrt = map(_call, ("sin", "cos", "sinh", "cosh", "exp", "rsqrt"))


def _square_plus(p: Pullback, x: Node, sign: int, constant: int) -> Node:
    """sign * x * x + constant"""
    square = p.mul(x, x)
    return p.call("aten.rsub.Scalar", square, constant) if sign < 0 else p.call("aten.add.Scalar", square, constant)


UNARY: dict[str, Callable[[Pullback, Node, Node, Node], Node]] = {
    "neg": lambda p, g, x, y: p.neg(g),
    "positive": lambda p, g, x, y: g,
    "abs": lambda p, g, x, y: p.mul(g, p.call("aten.sgn.default", x)),
    "square": lambda p, g, x, y: p.mul(g, p.mul(x, 2)),
    "exp": lambda p, g, x, y: p.mul(g, y),
    "exp2": lambda p, g, x, y: p.mul(p.mul(g, y), math.log(2)),
    "expm1": lambda p, g, x, y: p.mul(g, p.add(y, 1)),
    "log": lambda p, g, x, y: p.div(g, x),
    "log2": lambda p, g, x, y: p.div(g, p.mul(x, math.log(2))),
    "log10": lambda p, g, x, y: p.div(g, p.mul(x, math.log(10))),
    "log1p": lambda p, g, x, y: p.div(g, p.add(x, 1)),
    "sqrt": lambda p, g, x, y: p.div(g, p.mul(y, 2)),
    "rsqrt": lambda p, g, x, y: p.mul(p.mul(g, -0.5), p.call("aten.pow.Tensor_Scalar", y, 3)),
    "reciprocal": lambda p, g, x, y: p.mul(p.neg(g), p.mul(y, y)),
    "sin": lambda p, g, x, y: p.mul(g, _cos(p, x)),
    "cos": lambda p, g, x, y: p.mul(g, p.neg(_sin(p, x))),
    "tan": lambda p, g, x, y: p.mul(g, _square_plus(p, y, 1, 1)),
    "asin": lambda p, g, x, y: p.mul(g, _rsqrt(p, _square_plus(p, x, -1, 1))),
    "acos": lambda p, g, x, y: p.mul(g, p.neg(_rsqrt(p, _square_plus(p, x, -1, 1)))),
    "atan": lambda p, g, x, y: p.div(g, _square_plus(p, x, 1, 1)),
    "sinh": lambda p, g, x, y: p.mul(g, _cosh(p, x)),
    "cosh": lambda p, g, x, y: p.mul(g, _sinh(p, x)),
    "asinh": lambda p, g, x, y: p.mul(g, _rsqrt(p, _square_plus(p, x, 1, 1))),
    "acosh": lambda p, g, x, y: p.mul(g, _rsqrt(p, _square_plus(p, x, 1, -1))),
    "atanh": lambda p, g, x, y: p.div(g, _square_plus(p, x, -1, 1)),
    "tanh": lambda p, g, x, y: p.call("aten.tanh_backward.default", g, y),
    "sigmoid": lambda p, g, x, y: p.call("aten.sigmoid_backward.default", g, y),
    "erf": lambda p, g, x, y: p.mul(p.mul(g, 2 / math.sqrt(math.pi)), _exp(p, p.neg(p.mul(x, x)))),
    "erfc": lambda p, g, x, y: p.mul(p.mul(g, -2 / math.sqrt(math.pi)), _exp(p, p.neg(p.mul(x, x)))),
    "lgamma": lambda p, g, x, y: p.mul(g, p.call("aten.digamma.default", x)),
    "deg2rad": lambda p, g, x, y: p.mul(g, math.pi / 180),
    "rad2deg": lambda p, g, x, y: p.mul(g, 180 / math.pi),
    "frac": lambda p, g, x, y: g,
    "alias": lambda p, g, x, y: g,
    "relu": lambda p, g, x, y: p.call("aten.threshold_backward.default", g, y, 0),
    "selu": lambda p, g, x, y: p.call("aten.elu_backward.default", g, 1.6732632423543772848170429916717,
                                      1.0507009873554804934193349852946, 1, False, x),
    "relu6": lambda p, g, x, y: p.call("aten.hardtanh_backward.default", g, x, 0, 6),
    # d/dx log(sigmoid(x)) = 1 - sigmoid(x) = sigmoid(-x)
    "log_sigmoid": lambda p, g, x, y: p.mul(g, p.call("aten.sigmoid.default", p.neg(x))),
}
for _alias, _name in {"negative": "neg", "absolute": "abs", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
                      "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh"}.items():
    UNARY[_alias] = UNARY[_name]


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


@rule("aten.nan_to_num.default")
def _nan_to_num(p: Pullback, g: Node, x: Node, *rest: Any) -> Grads:
    return (p.mul(g, p.call("aten.isfinite.default", x)),)


# -- activations with parameters ------------------------------------------------------------------------------------


by_kernel("gelu", "glu", "hardsigmoid", "hardswish", "softplus", "threshold", "hardtanh", "softshrink", "hardshrink")
# for gradients with a history torch writes these out: autograd knows no derivative of the backward kernels
by_kernel("silu", "mish", once=True)


@rule("aten.leaky_relu.default")
def _leaky_relu(p: Pullback, g: Node, x: Node, slope: Any = 0.01) -> Grads:
    return (p.call("aten.leaky_relu_backward.default", g, x, slope, False),)


@rule("aten.elu.default")
def _elu(p: Pullback, g: Node, x: Node, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Grads:
    return (p.call("aten.elu_backward.default", g, alpha, scale, input_scale, False, x),)


@rule("aten.celu.default")
def _celu(p: Pullback, g: Node, x: Node, alpha: Any = 1.0) -> Grads:
    if not isinstance(alpha, (int, float)) or alpha == 0:  # torch raises
        raise NotCovered("an alpha of 0, or one that may be")
    return (p.call("aten.elu_backward.default", g, alpha, 1, 1.0 / alpha, False, x),)


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


@rule("aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.divide.Tensor_mode", "aten.divide.Scalar_mode")
def _div_mode(p: Pullback, g: Node, x: Any, y: Any, *, rounding_mode: str | None = None) -> Grads:
    if rounding_mode is None:
        return _div(p, g, x, y)
    zeros = p.zeros_like(g)
    return zeros, zeros


@rule(*_both("remainder"))
def _remainder(p: Pullback, g: Node, x: Any, y: Any) -> Grads:
    quotient = p.call("aten.div.Tensor_mode", x, y, rounding_mode="floor") if p.needs(y) else None
    return g, p.mul(p.neg(g), quotient) if quotient is not None else None


@rule(*_both("fmod"))
def _fmod(p: Pullback, g: Node, x: Any, y: Any) -> Grads:
    quotient = p.call("aten.div.Tensor_mode", x, y, rounding_mode="trunc") if p.needs(y) else None
    return g, p.mul(p.neg(g), quotient) if quotient is not None else None


@rule("aten.pow.Tensor_Scalar")
def _pow_scalar(p: Pullback, g: Node, x: Node, exponent: Any) -> Grads:
    if not isinstance(exponent, (int, float)):
        raise NotCovered("an exponent known only at run time")
    if exponent == 0:
        return (p.zeros_like(g, x.tensor),)
    if exponent == 2:
        return (p.mul(g, p.mul(x, 2)),)
    return (p.mul(g, p.mul(p.call("aten.pow.Tensor_Scalar", x, exponent - 1), exponent)),)


@rule("aten.pow.Tensor_Tensor")
def _pow(p: Pullback, g: Node, x: Node, y: Node) -> Grads:
    first = second = None
    if p.needs(x):
        slope = p.mul(g, p.mul(y, p.call("aten.pow.Tensor_Tensor", x, p.call("aten.sub.Scalar", y, 1))))
        first = p.where(p.call("aten.eq.Scalar", y, 0), 0.0, slope)
    if p.needs(y):
        base = p.call("aten.logical_and.default", p.call("aten.eq.Scalar", x, 0), p.call("aten.ge.Scalar", y, 0))
        second = p.mul(g, p.where(base, 0.0, p.mul(p.node, p.call("aten.log.default", x))))
    return first, second


@rule("aten.pow.Scalar")
def _pow_of_scalar(p: Pullback, g: Node, x: Any, y: Node) -> Grads:
    if not isinstance(x, (int, float)) or x < 0:
        raise NotCovered("the base of a power")
    if x == 0:
        return None, p.where(p.call("aten.ge.Scalar", y, 0), 0.0, p.mul(g, p.mul(p.node, -math.inf)))
    return None, p.mul(g, p.mul(p.node, math.log(x)))


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


def _skipping_nan(better: str) -> Callable[..., Grads]:
    """fmax, fmin: the first operand wins where both are equal, or where the other one is NaN."""

    def pull(p: Pullback, g: Node, x: Node, y: Node) -> Grads:
        wins = p.call(f"aten.{better}.Tensor", x, y)
        first = p.call("aten.logical_or.default", wins, p.call("aten.isnan.default", y))
        return p.where(first, g, 0.0), p.where(first, 0.0, g)

    return pull


rule("aten.fmax.default")(_skipping_nan("ge"))
rule("aten.fmin.default")(_skipping_nan("le"))


@rule("aten.atan2.default", "aten.arctan2.default")
def _atan2(p: Pullback, g: Node, x: Node, y: Node) -> Grads:
    square = p.add(p.mul(x, x), p.mul(y, y))
    share = p.call("aten.reciprocal.default", square)
    share = p.call("aten.masked_fill.Scalar", share, p.call("aten.eq.Scalar", square, 0), 0)  # at (0, 0), as torch does
    scaled = p.mul(g, share)
    return p.mul(scaled, y) if p.needs(x) else None, p.mul(scaled, p.neg(x)) if p.needs(y) else None


# -- selection, clamps, interpolation ---------------------------------------------------------------------------------


@rule("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther")
def _where(p: Pullback, g: Node, condition: Node, x: Any, y: Any) -> Grads:
    return None, p.where(condition, g, 0.0) if p.needs(x) else None, p.where(condition, 0.0, g) if p.needs(y) else None


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(p: Pullback, g: Node, x: Node, mask: Node, value: Any) -> Grads:
    return (p.call("aten.masked_fill.Scalar", g, mask, 0) if p.needs(x) else None, None,
            p.where(mask, g, 0.0) if p.needs(value) else None)


@rule("aten.fill.Tensor")
def _fill(p: Pullback, g: Node, x: Node, value: Node) -> Grads:
    return p.zeros_like(g) if p.needs(x) else None, g


@rule("aten.clamp.default", "aten.clip.default", "aten.clamp_min.default")
def _clamp(p: Pullback, g: Node, x: Node, low: Any = None, high: Any = None) -> Grads:
    inside = None
    for name, bound in (("ge", low), ("le", high)):
        if bound is not None:
            within = p.call(f"aten.{name}.Scalar", x, bound)
            inside = within if inside is None else p.call("aten.logical_and.default", inside, within)
    return (g if inside is None else p.where(inside, g, 0.0),)


@rule("aten.clamp_min.Tensor", "aten.clamp_max.Tensor")
def _clamp_by(p: Pullback, g: Node, x: Node, bound: Node) -> Grads:
    """Where both are the same the gradient is that of `x`."""
    within, beyond = ("ge", "lt") if p.node.op.name == "aten.clamp_min.Tensor" else ("le", "gt")
    return (p.where(p.call(f"aten.{within}.Tensor", x, bound), g, 0.0) if p.needs(x) else None,
            p.where(p.call(f"aten.{beyond}.Tensor", x, bound), g, 0.0) if p.needs(bound) else None)


@rule("aten.clamp_max.default")
def _clamp_max(p: Pullback, g: Node, x: Node, high: Any) -> Grads:
    return _clamp(p, g, x, None, high)


@rule("aten.lerp.Scalar", "aten.lerp.Tensor")
def _lerp(p: Pullback, g: Node, x: Node, end: Node, weight: Any) -> Grads:
    rest = p.call("aten.rsub.Scalar", weight, 1) if isinstance(weight, Node) else 1 - weight
    return (p.mul(g, rest) if p.needs(x) else None, p.mul(g, weight) if p.needs(end) else None,
            p.mul(g, p.sub(end, x)) if p.needs(weight) else None)


@rule("aten.addcmul.default")
def _addcmul(p: Pullback, g: Node, x: Node, a: Node, b: Node, *, value: Any = 1) -> Grads:
    scaled = _scale(p, g, value)
    return g, p.mul(scaled, b) if p.needs(a) else None, p.mul(scaled, a) if p.needs(b) else None


@rule("aten.addcdiv.default")
def _addcdiv(p: Pullback, g: Node, x: Node, a: Node, b: Node, *, value: Any = 1) -> Grads:
    scaled = _scale(p, g, value)
    return (g, p.div(scaled, b) if p.needs(a) else None,
            p.mul(p.neg(scaled), p.div(a, p.mul(b, b))) if p.needs(b) else None)


@rule("ir.in_layout_of")
def _in_layout_of(p: Pullback, g: Node, old: Node, value: Node) -> Grads:
    return None, g


@rule("aten.copy.default")
def _copy(p: Pullback, g: Node, x: Node, source: Node, *rest: Any) -> Grads:
    return p.zeros_like(g) if p.needs(x) else None, g
