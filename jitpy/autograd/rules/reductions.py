"""Gradients of reductions, scans and softmaxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.algebra import sympy
from ...ir.graph import Node
from ...ir.op import NotCovered
from ...ir.spec import prod
from ..pullback import Pullback, axes_of
from .registry import rule

Grads = tuple[Node | None, ...]


def _spread(p: Pullback, g: Node, x: Node, axes: Sequence[int], keepdim: bool) -> Node:
    """The gradient of a sum: the same for each element summed."""
    return p.expand(p.restored(g, axes, keepdim), x.tensor.shape)


@rule("aten.sum.default")
def _sum(p: Pullback, g: Node, x: Node, **options: Any) -> Grads:
    return (p.expand(p.cast(g, x.tensor.dtype), x.tensor.shape),)


@rule("aten.sum.dim_IntList")
def _sum_over(p: Pullback, g: Node, x: Node, dims: Any = None, keepdim: bool = False, **options: Any) -> Grads:
    return (_spread(p, p.cast(g, x.tensor.dtype), x, axes_of(dims, x.tensor.ndim), keepdim),)


@rule("aten.mean.default")
def _mean(p: Pullback, g: Node, x: Node, **options: Any) -> Grads:
    return (p.div(p.expand(p.cast(g, x.tensor.dtype), x.tensor.shape), x.tensor.numel),)


@rule("aten.mean.dim")
def _mean_over(p: Pullback, g: Node, x: Node, dims: Any = None, keepdim: bool = False, **options: Any) -> Grads:
    axes = axes_of(dims, x.tensor.ndim)
    count = prod(tuple(x.tensor.shape[a] for a in axes))
    return (p.div(_spread(p, p.cast(g, x.tensor.dtype), x, axes, keepdim), count),)


@rule("aten.var.correction")
def _var(p: Pullback, g: Node, x: Node, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Grads:
    return (_var_slope(p, g, x, dims, correction, keepdim),)


@rule("aten.std.correction")
def _std(p: Pullback, g: Node, x: Node, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Grads:
    slope = p.where(p.call("aten.eq.Scalar", p.node, 0), 0.0, p.div(g, p.mul(p.node, 2)))
    return (_var_slope(p, slope, x, dims, correction, keepdim),)


def _var_slope(p: Pullback, g: Node, x: Node, dims: Any, correction: Any, keepdim: bool) -> Node:
    axes = axes_of(dims, x.tensor.ndim)
    count = prod(tuple(x.tensor.shape[a] for a in axes)) - (1 if correction is None else correction)
    if p.env.known(sympy.Gt(count, 0)) is not True:
        raise NotCovered("a variance of too few elements, or of a number known only at run time")
    mean = p.call("aten.mean.dim", x, list(axes), True) if axes else x
    slope = p.restored(g, axes, keepdim)
    slope = p.mul(slope, 2.0 / count) if isinstance(count, (int, float)) else p.div(p.mul(slope, 2.0), count)
    return p.mul(slope, p.sub(x, mean))


@rule("aten.logsumexp.default")
def _logsumexp(p: Pullback, g: Node, x: Node, dims: Any, keepdim: bool = False) -> Grads:
    axes = axes_of(dims, x.tensor.ndim)
    y = p.restored(p.node, axes, keepdim)  # of rows that are -inf everywhere the gradient is NaN, as torch's
    return (p.mul(p.restored(g, axes, keepdim), p.call("aten.exp.default", p.sub(x, y))),)


@rule("aten.linalg_vector_norm.default")
def _vector_norm(p: Pullback, g: Node, x: Node, order: Any = 2, dims: Any = None, keepdim: bool = False,
                 **options: Any) -> Grads:
    if order != 2 or options.get("dtype") is not None:
        raise NotCovered("norms other than the Euclidean one")
    axes = axes_of(dims, x.tensor.ndim)
    y = p.restored(p.node, axes, keepdim)
    slope = p.mul(x, p.div(p.restored(g, axes, keepdim), y))
    return (p.call("aten.masked_fill.Scalar", slope, p.call("aten.eq.Scalar", y, 0), 0),)


@rule("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")
def _softmax(p: Pullback, g: Node, x: Node, dim: int, dtype: Any = None) -> Grads:
    return (_softmax_slope(p, "aten._softmax_backward_data.default", g, x, dim),)


@rule("aten.log_softmax.int", "aten._log_softmax.default")
def _log_softmax(p: Pullback, g: Node, x: Node, dim: int, dtype: Any = None) -> Grads:
    return (_softmax_slope(p, "aten._log_softmax_backward_data.default", g, x, dim),)


def _softmax_slope(p: Pullback, name: str, g: Node, x: Node, dim: int) -> Node:
    # eager converts first and takes the softmax of what it has then; the conversion's gradient is a cast
    return p.call(name, g, p.node, dim, p.node.tensor.dtype)
