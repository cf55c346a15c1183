"""Which convolutions by groups run in channels-last on GPUs."""

from __future__ import annotations

import pytest
import torch

from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph, Node
from jitpy.ir.passes.channels_last import use_channels_last
from jitpy.ir.verify import verify
from tests.graph_tools import spec_of


def graph_of(each: int, groups: int, dtype: torch.dtype, backward: bool = False) -> Graph:
    """A convolution by groups between two others. No device: what is not the CPU counts as a GPU."""
    channels = each * groups
    graph = Graph()

    def convolution(b: Builder, x: Node, each: int, groups: int) -> Node:
        w = graph.add_input(spec_of(torch.empty(channels, each, 3, 3, dtype=dtype, device="meta")))
        options = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)
        made = b.call("aten.convolution.default", x, w, *options, spec=x.spec)
        if backward:
            grads = (x.spec, w.spec, None)
            graph.outputs.append(b.getitem(b.call("aten.convolution_backward.default", made, x, w, *options,
                                                  [True, True, False], spec=grads), 1))
        return made

    x = graph.add_input(spec_of(torch.empty(8, channels, 28, 28, dtype=dtype, device="meta")))
    b = Builder(graph)
    first = b.call("aten.relu.default", convolution(b, x, channels, 1))
    second = b.call("aten.relu.default", convolution(b, first, each, groups))
    graph.outputs.append(convolution(b, second, channels, 1))
    return graph


@pytest.mark.parametrize(("each", "groups", "dtype", "changes"), [
    (1, 64, torch.bfloat16, True), (1, 64, torch.float16, True), (4, 16, torch.bfloat16, True),
    (16, 4, torch.bfloat16, True), (1, 64, torch.float32, False), (1, 60, torch.bfloat16, False),
])
def test_forward(each: int, groups: int, dtype: torch.dtype, changes: bool) -> None:
    graph = graph_of(each, groups, dtype)
    assert bool(use_channels_last(graph)) is changes
    verify(graph)


@pytest.mark.parametrize(("each", "groups", "changes"), [(1, 64, True), (16, 4, True), (4, 16, False)])
def test_gradients(each: int, groups: int, changes: bool) -> None:
    """Weights of few channels a group have slow gradients, and keep all as it is."""
    graph = graph_of(each, groups, torch.bfloat16, backward=True)
    assert bool(use_channels_last(graph)) is changes
    verify(graph)
