"""Gradients of normalisations, attention, pooling, resampling and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from ...ir.graph import Node
from ...ir.op import NotCovered
from ...ir.ops.philox import MASKED
from ..pullback import Pullback
from .registry import by_kernel, rule

Grads = Sequence[Any]


by_kernel("native_layer_norm", results=("", "mean", "rstd"))
by_kernel("native_group_norm", results=("", "mean", "rstd"), once=True)
by_kernel("native_batch_norm", results=("", "save_mean", "save_invstd"), train=itemgetter("training"))


@rule("aten._native_batch_norm_legit_functional.default")
def _batch_norm_functional(p: Pullback, g: Node, mean_grad: Any, rstd_grad: Any, new_mean_grad: Any, new_var_grad: Any,
                           x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node, training: bool,
                           momentum: float, eps: float) -> Grads:
    if new_mean_grad is not None or new_var_grad is not None:
        raise NotCovered("gradients of running statistics")
    # running statistics count only where they are used, and then they are not updated
    own = None if training else mean, None if training else var
    mask = [p.needs(x), p.needs(weight), p.needs(bias)]
    back = p.call("aten.native_batch_norm_backward.default", g, x, weight, *own, p.part(1), p.part(2), training, eps,
                  mask)
    return p.parts(back, mask)


@rule("aten.convolution.default")
def _convolution(p: Pullback, g: Node, x: Node, weight: Node, bias: Node | None, stride: Any, padding: Any,
                 dilation: Any, transposed: bool, output_padding: Any, groups: int) -> Grads:
    mask = [p.needs(x), p.needs(weight), p.needs(bias)]
    sizes = [p.node.tensor.shape[1]] if bias is not None else None
    back = p.call("aten.convolution_backward.default", g, x, weight, sizes, stride, padding, dilation, transposed,
                  output_padding, groups, mask)
    return p.parts(back, mask)


def _length(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda given: given[name].tensor.shape[-2]


def _nothing(given: dict[str, Any]) -> None:
    """Of sequences of other lengths than their neighbours'."""


def _logsumexp(given: dict[str, Any]) -> Any:
    if not given["compute_log_sumexp"]:
        raise NotCovered("attention without what its gradient needs")
    return given["log_sumexp"]


by_kernel("_scaled_dot_product_flash_attention_for_cpu", results=("out", "logsumexp"))
by_kernel("_scaled_dot_product_flash_attention", cum_seq_q=_nothing, cum_seq_k=_nothing, max_q=_length("query"),
          max_k=_length("key"), results=("out", "logsumexp", "", "", "", "", "philox_seed", "philox_offset"))
by_kernel("_scaled_dot_product_efficient_attention", logsumexp=_logsumexp,
          results=("out", "log_sumexp", "philox_seed", "philox_offset"))
by_kernel("_scaled_dot_product_cudnn_attention", logsumexp=_logsumexp, cum_seq_q=_nothing, cum_seq_k=_nothing,
          max_q=_length("query"), max_k=_length("key"),
          results=("out", "log_sumexp", "", "", "", "", "philox_seed", "philox_offset"))
by_kernel("max_pool2d_with_indices", "max_pool3d_with_indices", results=("", "indices"))
by_kernel("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_prelu_kernel",
          "grid_sampler_2d", "grid_sampler_3d")


@rule("aten.native_dropout.default")
def _dropout(p: Pullback, g: Node, mask_grad: Any, x: Node, probability: float, train: Any) -> Grads:
    keep = 1.0 - probability
    return (p.call("aten.native_dropout_backward.default", g, p.part(1), 1.0 / keep if keep else 0.0),)


@rule(MASKED)
def _masked(p: Pullback, g: Node, x: Node, mask: Node, probability: float) -> Grads:
    return (p.call("aten.native_dropout_backward.default", g, mask, 1.0 / (1.0 - probability)),)


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


@rule("aten.bernoulli.p", "aten.bernoulli.default", "aten.bernoulli.Tensor")
def _random(p: Pullback, g: Node, x: Node, *rest: Any, **options: Any) -> Grads:
    return (p.zeros_like(g),)
