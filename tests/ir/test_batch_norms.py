"""Batch norms by running statistics that become part of convolutions; the library's calls are played on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends import eager
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph, Node
from jitpy.ir.passes.batch_norms import fold_batch_norms
from jitpy.ir.passes.cleanup import remove_dead_code
from jitpy.ir.verify import verify
from tests.graph_tools import spec_of

RELU, SUM = "aten.cudnn_convolution_relu.default", "aten.cudnn_convolution_add_relu.default"


@pytest.fixture(autouse=True)
def _played() -> Iterator[None]:
    """cuDNN's calls: one rounding at the end."""
    def convolution(x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
        return F.conv2d(x.float(), w.float(), b.float(), stride, padding, dilation, groups)

    library = torch.library.Library("aten", "IMPL")
    library.impl("cudnn_convolution_relu", lambda x, *rest: convolution(x, *rest).relu().to(x.dtype), "CPU")
    library.impl("cudnn_convolution_add_relu", lambda x, w, z, alpha, *rest: (
        convolution(x, w, *rest) + alpha * z.float()).relu().to(x.dtype), "CPU")
    yield
    library._destroy()


class Layers:
    """Convolutions with batch norms behind them, as autocast runs them; their parameters are the graph's inputs."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16, kept: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.graph = Graph()
        self.b = Builder(self.graph)
        self.dtype, self.kept = dtype, kept
        self.values: list[torch.Tensor] = []

    def input(self, value: torch.Tensor) -> Node:
        self.values.append(value)
        return self.graph.add_input(spec_of(value))

    def image(self, *shape: int) -> Node:
        return self.input(torch.randn(shape).to(self.dtype, memory_format=torch.channels_last))

    def rounded(self, node: Node) -> Node:
        return node if node.tensor.dtype is self.dtype else self.b.call("aten._to_copy.default", node, dtype=self.dtype)

    def convolution(self, x: Node, channels: int, size: int = 1, stride: int = 1, bias: bool = False) -> Node:
        weight = self.rounded(self.input((torch.randn(channels, x.tensor.shape[1], size, size) * 0.3).to(self.kept)))
        added = self.rounded(self.input(torch.randn(channels).to(self.kept))) if bias else None
        spec = F.conv2d(torch.empty(x.tensor.shape, device="meta"), torch.empty(weight.tensor.shape, device="meta"),
                        None, stride, size // 2).to(self.dtype, memory_format=torch.channels_last)
        return self.b.call("aten.convolution.default", x, weight, added, [stride] * 2, [size // 2] * 2, [1, 1], False,
                           [0, 0], 1, spec=spec_of(spec).with_(device=x.tensor.device))

    def norm(self, x: Node, affine: bool = True, training: bool = False) -> Node:
        count = x.tensor.shape[1]
        mean, scale, shift = (torch.randn(count) for _ in range(3))
        variance = torch.rand(count) + 0.3
        given = [self.input(one) if affine or k > 1 else None for k, one in enumerate((scale, shift, mean, variance))]
        made = self.b.call("aten.native_batch_norm.default", x, *given, training, 0.1, 1e-5, spec=(
            x.spec, *[spec_of(torch.empty(0))] * 2))
        return self.b.getitem(made, 0)

    def relu(self, x: Node) -> Node:
        return self.b.call("aten.relu.default", x, spec=x.spec)

    def add(self, x: Node, y: Node) -> Node:
        return self.b.call("aten.add.Tensor", x, y, spec=x.spec)

    def run(self) -> list[torch.Tensor]:
        return list(eager.compile_graph(self.graph, {})(*self.values))

    def exact(self) -> list[torch.Tensor]:
        """In float64: the same graph with all roundings but those of inputs left out."""
        other = Layers.__new__(Layers)
        other.graph, mapping = Graph(), {}
        for node in self.graph.all_nodes():
            if node in self.graph.inputs:
                mapping[node] = other.graph.add_input(node.tensor.with_(dtype=torch.float64))
                continue
            args = [mapping.get(a, a) if isinstance(a, Node) else a for a in node.args]
            if node.op.name == "aten._to_copy.default":
                mapping[node] = args[0]
            else:
                mapping[node] = other.graph.add(node.op, tuple(args), dict(node.kwargs), node.spec)
        other.graph.outputs = [mapping[node] for node in self.graph.outputs]
        return list(eager.compile_graph(other.graph, {})(*(value.double() for value in self.values)))


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def plain(layers: Layers) -> None:
    x = layers.image(2, 16, 10, 10)
    layers.graph.outputs = [layers.relu(layers.norm(layers.convolution(x, 24, 3, 2)))]


def with_bias(layers: Layers) -> None:
    x = layers.image(2, 16, 10, 10)
    layers.graph.outputs = [layers.relu(layers.norm(layers.convolution(x, 24, 3, bias=True), affine=False))]


def shortcut(layers: Layers) -> None:
    x = layers.image(2, 16, 10, 10)
    y = layers.relu(layers.norm(layers.convolution(x, 8)))
    layers.graph.outputs = [layers.relu(layers.add(layers.norm(layers.convolution(y, 16, 3)), x))]


def two_branches(layers: Layers) -> None:
    x = layers.image(2, 16, 10, 10)
    left, right = layers.norm(layers.convolution(x, 24, 3)), layers.norm(layers.convolution(x, 24))
    layers.graph.outputs = [layers.relu(layers.add(left, right))]


FOLDED: dict[Callable[[Layers], None], list[str]] = {
    plain: [RELU], with_bias: [RELU], shortcut: [RELU, SUM], two_branches: ["aten.convolution.default", SUM]}


@pytest.mark.parametrize("build", FOLDED, ids=lambda build: build.__name__)
def test_folded(build: Callable[[Layers], None]) -> None:
    layers = Layers()
    build(layers)
    expected, exact = layers.run(), layers.exact()
    assert fold_batch_norms(layers.graph, "cpu")
    remove_dead_code(layers.graph)
    verify(layers.graph)
    assert [name for name in names(layers.graph) if "conv" in name] == FOLDED[build]
    assert not any("batch_norm" in name for name in names(layers.graph))
    for one, other, true in zip(layers.run(), expected, exact, strict=True):
        assert one.stride() == other.stride() and one.dtype is other.dtype
        assert (one - true).norm() <= (other - true).norm() * 1.02


def test_current_values() -> None:
    """Parameters and statistics are read at each call."""
    layers = Layers()
    plain(layers)
    fold_batch_norms(layers.graph, "cpu")
    run = eager.compile_graph(layers.graph, {})
    for _ in range(3):
        for value in layers.values[1:]:
            value.mul_(1.25)
        other = Layers()
        plain(other)
        other.values = layers.values
        torch.testing.assert_close(run(*layers.values)[0], other.run()[0], rtol=5e-2, atol=8e-2)


def read_twice(layers: Layers) -> None:
    y = layers.norm(layers.convolution(layers.image(2, 16, 10, 10), 24))
    layers.graph.outputs = [layers.relu(y), layers.b.call("aten.neg.default", y, spec=y.spec)]


def result_between(layers: Layers) -> None:
    y = layers.convolution(layers.image(2, 16, 10, 10), 24)
    layers.graph.outputs = [layers.relu(layers.norm(y)), y]


def while_training(layers: Layers) -> None:
    y = layers.convolution(layers.image(2, 16, 10, 10), 24)
    layers.graph.outputs = [layers.relu(layers.norm(y, training=True))]


def without_relu(layers: Layers) -> None:
    layers.graph.outputs = [layers.norm(layers.convolution(layers.image(2, 16, 10, 10), 24))]


def odd_channels(layers: Layers) -> None:
    layers.graph.outputs = [layers.relu(layers.norm(layers.convolution(layers.image(2, 16, 10, 10), 13)))]


@pytest.mark.parametrize("build", [read_twice, result_between, while_training, without_relu, odd_channels])
def test_not_folded(build: Callable[[Layers], None]) -> None:
    layers = Layers()
    build(layers)
    before = names(layers.graph)
    assert not fold_batch_norms(layers.graph, "cpu") and names(layers.graph) == before


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16),
                                             (torch.float32, torch.float32)])
def test_weights_are_not_rounded_twice(dtype: torch.dtype, kept: torch.dtype) -> None:
    layers = Layers(dtype, kept)
    plain(layers)
    assert not fold_batch_norms(layers.graph, "cpu")


def test_weights_by_another_rounding() -> None:
    layers = Layers()
    x = layers.image(2, 16, 10, 10)
    weight = layers.input(torch.randn(24, 16, 1, 1))
    for dtype in (torch.float16, torch.bfloat16):
        weight = layers.b.call("aten._to_copy.default", weight, dtype=dtype)
    y = layers.convolution(x, 24)
    y.args = (x, weight, *y.args[2:])
    layers.graph.outputs = [layers.relu(layers.norm(y))]
    assert not fold_batch_norms(layers.graph, "cpu")


def test_deterministic_algorithms() -> None:
    layers = Layers()
    plain(layers)
    torch.use_deterministic_algorithms(True)
    try:
        assert not fold_batch_norms(layers.graph, "cpu")
    finally:
        torch.use_deterministic_algorithms(False)
