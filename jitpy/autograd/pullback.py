"""The vocabulary of gradient rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..ir.builder import Builder
from ..ir.graph import Graph, Node
from ..ir.sizes import simplify
from ..ir.spec import Dim, TensorSpec


class Pullback(Builder):
    """Builds the gradients of one node's arguments.

    node          the node that is differentiated
    active        the nodes whose gradients are asked for
    create_graph  whether the gradients get a history of their own
    in_parts      whether another pass may bring the node a part of a gradient that eager would bring it at once
    """

    def __init__(self, graph: Graph, into: list[Node], node: Node, active: Collection[Node],
                 create_graph: bool = False, in_parts: bool = True) -> None:
        super().__init__(graph, into=into, loc=node.loc, grad_enabled=create_graph)
        self.node = node
        self.create_graph = create_graph
        self.in_parts = in_parts
        self._active = active

    def needs(self, value: Any) -> bool:
        """Whether the gradient of an argument is asked for."""
        return isinstance(value, Node) and value in self._active and isinstance(value.spec, TensorSpec) \
            and value.spec.requires_grad

    def part(self, index: int) -> Node:
        """Result number `index` of the node, which has several: part of the forward pass, with its history."""
        part = self.getitem(self.node, index)
        part.grad_enabled = self.node.grad_enabled
        return part

    def parts(self, node: Node, mask: Sequence[bool]) -> list[Node | None]:
        """The results of a new node that `mask` asks for."""
        return [self.getitem(node, k) if wanted else None for k, wanted in enumerate(mask)]

    # arithmetic, by short names: most rules are a line of it

    def mul(self, x: Node, y: Any) -> Node:
        return self.call("aten.mul.Tensor", x, y)

    def div(self, x: Node, y: Any) -> Node:
        return self.call("aten.div.Tensor", x, y)

    def add(self, x: Node, y: Any) -> Node:
        return self.call("aten.add.Tensor", x, y)

    def sub(self, x: Node, y: Any) -> Node:
        return self.call("aten.sub.Tensor", x, y)

    def neg(self, x: Node) -> Node:
        return self.call("aten.neg.default", x)

    def where(self, condition: Node, x: Any, y: Any) -> Node:
        """Either of them may be a number."""
        if not isinstance(x, Node):
            return self.call("aten.where.ScalarSelf", condition, x, y)
        return self.call("aten.where.self" if isinstance(y, Node) else "aten.where.ScalarOther", condition, x, y)

    def transpose(self, x: Node) -> Node:
        """The last two axes swapped."""
        return self.call("aten.transpose.int", x, -2, -1)

    def zeros_like(self, grad: Node, spec: TensorSpec | None = None) -> Node:
        """A gradient that is zero whatever `grad` is, and undefined where that is."""
        spec = spec or grad.tensor
        return self.call("aten.new_full.default", grad, list(spec.shape), 0, dtype=spec.dtype, device=spec.device)

    def zeros(self, spec: TensorSpec) -> Node:
        """A row-major tensor of zeros of the spec's shape, dtype and device."""
        return self.call("aten.full.default", list(spec.shape), 0, dtype=spec.dtype, device=spec.device)

    # shapes

    def reshape(self, x: Node, shape: Sequence[Dim]) -> Node:
        return x if same_shape(x.tensor.shape, shape) else self.call("aten.reshape.default", x, list(shape))

    def sum_over(self, x: Node, axes: Sequence[int], keepdim: bool = False) -> Node:
        """The sum over some axes; none means none."""
        return self.call("aten.sum.dim_IntList", x, list(axes), keepdim) if axes else x

    def expand(self, x: Node, shape: Sequence[Dim]) -> Node:
        return x if same_shape(x.tensor.shape, shape) else self.call("aten.expand.default", x, list(shape))

    def cast(self, x: Node, dtype: Any) -> Node:
        if x.tensor.dtype.is_complex and not dtype.is_complex:
            x = self.call("aten.select.int", self.call("aten.view_as_real.default", x), -1, 0)
        return x if x.tensor.dtype is dtype else self.call("aten.to.dtype", x, dtype)

    def like(self, grad: Node, spec: TensorSpec) -> Node:
        """The gradient of a value that was broadcast and promoted: summed to its shape, in its dtype."""
        shape, own = grad.tensor.shape, spec.shape
        if not same_shape(shape, own):
            lead = len(shape) - len(own)
            broadcast = (lead + i for i, size in enumerate(own) if is_one(size) and not is_one(shape[lead + i]))
            grad = self.sum_over(grad, [*range(lead), *broadcast], keepdim=True)
            grad = self.reshape(grad, own)
        return self.cast(grad, spec.dtype)

    def restored(self, x: Node, axes: Sequence[int], keepdim: bool) -> Node:
        """A reduction's result with the axes that it reduced as axes of size 1."""
        if keepdim:
            return x
        for axis in sorted(axes):
            x = self.call("aten.unsqueeze.default", x, axis)
        return x


def is_one(size: Dim) -> bool:
    return type(size) is int and size == 1


def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes are visibly the same."""
    return len(a) == len(b) and all(x is y or x == y or simplify(x - y) == 0 for x, y in zip(a, b, strict=True))


def axes_of(dims: Any, ndim: int) -> list[int]:
    """The axes that a reduction names: all of them for None or an empty list."""
    if isinstance(dims, int):
        dims = (dims,)
    if dims is None or not len(dims):
        return list(range(ndim))
    return sorted({d % ndim if ndim else 0 for d in dims}) if ndim else []
