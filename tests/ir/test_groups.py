"""Groups of a convolution's channels, padded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends import eager
from jitpy.ir.graph import Graph
from jitpy.ir.passes.groups import pad_groups
from jitpy.ir.verify import verify
from tests.graph_tools import trace


def graph_of(inputs: list[torch.Tensor], groups: int, stride: int = 1) -> Graph:
    return trace(lambda x, w, *b: F.conv2d(x, w, *b, stride=stride, padding=1, groups=groups).relu(), inputs)


def operands(channels: int, made: int, groups: int, bias: bool = True) -> list[torch.Tensor]:
    x, w, b = torch.randn(2, channels, 9, 7), torch.randn(made, channels // groups, 3, 3), torch.randn(made)
    return [x.bfloat16().to(memory_format=torch.channels_last), w.bfloat16(), *([b.bfloat16()] if bias else [])]


@pytest.mark.parametrize(("channels", "made", "groups"), [
    (48, 48, 2), (72, 48, 3), (24, 72, 3), (20, 16, 2), (4, 8, 2), (160, 160, 2)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_results_lie_as_before(channels: int, made: int, groups: int, stride: int, bias: bool) -> None:
    inputs = operands(channels, made, groups, bias)
    graph = graph_of(inputs, groups, stride)
    (expected,) = eager.compile_graph(graph_of(inputs, groups, stride), {})(*inputs)
    assert pad_groups(graph, "cpu")
    verify(graph)
    (call,) = [node for node in graph.nodes if node.op.convolution is not None]
    assert all(size // groups in (4, 8, 16, 32, 128) for size in (call.tensor.shape[1], call.args[0].tensor.shape[1]))
    (found,) = eager.compile_graph(graph, {})(*inputs)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("channels", "made", "groups"), [(64, 64, 2), (32, 32, 32), (272, 272, 2), (24, 24, 1)])
def test_groups_that_have_kernels(channels: int, made: int, groups: int) -> None:
    assert not pad_groups(graph_of(operands(channels, made, groups), groups), "cpu")
