"""Biases that kernels behind convolutions add."""

from __future__ import annotations

import pytest
import torch

from jitpy.backends import eager
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph
from jitpy.ir.passes.convolution_biases import add_biases_later
from jitpy.ir.verify import verify
from tests.graph_tools import spec_of


def graph_of(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, groups: int = 1, transposed: bool = False) -> Graph:
    graph = Graph()
    nodes = [graph.add_input(spec_of(one)) for one in (x, w, bias)]
    b = Builder(graph)
    result = torch.ops.aten.convolution.default(x, w, bias, [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)
    made = b.call("aten.convolution.default", *nodes, [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups,
                  spec=spec_of(result))
    graph.outputs = [b.call("aten.relu.default", made)]
    return graph


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_added_behind_the_call(order: torch.memory_format) -> None:
    inputs = torch.randn(2, 8, 6, 6).to(memory_format=order), torch.randn(16, 8, 3, 3), torch.randn(16)
    graph = graph_of(*inputs)
    (expected,) = eager.compile_graph(graph_of(*inputs), {})(*inputs)
    assert add_biases_later(graph, "cpu")
    verify(graph)
    assert [node.op.name for node in graph.nodes if "view" not in node.op.name] == [
        "aten.convolution.default", "aten.add.Tensor", "aten.relu.default"]
    (found,) = eager.compile_graph(graph, {})(*inputs)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("case", ["depthwise", "transposed", "no such device"])
def test_what_stays(case: str) -> None:
    depthwise = case == "depthwise"
    w = torch.randn(8, 1 if depthwise else 8, 3, 3)
    graph = graph_of(torch.randn(2, 8, 6, 6), w, torch.randn(8), 8 if depthwise else 1, case == "transposed")
    before = str(graph)
    assert not add_biases_later(graph, "cuda" if case == "no such device" else "cpu") and str(graph) == before
