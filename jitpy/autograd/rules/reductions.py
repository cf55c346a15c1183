"""Gradients of reductions, scans and softmaxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.algebra import sympy
from ...ir.graph import Node
from ...ir.op import NotCovered
from ...ir.ops.layout import normalize_dim
from ...ir.spec import prod
from ..pullback import Pullback, axes_of
from .registry import rule

Grads = tuple[Node | None, ...]


def _spread(p: Pullback, g: Node, x: Node, axes: Sequence[int], keepdim: bool) -> Node:
    """The gradient of a sum: the same for each element summed."""
    return p.expand(p.restored(g, axes, keepdim), x.tensor.shape)


@rule("aten.sum.default", "aten.nansum.default")
def _sum(p: Pullback, g: Node, x: Node, *rest: Any, **options: Any) -> Grads:
    if p.node.op.name == "aten.nansum.default":
        return _nansum(p, g, x, *rest)
    return (p.expand(p.cast(g, x.tensor.dtype), x.tensor.shape),)


def _nansum(p: Pullback, g: Node, x: Node, dims: Any = None, keepdim: bool = False) -> Grads:
    spread = _spread(p, p.cast(g, x.tensor.dtype), x, axes_of(dims, x.tensor.ndim), keepdim)
    return (p.mul(spread, p.call("aten.eq.Tensor", x, x)),)  # a product, as in eager: of a mean of nothing it is NaN


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


@rule("aten.amax.default", "aten.amin.default")
def _extreme(p: Pullback, g: Node, x: Node, dims: Any = (), keepdim: bool = False) -> Grads:
    """Equal extremes share the gradient."""
    axes = axes_of(dims, x.tensor.ndim)
    mask = p.call("aten.eq.Tensor", x, p.restored(p.node, axes, keepdim))
    count = p.call("aten.sum.dim_IntList", mask, axes, True) if axes else p.call("aten.sum.default", mask)
    return (p.mul(p.div(p.restored(g, axes, keepdim), count), mask),)


@rule("aten.max.default", "aten.min.default")
def _extreme_of_all(p: Pullback, g: Node, x: Node) -> Grads:
    """Equal extremes share the gradient; so do elements that are no numbers."""
    mask = p.call("aten.logical_or.default", p.call("aten.eq.Tensor", x, p.node), p.call("aten.ne.Tensor", x, x))
    return (p.where(mask, p.div(g, p.call("aten.sum.default", mask)), 0.0),)


@rule("aten.max.dim", "aten.min.dim", "aten.median.dim", "aten.mode.default")
def _chosen(p: Pullback, g: Node | None, indices_grad: Any, x: Node, dim: int = -1, keepdim: bool = False) -> Grads:
    return (_scattered(p, g, x, dim, p.part(1), keepdim),)


@rule("aten.topk.default")
def _topk(p: Pullback, g: Node | None, indices_grad: Any, x: Node, k: Any, dim: int = -1, *rest: Any) -> Grads:
    return (_scattered(p, g, x, dim, p.part(1), True),)


@rule("aten.sort.default")
def _sort(p: Pullback, g: Node | None, indices_grad: Any, x: Node, dim: int = -1, descending: bool = False) -> Grads:
    return (_scattered(p, g, x, dim, p.part(1), True),)


def _scattered(p: Pullback, g: Node | None, x: Node, dim: int, indices: Node, keepdim: bool) -> Node:
    if g is None or not x.tensor.ndim:
        raise NotCovered("a selection without an axis")
    if not keepdim:
        g, indices = (p.call("aten.unsqueeze.default", v, dim) for v in (g, indices))
    return p.call("aten.scatter.src", p.zeros(x.tensor), dim, indices, g)


@rule("aten.var.correction", "aten.var.dim", "aten.var.default")
def _var(p: Pullback, g: Node, x: Node, dims: Any = None, *rest: Any, **options: Any) -> Grads:
    axes, correction, keepdim = _deviation_options(p.node.op.name, x, dims, rest, options)
    return (_var_slope(p, g, x, axes, correction, keepdim),)


@rule("aten.std.correction", "aten.std.dim", "aten.std.default")
def _std(p: Pullback, g: Node, x: Node, dims: Any = None, *rest: Any, **options: Any) -> Grads:
    axes, correction, keepdim = _deviation_options(p.node.op.name, x, dims, rest, options)
    slope = p.where(p.call("aten.eq.Scalar", p.node, 0), 0.0, p.div(g, p.mul(p.node, 2)))
    return (_var_slope(p, slope, x, axes, correction, keepdim),)


@rule("aten.var_mean.correction")
def _var_mean(p: Pullback, g: Node | None, mean_grad: Node | None, x: Node, dims: Any = None, *rest: Any,
              **options: Any) -> Grads:
    axes, correction, keepdim = _deviation_options(p.node.op.name, x, dims, rest, options)
    total = _var_slope(p, g, x, axes, correction, keepdim) if g is not None else None
    if mean_grad is not None:
        count = prod(tuple(x.tensor.shape[a] for a in axes))
        slope = p.div(_spread(p, mean_grad, x, axes, keepdim), count)
        total = slope if total is None else p.add(total, slope)
    return (total,)


def _deviation_options(name: str, x: Node, dims: Any, rest: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """(axes, correction, keepdim)"""
    kind = name.rsplit(".", 1)[1]
    if kind == "default":
        return axes_of(None, x.tensor.ndim), 1 if dims in (None, True) else 0, False
    if kind == "dim":
        unbiased, keepdim = (*rest, True, False)[:2] if len(rest) < 2 else rest
        if len(rest) == 1:
            unbiased, keepdim = rest[0], False
        return axes_of(dims, x.tensor.ndim), 1 if unbiased else 0, keepdim
    correction = options.get("correction")
    return axes_of(dims, x.tensor.ndim), 1 if correction is None else correction, options.get("keepdim", False)


def _var_slope(p: Pullback, g: Node, x: Node, axes: Sequence[int], correction: Any, keepdim: bool) -> Node:
    count = prod(tuple(x.tensor.shape[a] for a in axes)) - correction
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


@rule("aten.cumsum.default")
def _cumsum(p: Pullback, g: Node, x: Node, dim: int, **options: Any) -> Grads:
    g = p.cast(g, x.tensor.dtype)
    if not x.tensor.ndim:
        return (g,)
    sums = p.call("aten.cumsum.default", p.call("aten.flip.default", g, [dim]), dim)
    return (p.call("aten.flip.default", sums, [dim]),)


@rule("aten.logcumsumexp.default", once=True)
def _logcumsumexp(p: Pullback, g: Node, x: Node, dim: int) -> Grads:
    """Positive and negative gradients apart, as logarithms."""
    if not x.tensor.ndim:
        return (g,)

    def of_sign(size: Node, there: str) -> Node:
        log = p.where(p.call(f"aten.{there}.Scalar", g, 0), p.call("aten.log.default", size), -float("inf"))
        turned = p.call("aten.flip.default", p.sub(log, p.node), [dim])
        sums = p.call("aten.flip.default", p.call("aten.logcumsumexp.default", turned, dim), [dim])
        return p.call("aten.exp.default", p.add(sums, x))

    return (p.sub(of_sign(g, "gt"), of_sign(p.neg(g), "lt")),)


@rule("aten.prod.dim_int", once=True)
def _prod(p: Pullback, g: Node, x: Node, dim: int, keepdim: bool = False, **options: Any) -> Grads:
    """Products of all the others, from both ends, so that zeros need no care."""
    if not x.tensor.ndim or options.get("dtype") is not None:
        raise NotCovered("a product of one number, or in another dtype")
    size = x.tensor.shape[dim]
    if p.env.known(sympy.Ge(size, 1)) is not True:
        raise NotCovered("a product of nothing")
    one = p.call("aten.narrow.default", p.call("aten.ones_like.default", x), dim, 0, 1)

    def before(values: Node) -> Node:
        others = p.call("aten.cat.default", [one, p.call("aten.narrow.default", values, dim, 0, size - 1)], dim)
        return p.call("aten.cumprod.default", others, dim)

    def turned(values: Node) -> Node:
        return p.call("aten.flip.default", values, [dim])

    others = p.mul(before(x), turned(before(turned(x))))
    return (p.mul(p.restored(g, [normalize_dim(dim, x.tensor.ndim)], keepdim), others),)


@rule("aten.norm.ScalarOpt_dim")
def _norm(p: Pullback, g: Node, x: Node, order: Any, dims: Any, keepdim: bool = False) -> Grads:
    return _vector_norm(p, g, x, 2 if order is None else order, dims, keepdim)


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
