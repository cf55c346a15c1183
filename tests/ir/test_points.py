"""Convolutions of images of one pixel as products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends import eager
from jitpy.ir.passes.points import multiply_points
from jitpy.ir.verify import verify
from tests.graph_tools import trace


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("batch", [1, 3])
def test_results_lie_as_before(order: torch.memory_format, batch: int) -> None:
    x, w, b = torch.randn(batch, 12, 1, 1), torch.randn(20, 12, 1, 1), torch.randn(20)
    inputs = [x.bfloat16().to(memory_format=order), w.bfloat16().to(memory_format=order), b.bfloat16()]
    graph = trace(lambda x, w, b: F.conv2d(x, w, b), inputs)
    (expected,) = eager.compile_graph(trace(lambda x, w, b: F.conv2d(x, w, b), inputs), {})(*inputs)
    assert multiply_points(graph, "cpu")
    verify(graph)
    assert "aten.addmm.default" in [node.op.name for node in graph.nodes]
    (found,) = eager.compile_graph(graph, {})(*inputs)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
