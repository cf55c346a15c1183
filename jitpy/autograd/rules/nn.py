"""Gradients of normalisations, attention, pooling, resampling and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.graph import Node
from ...ir.op import NotCovered
from ...ir.ops.philox import MASKED
from ..pullback import Pullback
from .registry import rule

Grads = Sequence[Any]


@rule("aten.native_layer_norm.default")
def _layer_norm(p: Pullback, g: Node, mean_grad: Any, rstd_grad: Any, x: Node, shape: Any, weight: Node | None,
                bias: Node | None, eps: float) -> Grads:
    mask = [p.needs(x), p.needs(weight), p.needs(bias)]
    back = p.call("aten.native_layer_norm_backward.default", g, x, list(shape), p.part(1), p.part(2), weight, bias,
                  mask)
    first, second, third = p.parts(back, mask)
    return first, None, second, third


@rule("aten.native_group_norm.default", once=True)
def _group_norm(p: Pullback, g: Node, mean_grad: Any, rstd_grad: Any, x: Node, weight: Node | None, bias: Node | None,
                batch: Any, channels: Any, inner: Any, groups: int, eps: float) -> Grads:
    if mean_grad is not None or rstd_grad is not None:
        raise NotCovered("gradients of statistics")
    mask = [p.needs(x), p.needs(weight), p.needs(bias)]
    back = p.call("aten.native_group_norm_backward.default", g, x, p.part(1), p.part(2), weight, batch, channels, inner,
                  groups, mask)
    return p.parts(back, mask)


def _batch_norm_slope(p: Pullback, g: Node, x: Node, weight: Node | None, bias: Node | None, mean: Node | None,
                      var: Node | None, training: bool, eps: float) -> Grads:
    mask = [p.needs(x), p.needs(weight), p.needs(bias)]
    back = p.call("aten.native_batch_norm_backward.default", g, x, weight, mean, var, p.part(1), p.part(2), training,
                  eps, mask)
    return p.parts(back, mask)


@rule("aten._native_batch_norm_legit_functional.default")
def _batch_norm_functional(p: Pullback, g: Node, mean_grad: Any, rstd_grad: Any, new_mean_grad: Any, new_var_grad: Any,
                           x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node, training: bool,
                           momentum: float, eps: float) -> Grads:
    if new_mean_grad is not None or new_var_grad is not None:
        raise NotCovered("gradients of running statistics")
    # running statistics count only where they are used, and then they are not updated
    own = None if training else mean, None if training else var
    return _batch_norm_slope(p, g, x, weight, bias, own[0], own[1], training, eps)


@rule("aten.native_batch_norm.default")
def _batch_norm(p: Pullback, g: Node, mean_grad: Any, rstd_grad: Any, x: Node, weight: Node | None, bias: Node | None,
                mean: Node | None, var: Node | None, training: bool, momentum: float, eps: float) -> Grads:
    return _batch_norm_slope(p, g, x, weight, bias, mean, var, training, eps)


@rule("aten.convolution.default")
def _convolution(p: Pullback, g: Node, x: Node, weight: Node, bias: Node | None, stride: Any, padding: Any,
                 dilation: Any, transposed: bool, output_padding: Any, groups: int) -> Grads:
    mask = [p.needs(x), p.needs(weight), p.needs(bias)]
    sizes = [p.node.tensor.shape[1]] if bias is not None else None
    back = p.call("aten.convolution_backward.default", g, x, weight, sizes, stride, padding, dilation, transposed,
                  output_padding, groups, mask)
    return p.parts(back, mask)


@rule("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def _transposed(p: Pullback, g: Node, x: Node, weight: Node, bias: Node | None = None, stride: Any = 1,
                padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1) -> Grads:
    if x.tensor.ndim != weight.tensor.ndim:
        raise NotCovered("a convolution without an axis for the batch")
    axes = weight.tensor.ndim - 2
    stride, padding, output_padding, dilation = (
        list(v) * axes if len(v) == 1 else list(v)
        for v in ([v] if isinstance(v, int) else v for v in (stride, padding, output_padding, dilation)))
    return _convolution(p, g, x, weight, bias, stride, padding, dilation, True, output_padding, groups)


@rule("aten._scaled_dot_product_flash_attention_for_cpu.default")
def _flash_attention(p: Pullback, g: Node, lse_grad: Any, q: Node, k: Node, v: Node, dropout: float = 0.0,
                     is_causal: bool = False, *, attn_mask: Node | None = None, scale: float | None = None) -> Grads:
    if p.needs(attn_mask):
        raise NotCovered("the gradient of an attention mask")
    back = p.call("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", g, q, k, v, p.part(0), p.part(1),
                  dropout, is_causal, attn_mask=attn_mask, scale=scale)
    return p.parts(back, [p.needs(q), p.needs(k), p.needs(v)])


@rule("aten._scaled_dot_product_flash_attention.default")
def _gpu_flash_attention(p: Pullback, g: Node, lse: Any, cum_q: Any, cum_k: Any, max_q: Any, max_k: Any, state: Any,
                         unused: Any, debug: Any, q: Node, k: Node, v: Node, dropout: float = 0.0,
                         is_causal: bool = False, return_debug_mask: bool = False, *,
                         scale: float | None = None) -> Grads:
    back = p.call("aten._scaled_dot_product_flash_attention_backward.default", g, q, k, v, p.part(0), p.part(1), None,
                  None, q.tensor.shape[-2], k.tensor.shape[-2], dropout, is_causal, p.part(6), p.part(7), scale=scale)
    return p.parts(back, [p.needs(q), p.needs(k), p.needs(v)])


@rule("aten._scaled_dot_product_efficient_attention.default")
def _gpu_efficient_attention(p: Pullback, g: Node, lse: Any, seed: Any, offset: Any, q: Node, k: Node, v: Node,
                             bias: Node | None, compute_log_sumexp: bool, dropout: float = 0.0,
                             is_causal: bool = False, *, scale: float | None = None) -> Grads:
    if not compute_log_sumexp:
        raise NotCovered("attention without what its gradient needs")
    mask = [p.needs(q), p.needs(k), p.needs(v), p.needs(bias)]
    back = p.call("aten._scaled_dot_product_efficient_attention_backward.default", g, q, k, v, bias, p.part(0),
                  p.part(1), p.part(2), p.part(3), dropout, mask, is_causal, scale=scale)
    return p.parts(back, mask)


@rule("aten._scaled_dot_product_cudnn_attention.default")
def _gpu_cudnn_attention(p: Pullback, g: Node, lse: Any, cum_q: Any, cum_k: Any, max_q: Any, max_k: Any, seed: Any,
                         offset: Any, debug: Any, q: Node, k: Node, v: Node, bias: Node | None,
                         compute_log_sumexp: bool, dropout: float = 0.0, is_causal: bool = False,
                         return_debug_mask: bool = False, *, scale: float | None = None) -> Grads:
    if not compute_log_sumexp or p.needs(bias):
        raise NotCovered("attention without what its gradient needs")
    back = p.call("aten._scaled_dot_product_cudnn_attention_backward.default", g, q, k, v, p.part(0), p.part(1),
                  p.part(6), p.part(7), bias, None, None, q.tensor.shape[-2], k.tensor.shape[-2], dropout, is_causal,
                  scale=scale)
    return p.parts(back, [p.needs(q), p.needs(k), p.needs(v)])


@rule("aten.native_dropout.default")
def _dropout(p: Pullback, g: Node, mask_grad: Any, x: Node, probability: float, train: Any) -> Grads:
    keep = 1.0 - probability
    return (p.call("aten.native_dropout_backward.default", g, p.part(1), 1.0 / keep if keep else 0.0),)


@rule(MASKED)
def _masked(p: Pullback, g: Node, x: Node, mask: Node, probability: float) -> Grads:
    return (p.call("aten.native_dropout_backward.default", g, mask, 1.0 / (1.0 - probability)),)


@rule("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def _max_pool(p: Pullback, g: Node, indices_grad: Any, x: Node, kernel: Any, stride: Any = (), padding: Any = 0,
              dilation: Any = 1, ceil_mode: bool = False) -> Grads:
    name = p.node.op.name.replace(".default", "_backward.default")
    return (p.call(name, g, x, kernel, stride, padding, dilation, ceil_mode, p.part(1)),)


@rule("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def _avg_pool(p: Pullback, g: Node, x: Node, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
              count_include_pad: bool = True, divisor: Any = None) -> Grads:
    name = p.node.op.name.replace(".default", "_backward.default")
    return (p.call(name, g, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor),)


@rule("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def _adaptive_pool(p: Pullback, g: Node, x: Node, size: Any) -> Grads:
    return (p.call(p.node.op.name.replace(".default", "_backward.default"), g, x),)


@rule("aten._prelu_kernel.default")
def _prelu(p: Pullback, g: Node, x: Node, weight: Node) -> Grads:
    back = p.call("aten._prelu_kernel_backward.default", g, x, weight)
    return p.getitem(back, 0), p.getitem(back, 1)


@rule("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec")
def _interpolated(p: Pullback, g: Node, x: Node, size: Any, align_corners: bool, factors: Any) -> Grads:
    return (_upsample_slope(p, g, x, [align_corners], factors),)


@rule("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec", "_upsample_nearest_exact1d.vec",
      "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec")
def _nearest(p: Pullback, g: Node, x: Node, size: Any, factors: Any) -> Grads:
    return (_upsample_slope(p, g, x, [], factors),)


def _upsample_slope(p: Pullback, g: Node, x: Node, rest: list[Any], factors: Any) -> Node:
    scales = list(factors) if factors is not None else [None] * (x.tensor.ndim - 2)
    return p.call(p.node.op.name.replace(".vec", "_backward.default"), g, list(g.tensor.shape[2:]),
                  list(x.tensor.shape), *rest, *scales)


@rule("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def _grid_sampler(p: Pullback, g: Node, x: Node, grid: Node, mode: int, padding: int, align_corners: bool) -> Grads:
    mask = [p.needs(x), p.needs(grid)]
    back = p.call(p.node.op.name.replace(".default", "_backward.default"), g, x, grid, mode, padding, align_corners,
                  mask)
    return p.parts(back, mask)


@rule("aten.bernoulli.p", "aten.bernoulli.default", "aten.bernoulli.Tensor")
def _random(p: Pullback, g: Node, x: Node, *rest: Any, **options: Any) -> Grads:
    return (p.zeros_like(g),)
