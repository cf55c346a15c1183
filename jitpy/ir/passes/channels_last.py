"""Convolutions in channels-last: which of them run so, and the strides of what lies between them.

Libraries' convolutions work on channels-last memory, or convert to it and back around each call. Here whole *regions*
of a graph change over: values of four axes that ops which keep the order of axes of their operands (`Op.axes`)
connect with each other and with convolutions. Values that enter a region are converted once, and values that leave it
are converted back, so that everything else, and the caller, sees the strides it saw before. A region changes over if
that moves clearly fewer bytes than the library would. Conversions are `aten.clone` nodes, which fuse with the kernels
around them; the graph still means the same run op by op. Rounding may differ as between the library's kernels. """

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..alias import Partition, alias_kind
from ..builder import Builder
from ..graph import FIXED, GETITEM, REGION, Graph, Node
from ..ops.layout import channels_last_stride
from ..spec import Dim, TensorSpec, contiguous_stride

#: By how much the bytes that a region saves must exceed those that it converts at its border.
WORTH = 1.5

#: The cost on CPUs of turning a byte of weights, in bytes of images: the library packs images as a block of channels
#: at a time, and turns weights, whose kernels are a few numbers wide, by a plain copy before it packs them as well.
#: Measured with ResNets of 18 to 50 layers, VGG, RegNet and MobileNet, two to 32 images: where images are less than 3.2
#: times the weights that are turned, row-major was faster, from 3.8 times on channels-last.
WEIGHTS = 2.4

#: Fast kernels of GPUs need channels to be a multiple of this.
_PIECE = 8

#: How many channels the CPU library's kernels work on together.
_BLOCK = 16

_BACKWARD = "aten.convolution_backward.default"

#: A value: a node, or one result of a node that has several.
_Value = tuple[Node, int | None]


def use_channels_last(graph: Graph) -> list[str]:
    """Change over the regions for which it pays, in place. Nothing in the graph may require grad."""
    if not any(node.op.groups is not None for node in graph.nodes):
        return []
    found = [region for region in _Regions(graph).regions() if region.pays()]
    if found:
        _Change(graph, found).run()
    return [f"channels-last: {len(region.members)} values around {len(region.convolutions)} convolutions"
            for region in found]


def _value(node: Node) -> _Value:
    return (node.args[0], node.args[1]) if node.op is GETITEM else (node, None)


def _spec(value: _Value) -> Any:
    node, part = value
    return node.spec if part is None else node.spec[part]  # type: ignore[index]


def _is_row_major(spec: TensorSpec) -> bool:
    return spec.stride == contiguous_stride(spec.shape)


def _lies_as(spec: TensorSpec, stride: tuple[Dim, ...]) -> bool:
    """Whether elements are where these strides put them: those of axes with one element do not count."""
    return all(a == b or size == 1 for a, b, size in zip(spec.stride, stride, spec.shape, strict=True))


class _Region:
    """Values that change over together. `entering` are values that are made elsewhere, by those of its nodes that read
    them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.members: dict[_Value, None] = {}
        self.entering: dict[_Value, list[Node]] = {}
        self.leaving: set[_Value] = set()
        self.nodes: list[Node] = []
        self.convolutions: list[Node] = []

    def pays(self) -> bool:
        """Whether the conversions of the library's calls, as they are now, outweigh those at the border."""
        if not all(map(_runs_in_channels_last, self.convolutions)):
            return False
        saved = sum(self._bytes(value) for node in self.convolutions for value in _images(node) if _aligned(value))
        border = sum(map(self._bytes, self.entering)) + sum(map(self._bytes, self.leaving))
        turned = sum(self._bytes(value) for node in self.convolutions for value in _turned_weights(node))
        return saved > 0 and saved >= WORTH * (border + WEIGHTS * turned)

    def _bytes(self, value: _Value) -> int:
        spec = _spec(value)
        if _lies_as(spec, channels_last_stride(spec.shape)):
            return 0
        return self.graph.sizes.hint(spec.numel) * spec.dtype.itemsize


def _images(node: Node) -> Iterator[_Value]:
    """The images that a convolution reads and makes, weights apart."""
    assert node.op.axes is not None
    reads, makes = node.op.axes
    yield from (_value(node.args[k]) for k in reads)
    yield from ((node, part) for part in makes if _spec((node, part)) is not None)


def _turned_weights(node: Node) -> Iterator[_Value]:
    """Weights that a convolution of channels-last images turns at each call on a CPU, and gradients that are turned
    back. Fixed ones are packed once."""
    is_backward = node.op.name == _BACKWARD
    weight = node.args[2 if is_backward else 1]
    if weight.tensor.device.type != "cpu" or weight.meta.get(FIXED) and weight.tensor.dtype is torch.float32:
        return
    if not is_backward or node.spec[0] is not None:  # type: ignore[index]
        yield _value(weight)
    if is_backward and node.spec[1] is not None:  # type: ignore[index]
        yield node, 1


def _aligned(value: _Value) -> bool:
    """Whether kernels for channels-last images take this one as it is."""
    spec = _spec(value)
    channels = spec.shape[1]
    return spec.device.type == "cpu" or isinstance(channels, int) and channels % _PIECE == 0


def _runs_in_channels_last(node: Node) -> bool:
    """Whether the device's kernels for channels-last images are its fast ones."""
    spec = node.args[0].tensor
    if spec.device.type == "cpu":
        return spec.dtype in (torch.float32, torch.bfloat16, torch.float16) and torch.backends.mkldnn.is_available()
    if not _has_fast_groups(node):
        return False
    return spec.dtype in (torch.bfloat16, torch.float16) or (
        spec.dtype is torch.float32 and bool(torch.backends.cudnn.allow_tf32))


def _writes_out_of_bounds(node: Node) -> bool:
    """Whether the CPU library's backward kernels for channels-last images overrun their buffers: those that skip pixels
    of few channels (seen with torch 2.11 to 2.13: 1x1, a stride of 2, less than 16 channels, 128x128 and more)."""
    first = 1 if node.op.name == _BACKWARD else 0
    weight = node.args[first + 1]
    stride = node.args[first + 3] if len(node.args) > first + 3 else node.kwargs.get("stride", 1)
    if not isinstance(weight, Node) or weight.tensor.device.type != "cpu":
        return False
    _, channels, *kernel = weight.tensor.shape
    few = not isinstance(channels, int) or channels < _BLOCK
    skips = any(step != 1 for step in stride) if isinstance(stride, (list, tuple)) else stride != 1
    return few and skips and all(size == 1 for size in kernel)


def _has_fast_groups(node: Node) -> bool:
    """Whether its groups of channels have fast kernels for channels-last images: cuDNN's, in 16 bits, take a fifth to a
    half of the time of torch's own for row-major depthwise convolutions, and half the time of cuDNN's for row-major
    groups. Gradients of weights of fewer than eight channels a group take longer (208 us for 82 on an H100)."""
    groups, backward = _groups(node), node.op.name == _BACKWARD
    if groups == 1:
        return True
    image, weight = (node.args[k + backward].tensor for k in range(2))
    channels, each = image.shape[1], weight.shape[1]
    if image.dtype.itemsize != 2 or not isinstance(channels, int) or channels % _PIECE:
        return False
    return not backward or each == 1 or isinstance(each, int) and each >= _PIECE


def _groups(node: Node) -> Any:
    position = node.op.groups
    assert position is not None
    return node.args[position] if len(node.args) > position else node.kwargs.get("groups", 1)


class _Regions:
    """The regions of a graph: a union-find over values."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.parts: Partition[_Value] = Partition()
        #: node -> values that it reads and makes, one of which decides on the others
        self.linked: dict[Node, tuple[list[_Value], list[_Value]]] = {}
        for node in graph.nodes:
            self._add(node)

    def _add(self, node: Node) -> None:
        found = self._follower(node)
        if found is None:
            return
        reads, makes = found
        for value in makes:
            self.parts.parent[value] = value
        inside = [value for value in (*makes, *reads) if value in self.parts.parent]
        if inside:
            self.linked[node] = found
        for value in inside[1:]:
            self.parts.join(value, inside[0])

    def _follower(self, node: Node) -> tuple[list[_Value], list[_Value]] | None:
        """The values that a node reads and makes in one order of axes; None for nodes that have to stay as they are."""
        place = node.op.axes
        if place is None and not node.op.is_elementwise:
            return None
        if place is None:
            makes: list[_Value] = [(node, None)]
            shape = node.spec.shape if isinstance(node.spec, TensorSpec) else ()
            reads = [_value(n) for n in dict.fromkeys(node.input_nodes())
                     if isinstance(n.spec, TensorSpec) and n.spec.shape == shape]
        elif node.op.name == "aten.cat.default":
            makes, reads = [(node, None)], [_value(n) for n in node.args[0]]
        else:
            arguments, results = place
            if len(node.args) <= max(arguments):
                return None
            makes = [(node, part) for part in results if _spec((node, part)) is not None]
            reads = [_value(node.args[k]) for k in arguments if isinstance(node.args[k], Node)]
        if not all(_is_image(_spec(v)) for v in (*reads, *makes)):
            return None
        if "memory_format" in node.kwargs or alias_kind(self.graph, node) != "copy":
            return None
        if node.op.groups is not None and _writes_out_of_bounds(node):
            return None
        return reads, makes

    def regions(self) -> list[_Region]:
        """Those with convolutions."""
        found: dict[_Value, _Region] = {}
        for node, (reads, makes) in self.linked.items():
            root = self.parts.find(next(value for value in (*makes, *reads) if value in self.parts.parent))
            region = found.get(root)
            if region is None:
                region = found[root] = _Region(self.graph)
            region.nodes.append(node)
            region.members.update(dict.fromkeys(makes))
            for value in dict.fromkeys(reads):
                if value not in self.parts.parent:
                    region.entering.setdefault(value, []).append(node)
            if node.op.groups is not None:
                region.convolutions.append(node)
        regions = [region for region in found.values() if region.convolutions]
        home = {value: region for region in regions for value in region.members}
        for node in self.graph.nodes:
            if node.op is not GETITEM:
                inside = self.linked.get(node, ((), ()))[0]
                for value in map(_value, dict.fromkeys(node.input_nodes())):
                    if value in home and value not in inside:
                        home[value].leaving.add(value)
        for value in map(_value, self.graph.outputs):
            if value in home:
                home[value].leaving.add(value)
        return regions


def _is_image(spec: Any) -> bool:
    """Whether a value may be in either order of axes."""
    if not isinstance(spec, TensorSpec) or len(spec.shape) != 4 or spec.requires_grad:
        return False
    if any(isinstance(size, int) and size == 0 for size in spec.shape):
        return False
    return _is_row_major(spec) or spec.stride == channels_last_stride(spec.shape)


class _Change:
    """Rewrites a graph for regions that change over."""

    def __init__(self, graph: Graph, regions: list[_Region]) -> None:
        self.graph = graph
        self.home = {value: region for region in regions for value in region.members}
        self.entering = {(value, node) for region in regions for value, nodes in region.entering.items()
                         for node in nodes}
        self.linked = {node for region in regions for node in region.nodes}
        self.convolutions = {node for region in regions for node in region.convolutions}
        self.nodes: list[Node] = []
        #: converted values: by the value, the order of axes, and what recomputes them
        self.made: dict[tuple[Node, torch.memory_format, Any], Node] = {}

    def run(self) -> None:
        before: dict[_Value, TensorSpec] = {}
        for node in self.graph.nodes:
            self._convert_operands(node, before)
            self.nodes.append(node)
            self._change_specs(node, before)
        outputs = {node: self._outside(node, node, before, exact=True) for node in self.graph.outputs}
        self.graph.nodes[:] = self.nodes
        self.graph.outputs = [outputs[node] for node in self.graph.outputs]

    def _change_specs(self, node: Node, before: dict[_Value, TensorSpec]) -> None:
        if node.op is GETITEM:
            node.spec = node.args[0].spec[node.args[1]]
        elif isinstance(node.spec, tuple):
            node.spec = tuple(self._changed((node, k), spec, before) for k, spec in enumerate(node.spec))
        else:
            node.spec = self._changed((node, None), node.spec, before)

    def _changed(self, value: _Value, spec: Any, before: dict[_Value, TensorSpec]) -> Any:
        weight = value[1] == 1 and value[0] in self.convolutions and spec is not None and len(spec.shape) == 4
        if value not in self.home and not (weight and _is_row_major(spec)):
            return spec
        before[value] = spec
        return spec.with_(stride=channels_last_stride(spec.shape))

    def _convert_operands(self, node: Node, before: dict[_Value, TensorSpec]) -> None:
        if node.op is GETITEM:
            return
        def operand(source: Node) -> Node:
            value = _value(source)
            if (value, node) in self.entering:
                return self._converted(source, torch.channels_last, node)
            if value in self.home and node in self.linked:
                return source
            return self._outside(source, node, before)

        weight = node.args[1 if node.op.name != _BACKWARD else 2] if node in self.convolutions else None
        node.replace_inputs(lambda n: self._of_weight(n, node) if n is weight else operand(n))

    def _of_weight(self, weight: Node, reader: Node) -> Node:
        """On GPUs the library would convert weights at each call. On CPUs it packs them anyway, but does not choose its
        fast kernels for images of few channels while weights lie otherwise."""
        spec = weight.spec
        if not isinstance(spec, TensorSpec) or not _is_row_major(spec):
            return weight
        channels = spec.shape[1]
        if spec.device.type == "cpu" and not (isinstance(channels, int) and channels < 8):
            return weight
        return self._converted(weight, torch.channels_last, reader)

    def _outside(self, source: Node, reader: Node, before: dict[_Value, TensorSpec], exact: bool = False) -> Node:
        """The value that readers outside of regions read in place of `source`; the caller sees `exact` strides."""
        spec = before.get(_value(source))
        if spec is None or spec.stride == source.tensor.stride:
            return source
        return self._converted(source, torch.contiguous_format, reader, exact)

    def _converted(self, source: Node, order: torch.memory_format, reader: Node, exact: bool = False) -> Node:
        spec = source.tensor
        wanted = contiguous_stride(spec.shape) if order is torch.contiguous_format else channels_last_stride(spec.shape)
        if spec.stride == wanted if exact else _lies_as(spec, wanted):
            return source
        checkpoint = reader.meta.get(REGION)
        key = source, order, checkpoint
        found = self.made.get(key)
        if found is None:
            b = Builder(self.graph, into=self.nodes, loc=reader.loc, grad_enabled=reader.grad_enabled,
                        region=checkpoint)
            changed = TensorSpec(spec.dtype, spec.shape, wanted, spec.device)
            found = self.made[key] = b.call("aten.clone.default", source, spec=changed, memory_format=order)
        return found


__all__ = ["WORTH", "use_channels_last"]
