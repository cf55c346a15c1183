"""Gradients of gathers and scatters."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Node
from ...ir.op import NotCovered
from ..pullback import Pullback
from .registry import rule

Grads = tuple[Any, ...]


@rule("aten.embedding.default")
def _embedding(p: Pullback, g: Node, weight: Node, ids: Node, padding: Any = -1, scale_by_freq: bool = False,
               sparse: bool = False) -> Grads:
    if sparse:
        raise NotCovered("a sparse gradient")
    return (p.call("aten.embedding_dense_backward.default", g, ids, weight.tensor.shape[0], padding, scale_by_freq),)


@rule("aten.index.Tensor")
def _index(p: Pullback, g: Node, x: Node, indices: Any) -> Grads:
    return (p.call("aten.index_put.default", p.zeros(x.tensor), list(indices), g, True),)


@rule("aten.index_put.default")
def _index_put(p: Pullback, g: Node, x: Node, indices: Any, values: Node, accumulate: bool = False) -> Grads:
    first = g
    if not accumulate and p.needs(x):
        zero = p.call("aten.full.default", [], 0, dtype=values.tensor.dtype, device=g.tensor.device)
        first = p.call("aten.index_put.default", g, list(indices), zero, False)
    return first, None, p.call("aten.index.Tensor", g, list(indices)) if p.needs(values) else None


@rule("aten.index_select.default")
def _index_select(p: Pullback, g: Node, x: Node, dim: int, ids: Node) -> Grads:
    if not x.tensor.ndim:
        raise NotCovered("an axis of a number")
    return (p.call("aten.index_add.default", p.zeros(x.tensor), dim, ids, g),)


@rule("aten.gather.default")
def _gather(p: Pullback, g: Node, x: Node, dim: int, ids: Node, *, sparse_grad: bool = False) -> Grads:
    if sparse_grad:
        raise NotCovered("a sparse gradient")
    return (p.call("aten.scatter_add.default", p.zeros(x.tensor), dim, ids, g),)


@rule("aten.scatter_add.default")
def _scatter_add(p: Pullback, g: Node, x: Node, dim: int, ids: Node, source: Node) -> Grads:
    return g, None, None, p.call("aten.gather.default", g, dim, ids) if p.needs(source) else None
