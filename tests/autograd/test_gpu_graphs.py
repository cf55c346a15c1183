"""Reverse mode of graphs on a GPU, built by hand: what they call, and that shapes agree. Nothing runs."""

from __future__ import annotations

import pytest
import torch

from jitpy.autograd.joint import differentiate, split
from jitpy.autograd.partition import choose_saved
from jitpy.ir import Graph
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Node
from jitpy.ir.op import NotCovered
from jitpy.ir.spec import TensorSpec, contiguous_stride

CUDA = torch.device("cuda", 0)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="torch's own choices decide there")


def graph_of(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> tuple[Graph, list[Node], Builder]:
    graph = Graph("graph")
    specs = [TensorSpec(dtype, shape, contiguous_stride(shape), CUDA, requires_grad=True) for shape in shapes]
    inputs = [graph.add_input(spec, f"x{number}") for number, spec in enumerate(specs)]
    return graph, inputs, Builder(graph)


def nodes_of(graph: Graph, result: Node) -> tuple[list[Node], list[Node]]:
    """The nodes of the forward and the backward half."""
    graph.outputs = [result]
    joint = differentiate(graph)
    halves = split(joint, choose_saved(joint))
    for half in (halves.forward, halves.backward):
        for node in half.nodes:
            for spec in node.spec if isinstance(node.spec, tuple) else (node.spec,):
                assert not isinstance(spec, TensorSpec) or spec.device == CUDA, node
    return halves.forward.nodes, halves.backward.nodes


def halves_of(graph: Graph, result: Node) -> tuple[list[str], list[str]]:
    """The names of the ops of the forward and the backward half."""
    forward, backward = nodes_of(graph, result)
    return [node.op.name for node in forward], [node.op.name for node in backward]


@pytest.mark.parametrize(("dtype", "kernel"), [(torch.bfloat16, "flash"), (torch.float32, "efficient")])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype: torch.dtype, kernel: str, causal: bool) -> None:
    shape = (2, 4, 32, 64)
    graph, (q, k, v), b = graph_of(shape, shape, shape, dtype=dtype)
    attention = b.call("aten.scaled_dot_product_attention.default", q, k, v, None, 0.0, causal)
    forward, backward = halves_of(graph, attention)
    assert f"aten._scaled_dot_product_{kernel}_attention.default" in forward
    assert f"aten._scaled_dot_product_{kernel}_attention_backward.default" in backward
    assert not any("matmul" in name or "bmm" in name for name in forward + backward)


def test_grouped_heads() -> None:
    graph, (q, k, v), b = graph_of((2, 8, 32, 64), (2, 2, 32, 64), (2, 2, 32, 64))
    attention = b.call("aten.scaled_dot_product_attention.default", q, k, v, None, 0.0, True, enable_gqa=True)
    forward, backward = halves_of(graph, attention)
    assert "aten._scaled_dot_product_flash_attention.default" in forward


def test_cudnn_attention_as_recorded() -> None:
    shape = (2, 4, 32, 64)
    graph, (q, k, v), b = graph_of(shape, shape, shape)
    made = b.call("aten._scaled_dot_product_cudnn_attention.default", q, k, v, None, True, 0.0, True, False)
    forward, backward = halves_of(graph, b.getitem(made, 0))
    assert "aten._scaled_dot_product_cudnn_attention_backward.default" in backward


@pytest.mark.parametrize("keys", [32, 40])
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16])
def test_masks_are_added_in_the_kernel(dtype: torch.dtype, keys: int) -> None:
    graph, (q, k, v), b = graph_of((2, 4, 32, 64), (2, 4, keys, 64), (2, 4, keys, 64))
    shape = (2, 1, 32, keys)
    mask = graph.add_input(TensorSpec(dtype, shape, contiguous_stride(shape), CUDA), "mask")
    attention = b.call("aten.scaled_dot_product_attention.default", q, k, v, mask, 0.1)
    forward, backward = nodes_of(graph, attention)
    assert "aten._scaled_dot_product_efficient_attention_backward.default" in [node.op.name for node in backward]
    (call,) = [node for node in forward if node.op.name == "aten._scaled_dot_product_efficient_attention.default"]
    bias = call.args[3].tensor
    assert bias.shape == (2, 4, 32, keys) and bias.dtype is torch.bfloat16 and bias.stride[-1] == 1
    assert all(step % 16 == 0 for step in bias.stride[:-1]) and call.args[5] == 0.1


def test_odd_widths_are_left_to_torch() -> None:
    graph, (q, k, v), b = graph_of(*[(2, 4, 32, 60)] * 3)
    with pytest.raises(NotCovered, match="odd width"):
        halves_of(graph, b.call("aten.scaled_dot_product_attention.default", q, k, v))


def test_dropout_is_eagers_kernel() -> None:
    graph, (x,), b = graph_of((64, 64))
    forward, backward = halves_of(graph, b.call("aten.dropout.default", x, 0.1, True))
    assert "aten.native_dropout.default" in forward and not any("bernoulli" in name for name in forward)


@pytest.mark.parametrize("shown", [False, True])
def test_large_log_probabilities_are_computed_again(shown: bool) -> None:
    """Scores of 16 bits and two numbers a row are kept, not the log-probabilities in 32."""
    graph, (x, weight), b = graph_of((512, 64), (20000, 64))
    scores = b.call("aten.linear.default", x, weight)
    wide = b.call("aten._to_copy.default", scores, dtype=torch.float32)
    result = b.call("aten._log_softmax.default", wide, 1, False)
    graph.outputs = [b.call("aten.mean.default", b.call("aten.mul.Tensor", result, result)), *([scores] * shown)]
    joint = differentiate(graph)
    saved = choose_saved(joint)
    assert all(node.tensor.dtype is torch.bfloat16 or node.tensor.numel <= 512 for node in saved)
    names = [node.op.name for node in split(joint, saved).backward.nodes]
    assert "aten._log_softmax_backward_data.default" in names and "aten.amax.default" not in names


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_large_probabilities_are_computed_again(steps: int) -> None:
    """Of attention in 16 bits the product and two numbers a row are kept, whatever scales it."""
    graph, (q, k, v), b = graph_of((8, 1024, 64), (8, 64, 1024), (8, 1024, 64))
    scores = b.call("aten.bmm.default", q, k)
    for _ in range(steps):
        scores = b.call("aten.mul.Tensor", scores, 0.125)
    wide = b.call("aten._to_copy.default", scores, dtype=torch.float32)
    weights = b.call("aten._to_copy.default", b.call("aten._softmax.default", wide, -1, False), dtype=torch.bfloat16)
    graph.outputs = [b.call("aten.bmm.default", weights, v)]
    joint = differentiate(graph)
    saved = choose_saved(joint)
    assert all(node.tensor.dtype is torch.bfloat16 or node.tensor.numel <= 8 * 1024 for node in saved), saved
    assert sorted(node.op.name for node in saved if node.tensor.numel == 8 * 1024 * 1024) == [
        "aten._to_copy.default", "aten.bmm.default"]
    names = [node.op.name for node in split(joint, saved).backward.nodes]
    assert "aten._softmax_backward_data.default" in names and "aten.amax.default" not in names
