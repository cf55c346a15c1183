"""Gradients of views, and of ops that put tensors together."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Node
from ...ir.op import NotCovered
from ...ir.ops.layout import normalize_dim
from ...ir.ops.strided import reordered_axes, strided_places
from ...ir.spec import Dim
from ..pullback import Pullback
from .registry import COMPLEX, RULES, rule

Grads = tuple[Any, ...]


@rule("aten.view.default", "aten._unsafe_view.default", "aten.view_as.default", "aten.reshape.default",
      "aten.reshape_as.default", "aten.flatten.using_ints", "aten.ravel.default", "aten.unflatten.int",
      "aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def _reshaped(p: Pullback, g: Node, x: Node, *rest: Any, **options: Any) -> Grads:
    return (p.reshape(g, x.tensor.shape),)


@rule("aten.permute.default", "aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default", "aten.t.default",
      "aten.numpy_T.default", "aten.mT.default", "aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int",
      "aten.moveaxis.intlist")
def _permuted(p: Pullback, g: Node, x: Node, *rest: Any) -> Grads:
    assert p.node.op.order is not None
    order = p.node.op.order(x.tensor.ndim, *rest)
    back = [0] * len(order)
    for position, axis in enumerate(order):
        back[axis] = position
    return (p.call("aten.permute.default", g, back) if len(back) > 1 else g,)


@rule("aten.as_strided.default")
def _as_strided(p: Pullback, g: Node, x: Node, shape: Any, stride: Any, offset: Any = None) -> Grads:
    axes = reordered_axes(x.tensor, tuple(shape), tuple(stride), offset)
    if axes is None:
        places = strided_places(x.tensor, tuple(shape), tuple(stride), offset)
        if places is None:
            raise NotCovered("as_strided whose places are not known")
        zeros = p.call("aten.new_zeros.default", g, [x.tensor.numel])
        added = p.call("aten.index_add.default", zeros, 0, p.constant(places.to(g.tensor.device)), p.reshape(g, (-1,)))
        return (p.reshape(added, x.tensor.shape),)
    long = [axis for axis in axes if axis is not None]
    g = p.reshape(g, tuple(x.tensor.shape[axis] for axis in long))
    if long != sorted(long):
        g = p.call("aten.permute.default", g, [long.index(axis) for axis in sorted(long)])
    return (p.reshape(g, x.tensor.shape),)


@rule("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default")
def _expanded(p: Pullback, g: Node, x: Node, *rest: Any, **options: Any) -> Grads:
    return (p.like(g, x.tensor),)


@rule("aten.select.int")
def _select(p: Pullback, g: Node, x: Node, dim: int, index: Any) -> Grads:
    return (p.call("aten.select_backward.default", g, list(x.tensor.shape), dim, index),)


@rule("aten.slice.Tensor")
def _slice(p: Pullback, g: Node, x: Node, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Grads:
    shape = x.tensor.shape
    return (p.call("aten.slice_backward.default", g, list(shape), dim, 0 if start is None else start,
                   shape[dim] if end is None else end, step),)


def _parts(p: Pullback, grads: tuple[Node | None, ...]) -> list[Node]:
    """The gradients of all parts, zeros where one has none."""
    specs: Any = p.node.spec
    return [p.zeros(spec) if g is None else g for g, spec in zip(grads, specs, strict=True)]


def _split(dim_at: int) -> Any:
    """The rule of an op that cuts a tensor along an axis, its argument number `dim_at`."""

    def pull(p: Pullback, *values: Any) -> Grads:
        count = len(p.node.spec)  # type: ignore[arg-type]
        grads, args = values[:count], values[count:]
        dim = args[dim_at] if len(args) > dim_at else 0
        return (p.call("aten.cat.default", _parts(p, grads), dim),)

    return pull


rule("split.Tensor", "unsafe_split.Tensor", "split.sizes", "split_with_sizes", "chunk")(_split(2))


@rule("aten.unbind.int")
def _unbind(p: Pullback, *values: Any) -> Grads:
    count = len(p.node.spec)  # type: ignore[arg-type]
    dim = values[count + 1] if len(values) > count + 1 else 0
    return (p.call("aten.stack.default", _parts(p, values[:count]), dim),)


# -- putting together -------------------------------------------------------------------------------------------------


@rule("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def _cat(p: Pullback, g: Node, tensors: list[Node], dim: int = 0) -> Grads:
    axis = normalize_dim(dim, g.tensor.ndim)
    grads: list[Node | None] = []
    start: Dim = 0
    for x in tensors:
        if x.tensor.shape == (0,):  # an empty vector joins with anything
            grads.append(p.zeros_like(g, x.tensor) if p.needs(x) else None)
            continue
        end = start + x.tensor.shape[axis]
        grads.append(p.call("aten.slice.Tensor", g, axis, start, end, 1) if p.needs(x) else None)
        start = end
    return (grads,)


@rule("aten.stack.default")
def _stack(p: Pullback, g: Node, tensors: list[Node], dim: int = 0) -> Grads:
    return ([p.call("aten.select.int", g, dim, k) if p.needs(x) else None for k, x in enumerate(tensors)],)


@rule("aten.flip.default")
def _flip(p: Pullback, g: Node, x: Node, dims: Any) -> Grads:
    return (p.call("aten.flip.default", g, dims),)


@rule("aten.tril.default", "aten.triu.default")
def _triangle(p: Pullback, g: Node, x: Node, diagonal: Any = 0) -> Grads:
    return (p.call(p.node.op.name, g, diagonal),)


@rule("aten.constant_pad_nd.default")
def _pad(p: Pullback, g: Node, x: Node, pad: Any, value: Any = 0) -> Grads:
    return (p.call("aten.constant_pad_nd.default", g, [-n for n in pad], 0),)


@rule("aten.pad.default")
def _pad_by_mode(p: Pullback, g: Node, x: Node, pad: Any, mode: str = "constant", value: Any = None) -> Grads:
    if mode == "constant":
        return _pad(p, g, x, pad)
    if mode == "circular":
        return (_around(p, g, x, pad),)
    kind = {"reflect": "reflection", "replicate": "replication"}.get(mode)
    if kind is None:
        raise NotCovered(f"padding of the kind {mode}")
    return (p.call(f"aten.{kind}_pad{len(pad) // 2}d_backward.default", g, x, list(pad)),)


def _around(p: Pullback, g: Node, x: Node, pad: Any) -> Node:
    """The part that was copied from the other end of an axis is added there."""
    if any(type(n) is not int or n < 0 for n in pad):
        raise NotCovered("negative or symbolic padding")
    count = len(pad) // 2
    for i in reversed(range(count)):
        axis, (before, after) = x.tensor.ndim - 1 - i, pad[2 * i:2 * i + 2]
        size = x.tensor.shape[axis]
        total = p.call("aten.slice.Tensor", g, axis, before, before + size)
        for start, length, where in ((before + size, after, [0, size - after]), (0, before, [size - before, 0])):
            if length:
                part = p.call("aten.slice.Tensor", g, axis, start, start + length)
                total = p.call("aten.add.Tensor", total, p.call("aten.constant_pad_nd.default", part,
                                                                [0, 0] * i + where, 0))
        g = total
    return g


# -- writing into parts -----------------------------------------------------------------------------------------------


def _part_scatter(op: str, part: str) -> None:
    """The rule of an op that puts `source` where the view op `part` takes a part from."""

    def pull(p: Pullback, g: Node, x: Node, source: Node, *where: Any) -> Grads:
        return (p.call(op, g, p.zeros(source.tensor), *where) if p.needs(x) else None,
                p.call(part, g, *where) if p.needs(source) else None)

    rule(op)(pull)


_part_scatter("aten.slice_scatter.default", "aten.slice.Tensor")
_part_scatter("aten.select_scatter.default", "aten.select.int")
_part_scatter("aten.diagonal_scatter.default", "aten.diagonal.default")

# where elements go does not depend on what they are
COMPLEX.update(name for name, own in RULES.items() if own.__module__ == __name__)
