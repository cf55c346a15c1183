"""Parameters that do not change: what follows from them alone is computed once.

    batch_norm(convolution(x, w, b))   the scale goes into the weights, the rest into the bias; products as well
    linear(x, w), linear(x, v)         one product with the rows of both weights, where their readers take parts
    anything of parameters alone       its value

`freeze` is told the tensors behind some inputs, and says which ones the graph takes in their place. New weights are
computed in float64 and rounded once. Weights of 16 bits keep their norms, unless they were made of float32 ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..alias import AliasGroups
from ..builder import Builder
from ..folding import compute, foldable
from ..graph import CONSTANT, FIXED, GETITEM, Graph, Node
from ..ops import normalize
from ..spec import TensorSpec, prod
from .cleanup import remove_dead_code

#: Elements that a value may have which is not smaller than what it is made of.
_SMALL = 1 << 16
#: Rows up to which products are joined whoever reads them.
_FEW = 64


@dataclass(slots=True)
class Frozen:
    """The result of `freeze`: the tensors of the inputs that were added, in order, and a text for each change."""

    constants: list[torch.Tensor] = field(default_factory=list)
    done: list[str] = field(default_factory=list)


def freeze(graph: Graph, values: dict[Node, torch.Tensor]) -> Frozen:
    """Rewrite `graph` in place for inputs with these values. Inputs that nothing reads any more stay."""
    freezer = _Freezer(graph, dict(values))
    freezer.look()
    freezer.fold_norms()
    remove_dead_code(graph)
    freezer.join_products()
    freezer.replace_values()
    remove_dead_code(graph)
    freezer.drop_unread()
    freezer.mark_inputs()
    return freezer.frozen


class _Freezer:
    def __init__(self, graph: Graph, known: dict[Node, torch.Tensor]) -> None:
        self.graph = graph
        #: values that are the same in all calls
        self.known = known
        self.frozen = Frozen()

    def look(self) -> None:
        """Compute what follows from parameters alone."""
        devices = tuple({value.device.type for value in self.known.values()})
        users = self.graph.users()
        for node in self.graph.nodes:
            if _is_left_to_gpus(node) and any(user.op.convolution is not None for user in users[node]):
                continue
            if node.op is CONSTANT:
                self.known[node] = node.args[0]
            sources = node.input_nodes()
            if not sources or any(source not in self.known for source in sources):
                continue
            most = max(_SMALL, sum(self.known[source].numel() for source in sources))
            if foldable(node, self.known, most, devices):
                value = compute(node, self.known)
                if value is not None:
                    self.known[node] = value

    def add(self, value: torch.Tensor, name: str) -> Node:
        """An input with this value."""
        self.frozen.constants.append(value)
        spec = TensorSpec(value.dtype, tuple(value.shape), tuple(value.stride()), value.device,
                          offset=value.storage_offset())
        node = self.graph.add_input(spec, name)
        self.known[node] = value
        return node

    def replace_values(self) -> None:
        """Take values that others read from inputs; views are made anew. The caller's results are computed anew."""
        groups = AliasGroups(self.graph)
        mapping = {}
        for node in self.graph.nodes:
            if node in self.known and node.op is not CONSTANT and not node.op.is_view and not groups.escapes(node):
                mapping[node] = self.add(self.known[node], node.name)
                self.frozen.done.append(f"{node.name} is a constant")
        self.graph.replace(mapping)

    def drop_unread(self) -> None:
        """Drop the inputs of values that only others of them are made of."""
        read = {*self.graph.outputs, *(source for node in self.graph.nodes for source in node.input_nodes())}
        added = self.graph.inputs[len(self.graph.inputs) - len(self.frozen.constants):]
        del self.graph.inputs[len(self.graph.inputs) - len(added):]
        self.graph.inputs += [node for node in added if node in read]
        self.frozen.constants = [value for node, value in zip(added, self.frozen.constants, strict=True)
                                 if node in read]

    def mark_inputs(self) -> None:
        """Tell later passes which inputs are known: they pack the weights of convolutions."""
        for node in self.graph.inputs:
            node.meta[FIXED] = node in self.known
        self.frozen.done += [f"{node.name} has fixed weights" for node in self.graph.nodes
                             if node.op.convolution is not None and node.args[1] in self.known
                             and node.args[1].tensor.device.type == "cpu"]

    # -- batch norms

    def fold_norms(self) -> None:
        """Fold each batch norm by known statistics into the product or convolution that it reads."""
        users = self.graph.users()
        results = {*self.graph.outputs, *(mutation.value for mutation in self.graph.mutations)}
        for norm in [node for node in self.graph.nodes if node.op.is_batch_norm]:
            args, kwargs = normalize(norm.op, norm.args, norm.kwargs)
            source = args[0]
            if kwargs or args[5] is not False or users[source] != [norm] or source in results:
                continue
            made = self._folded(source, norm, args)
            if made is None:
                continue
            readers = {norm: made} if isinstance(norm.spec, TensorSpec) else {
                user: made for user in users[norm] if user.op is GETITEM and user.args[1] == 0}
            users[made] = [user for part in readers for user in users[part]]
            self.graph.replace(readers)
            self.frozen.done.append(f"{norm.name} is part of {source.name}")

    def _folded(self, source: Node, norm: Node, args: Sequence[Any]) -> Node | None:
        """The call with a norm in its weights; None where it cannot be."""
        result = norm.spec[0] if isinstance(norm.spec, tuple) else norm.spec
        assert isinstance(result, TensorSpec)
        call = _Call.of(source)
        statistics = [None if one is None else self.known.get(one) for one in args[1:5]]
        if call is None or any(value is None and one is not None
                               for value, one in zip(statistics, args[1:5], strict=True)):
            return None
        weight = self._before_rounding(call.weight)
        bias = None if call.bias is None else self._before_rounding(call.bias)
        if weight is None or call.bias is not None and bias is None or source.tensor.with_(requires_grad=False) != \
                result.with_(requires_grad=False) or call.axis % result.ndim != 1:
            return None
        gain, shift, mean, variance = (None if one is None else one.detach().double() for one in statistics)
        assert mean is not None and variance is not None
        scale = (variance + args[7]).rsqrt()
        scale = scale if gain is None else scale * gain
        moved = -mean if bias is None else bias.detach().double() - mean
        moved = moved * scale if shift is None else moved * scale + shift
        dtype = call.weight.tensor.dtype
        folded = call.scaled(weight.detach().double(), scale).to(dtype)
        return call.again(self.graph, norm, self.add(folded, call.weight.name),
                          self.add(moved.to(dtype), "bias"), result)

    def _before_rounding(self, node: Node) -> torch.Tensor | None:
        """The value of a weight or bias as exact as it is known; None for one that is known in 16 bits only."""
        if _is_left_to_gpus(node):
            return None
        while node.op.is_copy and node.tensor.dtype.itemsize < 4 and node.args[0] in self.known:
            if node.tensor.dtype is torch.float16:
                return None  # what is scaled may leave its range
            node = node.args[0]
        value = self.known.get(node)
        return None if value is None or value.dtype not in (torch.float32, torch.float64) else value

    # -- products of one operand

    def join_products(self) -> None:
        """Make one product of those that multiply a value by known weights."""
        groups: dict[Any, list[Node]] = {}
        users = self.graph.users()
        escaping = AliasGroups(self.graph)
        for node in self.graph.nodes:
            if node.op.name == "aten.linear.default" and not escaping.escapes(node):
                x, weight, bias = (*node.args, None)[:3]
                if not node.kwargs and weight in self.known and weight.tensor.ndim == 2 \
                        and (bias is None or bias in self.known):
                    groups.setdefault((x, bias is None), []).append(node)
        for (x, _), products in groups.items():
            rows = prod(x.tensor.shape[:-1])
            few = type(rows) is int and rows <= _FEW
            fit = [node for node in products if few or all(user.op.scalar is not None for user in users[node])]
            if len(fit) > 1:
                self._join(x, fit, users)

    def _join(self, x: Node, products: list[Node], users: dict[Node, list[Node]]) -> None:
        weights = [self.known[node.args[1]].detach() for node in products]
        biases = [self.known[node.args[2]].detach() for node in products if len(node.args) > 2 and node.args[2]]
        weight = self.add(torch.cat(weights), "weights")
        bias = self.add(torch.cat(biases), "biases") if biases else None
        b = Builder(self.graph, products[0])
        whole = b.call("aten.linear.default", x, weight, bias)
        mapping, start = {}, 0
        for node, own in zip(products, weights, strict=True):
            part = b.call("aten.slice.Tensor", whole, -1, start, start + len(own))
            if not all(user.op.scalar is not None for user in users[node]):
                part = b.call("aten.clone.default", part, memory_format=torch.contiguous_format)
            mapping[node] = part
            start += len(own)
        self.graph.replace(mapping)
        self.frozen.done.append(f"{', '.join(node.name for node in products)} are one product")


def _is_left_to_gpus(node: Node) -> bool:
    """Whether a weight is rounded to 16 bits on a GPU: `batch_norms.py` makes one call of a convolution with such
    weights, the norm and the activation behind it, which saves more than the rounding costs."""
    spec = node.spec
    return node.op.is_copy and isinstance(spec, TensorSpec) and spec.dtype.itemsize < 4 and spec.device.type != "cpu"


@dataclass(slots=True)
class _Call:
    """A convolution or product: its weights and bias, and the axis of the result that the rows of weights make."""

    node: Node
    args: list[Any]
    weight: Node
    bias: Node | None
    axis: int
    transposed: bool
    groups: int

    @staticmethod
    def of(node: Node) -> _Call | None:
        args, kwargs = normalize(node.op, node.args, node.kwargs)
        if kwargs or not isinstance(node.spec, TensorSpec):
            return None
        axis, groups, transposed = -1, 1, False
        if node.op.convolution is not None:
            groups, transposed = node.op.convolution.reads(args)
            axis = 1
        elif node.op.name != "aten.linear.default":
            return None
        if axis == 1 and args[1].tensor.ndim != node.spec.ndim:
            return None  # one image: its first axis has the channels
        bias = args[2] if len(args) > 2 else None
        return _Call(node, list(args), args[1], bias, axis, transposed, groups)

    def scaled(self, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The weights of a result that is multiplied by a number a channel."""
        if not self.transposed:
            return weight * scale.view(-1, *[1] * (weight.dim() - 1))
        rows, columns, *rest = weight.shape
        parts = weight.reshape(self.groups, rows // self.groups, columns, *rest)
        parts = parts * scale.view(self.groups, 1, columns, *[1] * len(rest))
        made = torch.empty_like(weight)
        return made.copy_(parts.reshape(weight.shape))

    def again(self, graph: Graph, before: Node, weight: Node, bias: Node, spec: TensorSpec) -> Node:
        """The same call with other weights."""
        args = [self.args[0], weight, bias, *self.args[3:]]
        return Builder(graph, before).call(self.node.op.name, *args, spec=spec)


def frozen_inputs(graph: Graph) -> Iterator[int]:
    """The inputs that modules hold as parameters or buffers, and that the graph does not write to."""
    written = {mutation.input for mutation in graph.mutations}
    for k, node in enumerate(graph.inputs):
        spec = node.spec
        if k not in written and isinstance(spec, TensorSpec) and spec.is_static and spec.offset == 0 \
                and (node.meta.get("is_parameter") or _is_buffer(node.meta.get("source"))):
            yield k


def _is_buffer(source: Any) -> bool:
    """Whether a source is an item of a module's dictionary of buffers."""
    return getattr(getattr(source, "parent", None), "arg", None) == "_buffers"


__all__ = ["Frozen", "freeze", "frozen_inputs"]
