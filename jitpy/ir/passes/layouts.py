"""Values inside a graph lie row-major where eager has their last two axes the other way round (GPUs only).

Eager's elementwise operations lay a result out as their operand lies. Behind one `x.transpose(1, 2)` that goes on
through a whole network, and its norms read rows whose elements lie far apart. Nobody sees how values inside a graph
lie, so the kernels that read and write them decide (`_votes`). Products write either order:

    transpose(addmm(bias, view(x), t(weight)), 1, 2)  ->  bmm(weight, transpose(x, 1, 2)) + bias
"""

from __future__ import annotations

import math

from ..alias import AliasGroups, Partition, alias_kind
from ..builder import Builder
from ..graph import Graph, Node
from ..op import NotCovered
from ..ops import infer
from ..spec import TensorSpec, contiguous_stride, prod
from .alignment import FORMS

#: A product is written in the other order where its sizes are multiples of this, and at least that.
_PIECE, _LEAST = 8, 64


def choose_layouts(graph: Graph, where: str = "cuda") -> list[str]:
    """Change a graph on a device of type `where` in place; what it was is left to be removed. One text a change."""
    chooser = _Chooser(graph, where)
    return chooser.turn_regions() + chooser.turn_products()


def _lies_swapped(spec: TensorSpec) -> bool:
    """Whether the last two axes of three lie the other way round."""
    return spec.ndim == 3 and spec.is_static and min(spec.shape) > 1 and spec.swapped().is_contiguous()


def _is_swap(node: Node) -> bool:
    """Whether a view swaps the last two axes."""
    if not node.op.is_view or not isinstance(node.spec, TensorSpec) or node.tensor.ndim < 2:
        return False
    spec, source = node.tensor.swapped(), node.args[0].tensor
    return spec.shape == source.shape and spec.stride == source.stride


class _Chooser:
    def __init__(self, graph: Graph, where: str) -> None:
        self.graph = graph
        self.where = where
        self.users = graph.users()
        self.groups, self.written = AliasGroups(graph), {mutation.value for mutation in graph.mutations}

    # -- elementwise values

    def turn_regions(self) -> list[str]:
        """Lay groups of elementwise values row-major where more of their neighbours lie so than otherwise."""
        found = [node for node in self.graph.nodes if isinstance(node.spec, TensorSpec) and node.op.is_elementwise
                 and node.spec.device.type == self.where and _lies_swapped(node.spec)
                 and "memory_format" not in node.kwargs]
        if not found:
            return []
        part: Partition[Node] = Partition()
        part.parent.update((node, node) for node in found)
        for node in found:
            for source in node.input_nodes():
                if source in part.parent and source.tensor.shape == node.tensor.shape:
                    part.join(node, source)
        regions: dict[Node, list[Node]] = {}
        for node in found:
            regions.setdefault(part.find(node), []).append(node)
        return [f"{region[0].name} and {len(region) - 1} others are row-major" for region in regions.values()
                if not any(self._is_seen(node) for node in region) and self._turn(region)]

    def _is_seen(self, node: Node) -> bool:
        return self.groups.escapes(node) or node in self.written

    def _turn(self, region: list[Node]) -> bool:
        inside = set(region)
        outside = {source for node in region for source in node.input_nodes() if source not in inside
                   and isinstance(source.spec, TensorSpec) and source.tensor.shape == node.tensor.shape}
        votes = sum(0 if self._product(one) else -1 if _lies_swapped(one.tensor) else 1 for one in outside)
        if votes + sum(self._votes(node, inside, 1) for node in region) <= 0:
            return False
        before: dict[Node, TensorSpec] = {}
        try:
            for node in self.graph.nodes:
                if node in inside:
                    before[node] = node.tensor
                    node.spec = node.tensor.with_(stride=contiguous_stride(node.tensor.shape))
                elif node.op.is_view and node.args[0] in before:
                    before[node] = node.tensor
                    node.spec = infer(node.op, self.graph.sizes, node.args, node.kwargs, node.grad_enabled)
            return True
        except (NotCovered, RuntimeError):  # all is as it was
            for node, spec in before.items():
                node.spec = spec
            return False

    def _votes(self, value: Node, inside: set[Node], sign: int) -> float:
        """How many readers of a value would rather read rows, less those that would not. `sign`: -1 where `value` is a
        view of the value in question that has its axes swapped."""
        votes = 0.0
        for user in self.users[value]:
            if user in inside or user.op.kind == "matmul":
                continue
            if user.op.asks_for_layout:
                return -math.inf
            if user.op.is_view and isinstance(user.spec, TensorSpec) and alias_kind(self.graph, user) == "view":
                same = user.tensor.shape == value.tensor.shape and user.tensor.stride == value.tensor.stride
                votes += self._votes(user, inside, sign if same else -sign) if same or _is_swap(user) else sign
            elif user.op.is_elementwise and isinstance(user.spec, TensorSpec):
                votes += -sign if _lies_swapped(user.tensor) else sign
            elif user.op.kind == "reduction" or user.op.decompose is not None:
                votes += sign
            else:  # it may mind the layout
                return -math.inf
        return votes

    # -- products

    def turn_products(self) -> list[str]:
        """Write products in the order in which their swapped views are read."""
        mapping: dict[Node, Node] = {}
        for node in [node for node in self.graph.nodes if node.op.is_view]:
            product = self._product(node)
            if product is not None and not self._is_seen(node) and self._swaps_only(node) \
                    and self._votes(node, set(), 1) > 0:
                mapping[node] = self._turned(node, product)
        self.graph.replace(mapping)
        turned = set(mapping.values())
        for node in self.graph.nodes:
            if node.op.is_view and node.args[0] in turned:
                turned.add(node)
                node.spec = infer(node.op, self.graph.sizes, node.args, node.kwargs, node.grad_enabled)
        return [f"{node.name} is written row-major by its product" for node in mapping]

    def _swaps_only(self, node: Node) -> bool:
        """Whether views of a value swap its axes at most: they can be taken of any layout."""
        return all(_is_swap(user) and self._swaps_only(user) for user in self.users[node] if user.op.is_view)

    def _product(self, node: Node) -> Node | None:
        """The product of which a value is a swapped view, and that nothing else reads."""
        if not _is_swap(node) or not _lies_swapped(node.tensor) or node.tensor.device.type != self.where:
            return None
        shape = node.tensor.shape
        if min(shape[1:]) < _LEAST or shape[2] % _PIECE:
            return None
        while node.op.is_view:
            node = node.args[0]
            if len(self.users[node]) != 1 or node in self.graph.outputs:
                return None
        factors = _factors(Builder(self.graph, into=[]), node)
        return node if factors is not None and factors[0].tensor.shape[:2] == (shape[0], shape[2]) else None

    def _turned(self, node: Node, product: Node) -> Node:
        b = Builder(self.graph, node)
        x, weight, bias = _factors(b, product)  # type: ignore[misc]
        weight = b.call("aten.expand.default", b.call("aten.t.default", weight),
                        [node.tensor.shape[0], *weight.tensor.shape[::-1]])
        made = b.call("aten.bmm.default", weight, b.call("aten.transpose.int", x, 1, 2))
        return made if bias is None else b.call("aten.add.Tensor", made, b.call("aten.unsqueeze.default", bias, 1))


def _factors(b: Builder, product: Node) -> tuple[Node, Node, Node | None] | None:
    """`x`, `weight` and `bias` of `x @ weight + bias`, where `x` has three axes and the product is one of its rows."""
    form = FORMS.get(product.op.name)
    found = None if form is None else form(b, product)
    if found is None or any(value != 1 for value in found[4].values()):
        return None
    _, rows, weight, bias, _ = found
    x = rows.args[0] if rows.op.is_view else rows
    if x.tensor.ndim != 3 or weight.tensor.ndim != 2 or not x.tensor.is_contiguous() \
            or (prod(x.tensor.shape[:2]), x.tensor.shape[2]) != rows.tensor.shape or not rows.tensor.is_contiguous() \
            or bias is not None and bias.tensor.ndim != 1:
        return None
    return x, weight, bias


__all__ = ["choose_layouts"]
