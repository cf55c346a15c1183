"""Biases that kernels behind convolutions add."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jitpy.backends import eager
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph
from jitpy.ir.passes.convolution_biases import add_biases_later
from jitpy.ir.verify import verify
from tests.graph_tools import spec_of

aten = torch.ops.aten


def graph_of(op: torch._ops.OpOverload, *tensors: torch.Tensor, options: tuple[Any, ...] = ()) -> Graph:
    graph = Graph()
    nodes = [graph.add_input(spec_of(one)) for one in tensors]
    b = Builder(graph)
    made = b.call(str(op), *nodes, *options, spec=spec_of(op(*tensors, *options)))
    graph.outputs = [b.call("aten.relu.default", made)]
    return graph


def added(op: torch._ops.OpOverload, *tensors: torch.Tensor, options: tuple[Any, ...] = ()) -> None:
    """The bias becomes a node, and the result stays as it is."""
    graph = graph_of(op, *tensors, options=options)
    (expected,) = eager.compile_graph(graph_of(op, *tensors, options=options), {})(*tensors)
    assert add_biases_later(graph, "cpu")
    verify(graph)
    assert [node.op.name for node in graph.nodes if "view" not in node.op.name] == [
        str(op), "aten.add.Tensor", "aten.relu.default"]
    (found,) = eager.compile_graph(graph, {})(*tensors)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_added_behind_the_call(order: torch.memory_format, transposed: bool) -> None:
    inputs = torch.randn(2, 8, 6, 6).to(memory_format=order), torch.randn(8, 8, 3, 3), torch.randn(8)
    added(aten.convolution.default, *inputs, options=([1, 1], [1, 1], [1, 1], transposed, [0, 0], 1))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["conv", "conv_transpose"])
def test_calls_as_the_program_makes_them(kind: str, axes: int) -> None:
    packet = getattr(aten, f"{kind}{axes}d")
    op = packet.default if kind == "conv" or axes == 1 else packet.input
    x, w = torch.randn(2, 8, *[6] * axes), torch.randn(8, 8, *[3] * axes)
    added(op, x, w, torch.randn(8))
    added(op, x[0], w, torch.randn(8))
    if kind == "conv":
        added(packet.padding, x, w, torch.randn(8), options=([1] * axes, "same"))


def test_groups_of_channels() -> None:
    added(aten.conv2d.default, torch.randn(2, 8, 6, 6), torch.randn(8, 4, 3, 3), torch.randn(8),
          options=([1, 1], [0, 0], [1, 1], 2))


@pytest.mark.parametrize("op", [aten.convolution.default, aten.conv2d.default])
def test_depthwise_convolutions_stay(op: torch._ops.OpOverload) -> None:
    options = ([1, 1], [1, 1], [1, 1], False, [0, 0], 8) if op is aten.convolution.default else (
        [1, 1], [1, 1], [1, 1], 8)
    graph = graph_of(op, torch.randn(2, 8, 6, 6), torch.randn(8, 1, 3, 3), torch.randn(8), options=options)
    before = str(graph)
    assert not add_biases_later(graph, "cpu") and str(graph) == before


def test_other_devices() -> None:
    graph = graph_of(aten.conv2d.default, torch.randn(2, 8, 6, 6), torch.randn(8, 8, 3, 3), torch.randn(8))
    before = str(graph)
    assert not add_biases_later(graph, "cuda") and str(graph) == before
