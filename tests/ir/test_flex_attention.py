"""The dense reference of flex attention against the formula written out, under torch's autograd."""

from __future__ import annotations

import torch

from jitpy.ir import Graph, TensorSpec
from jitpy.ir.builder import Builder
from jitpy.ir.flex_attention import FlexAttention, FlexAttentionBackward, strides_of

torch.manual_seed(0)
BATCH, HEADS, KEY_HEADS, LENGTH, KEYS, WIDTH = 2, 4, 2, 6, 7, 3
BLOCK = (4, 2)


def element(dtype: torch.dtype) -> TensorSpec:
    return TensorSpec(dtype, (), ())


def indices(graph: Graph) -> list:
    return [graph.add_input(element(torch.int32), name) for name in ("batch", "head", "query", "key")]


def biased() -> Graph:
    """score * slope + bias[head, key]"""
    graph = Graph("score")
    score = graph.add_input(element(torch.float64), "score")
    _, head, _, key = indices(graph)
    slope = graph.add_input(element(torch.float64), "slope")
    bias = graph.add_input(TensorSpec(torch.float64, (HEADS, KEYS), (KEYS, 1)), "bias")
    b = Builder(graph)
    read = b.call("aten.index.Tensor", bias, [head, key])
    graph.outputs = [b.call("aten.add.Tensor", b.call("aten.mul.Tensor", score, slope), read)]
    return graph


def biased_gradient() -> Graph:
    graph = Graph("gradient")
    score = graph.add_input(element(torch.float64), "score")
    _, head, _, key = indices(graph)
    grad, slope = (graph.add_input(element(torch.float64), name) for name in ("grad", "slope"))
    graph.add_input(TensorSpec(torch.float64, (HEADS, KEYS), (KEYS, 1)), "bias")
    b = Builder(graph)
    graph.outputs = [b.call("aten.mul.Tensor", grad, slope), b.call("aten.mul.Tensor", grad, score), grad, head, key]
    return graph


def causal() -> Graph:
    graph = Graph("mask")
    _, _, query, key = indices(graph)
    graph.outputs = [Builder(graph).call("aten.ge.Tensor", query, key)]
    return graph


def listed(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of blocks, and which; junk where none is."""
    found = dense.int().argsort(dim=-1, descending=True, stable=True).int()
    count = dense.sum(-1).int()
    return count, torch.where(torch.arange(found.size(-1)) < count[..., None], found, 99)


def tensors() -> list[torch.Tensor]:
    shapes = (BATCH, HEADS, LENGTH, WIDTH), (BATCH, KEY_HEADS, KEYS, WIDTH), (BATCH, KEY_HEADS, KEYS, 2), (), \
        (HEADS, KEYS)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def written_out(query, key, value, slope, bias, allowed):
    group = HEADS // KEY_HEADS
    scores = 0.5 * query @ key.repeat_interleave(group, 1).transpose(-2, -1) * slope + bias[:, None]
    scores = scores.masked_fill(~allowed, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0)
    return weights @ value.repeat_interleave(group, 1), scores.logsumexp(-1)


def test_forward_and_backward_are_those_of_the_formula():
    query, key, value, slope, bias = given = tensors()
    partial = torch.tensor([[True, False, True, False], [False, True, False, True]]).expand(1, 1, 2, 4)
    full = torch.tensor([[False, True, False, False], [False, False, True, False]]).expand(1, 1, 2, 4)
    rows, columns = torch.arange(LENGTH)[:, None], torch.arange(KEYS)
    seen = partial[0, 0][rows // 4, columns // 2] & (rows >= columns) | full[0, 0][rows // 4, columns // 2]
    blocks = (*listed(partial), *listed(full), None, None, None, None)
    target = FlexAttention(biased(), causal(), 2, 0.5, BLOCK, layout=(3, 1, 2, 0))

    out, lse, top = target(query, key, value, blocks, (slope, bias))
    expected, expected_lse = written_out(*given, seen)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
    assert out.stride() == strides_of(out.shape, (3, 1, 2, 0))
    assert not top.requires_grad

    grads = torch.randn_like(out), torch.randn_like(lse)
    expected_grads = torch.autograd.grad((expected, expected_lse), given, grads)
    backward = FlexAttentionBackward(target, biased_gradient(), ((0, 0), (1, 2)))
    with torch.no_grad():
        found = backward(*grads, out, lse, query, key, value, blocks, (slope, bias))
    for own, other in zip(found, expected_grads, strict=True):
        torch.testing.assert_close(own, other)


def test_a_row_without_keys_gives_zero_and_no_gradient():
    query, key, value, *_ = tensors()
    count, which = listed(torch.tensor([[False] * 4, [True] * 4]).expand(1, 1, 2, 4))
    target = FlexAttention(None, None, 0, 1.0, BLOCK)
    blocks = (count, which, *[None] * 6)
    out, lse, top = target(query, key, value, blocks, ())
    assert not out[:, :, :4].any() and out[:, :, 4:].all()
    assert (lse[:, :, :4] == float("-inf")).all() and (top[:, :, :4] == float("-inf")).all()
    with torch.no_grad():
        grads = FlexAttentionBackward(target, None)(torch.ones_like(out), None, out, lse, query, key, value, blocks, ())
    assert all(grad.isfinite().all() for grad in grads) and not grads[0][:, :, :4].any()
