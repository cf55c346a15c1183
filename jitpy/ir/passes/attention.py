"""Attention written out by hand, turned into torch's fused kernel.

`matmul(softmax(matmul(q, k.mT) * scale + mask, -1), v)` materialises the scores twice; `scaled_dot_product_attention`
(FlashAttention, https://arxiv.org/abs/2205.14135) never does. Rounding differs, by no more than between eager's own two
ways, so this is no part of the exact rewrites of `rules.py`: a backend applies it to graphs in which nothing needs a
gradient.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..builder import Builder
from ..graph import Node
from ..op import NotCovered
from ..ops.nn import attention_kernel, gpu_attention
from ..sizes_expr import floordiv
from ..spec import Dim, TensorSpec
from .masked_attention import masked_attention
from .masks import Band, known_mask
from .pattern import P, Rule, Rules, rule

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _attention(
    b: Builder, q: Node, kt: Node, v: Node, scale: Any, mask: Node | None = None, causal: bool = False
) -> Node | None:
    """The fused call, where shapes, dtypes and devices are those that it takes; None leaves the graph as it is."""
    if mask is not None and (found := masked_attention(b, q, kt, v, float(scale), mask, "added")) is not None:
        return found
    specs: list[Any] = [n.spec for n in (q, kt, v)]
    if not all(isinstance(s, TensorSpec) and s.dtype in _DTYPES and s.is_static for s in specs):
        return None
    dtype, rank = specs[0].dtype, specs[0].ndim
    if any(s.dtype != dtype or s.ndim != rank or s.requires_grad for s in specs) or rank not in (3, 4):
        return None
    if any(s.shape[:-2] != specs[0].shape[:-2] for s in specs) or specs[2].shape[-1] != specs[0].shape[-1]:
        return None
    if mask is not None and (dtype is torch.float16 or not _additive(mask.spec, specs, dtype)):
        return None  # the least float16 takes in what is added to it, and torch's kernels add in float32
    k = b.call("aten.transpose.int", kt, -2, -1)
    if rank == 3:
        q, k, v = (b.call("aten.unsqueeze.default", n, 0) for n in (q, k, v))
        mask = b.call("aten.unsqueeze.default", mask, 0) if mask is not None and mask.tensor.ndim == 3 else mask
    kernel = _kernel(b, q, k, v, mask, causal, float(scale))
    if kernel is None:
        return None
    name, arguments, options = kernel
    fused = b.getitem(b.call(name, *arguments, **options), 0)
    if mask is not None:
        fused = b.call("aten.masked_fill.Scalar", fused, _hides_all(b, mask), math.nan)
    if rank == 3:
        fused = b.call("aten.squeeze.dim", fused, 0)
    if fused.tensor.is_contiguous():
        return fused
    return b.call("aten.clone.default", fused, memory_format=torch.contiguous_format)


def _hides_all(b: Builder, mask: Node) -> Node:
    """The rows of an additive mask for which softmax gives NaN, and the fused kernels zeros."""
    return b.call("aten.eq.Scalar", b.call("aten.amax.default", mask, [-1], True), -math.inf)


def _kernel(b: Builder, q: Node, k: Node, v: Node, mask: Node | None, causal: bool,
            scale: float) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
    """The kernel by name, which runs whatever kernels the program allows later: it does not know that there is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says why it takes no kernel
        try:
            if mask is None or q.tensor.device.type == "cpu":
                return attention_kernel(b.env, q, k, v, mask, 0.0, causal, scale=scale)
            found = gpu_attention(b.env, (q.tensor, k.tensor, v.tensor), mask.tensor, 0.0, causal, False)
        except (NotCovered, RuntimeError):  # the latter where no kernel is allowed now
            return None
    bias = kernel_bias(b, mask, q, k) if found is not None else None
    if found is None or bias is None:
        return None
    name, arguments = found
    return name, (q, k, v, bias, *arguments[1:]), {"scale": scale}


#: Rows of a mask start at multiples of so many elements.
_MASK_ALIGNMENT = 16


def kernel_bias(b: Builder, mask: Node, q: Node, k: Node) -> Node | None:
    """A mask as the fused kernels of GPUs take it: added to the scores, of their shape, in aligned rows. None where its
    shape is odd."""
    bias = as_bias(b, mask, q.tensor.dtype) if mask.tensor.dtype is torch.bool else mask
    keys = bias.tensor.shape[-1]
    if bias.tensor.ndim not in (2, 4):
        return None
    if bias.tensor.stride[-1] != 1 or not all(_is_multiple(step) for step in bias.tensor.stride[:-1]):
        padded = _MASK_ALIGNMENT * floordiv(keys + _MASK_ALIGNMENT - 1, _MASK_ALIGNMENT)
        bias = b.call("aten.constant_pad_nd.default", bias, [0, padded - keys])
        bias = b.call("aten.slice.Tensor", bias, -1, 0, keys)
    return b.call("aten.expand.default", bias, [*q.tensor.shape[:-1], k.tensor.shape[-2]])


def _is_multiple(step: Dim) -> bool:
    """Whether rows of a mask that are so far apart start where fused kernels want them."""
    return isinstance(step, int) and step % _MASK_ALIGNMENT == 0


def as_bias(b: Builder, mask: Node, dtype: torch.dtype) -> Node:
    """A mask of what takes part, as what is added to the scores."""
    zeros = b.call("aten.full.default", [], 0.0, dtype=dtype, device=mask.tensor.device)
    return b.call("aten.where.ScalarOther", mask, zeros, -math.inf)


def _additive(mask: Any, specs: list[Any], dtype: torch.dtype) -> bool:
    """Whether a mask can be added to the scores inside the kernel."""
    if not isinstance(mask, TensorSpec) or mask.dtype != dtype or not mask.is_static or mask.ndim > specs[0].ndim:
        return False
    scores = (*specs[0].shape[:-1], specs[1].shape[-1])
    return len(mask.shape) >= 2 and \
        all(m in (1, s) for m, s in zip(reversed(mask.shape), reversed(scores), strict=False))


def _hidden(b: Builder, q: Node, kt: Node, v: Node, scale: Any, hidden: Node, shown: bool) -> Node | None:
    """Attention with a mask of the keys that are hidden, or `shown`. The fused call takes the causal one only: a row in
    which all is hidden is NaN in eager, but not there."""
    return _causal(b, q, kt, v, scale, hidden, shown) or \
        masked_attention(b, q, kt, v, float(scale), hidden, "shown" if shown else "hidden")


def _causal(b: Builder, q: Node, kt: Node, v: Node, scale: Any, hidden: Node, shown: bool) -> Node | None:
    """Attention in which each query sees itself and what is before it, where `hidden` (with `shown`: its opposite) is
    the mask that says so."""
    if not all(isinstance(n.spec, TensorSpec) and n.spec.is_static for n in (q, kt)):
        return None
    size, spec = (q.tensor.shape[-2], kt.tensor.shape[-1]), hidden.spec
    if not isinstance(spec, TensorSpec) or spec.dtype is not torch.bool or spec.ndim < 2:
        return None
    if spec.shape[-2:] != size or any(n != 1 for n in spec.shape[:-2]) or known_mask(hidden) != Band(0, below=shown):
        return None
    return _attention(b, q, kt, v, scale, causal=True)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < abs(value) < float("inf")


_Q, _K, _V, _MASK, _C = P.node("q"), P.node("kt"), P.node("v"), P.node("mask"), P.const("c", _finite)
_SCORES = P.matmul(_Q, _K)

_HIDDEN, _OFF = P.node("mask"), P.const("off", lambda value: value == float("-inf"))


def _fused(scores: Any, made: Callable[..., Node | None], name: str) -> Rule:
    """The rule for attention with these scores. Where the weights are kept, their product with the values is all that
    is left to do."""

    def fuse(b: Builder, weights: Node, **given: Any) -> Node | None:
        readers = sum(weights in node.input_nodes() for node in b.graph.nodes)
        return made(b, **given) if readers == 1 and weights not in b.graph.outputs else None

    return rule(P.matmul(P.softmax(scores, -1, ...).named("weights"), _V), fuse, name)


def _rules(scores: Any, scale: Callable[..., float], name: str) -> list[Rule]:
    """Scores as they are, or hidden by `masked_fill`, or shown by `where`."""
    return [
        _fused(scores, lambda b, q, kt, v, c=1.0: _attention(b, q, kt, v, scale(c)), name),
        _fused(P.masked_fill(scores, _HIDDEN, _OFF),
               lambda b, q, kt, v, mask, off, c=1.0: _hidden(b, q, kt, v, scale(c), mask, False), f"{name}, hidden"),
        _fused(P.where(_HIDDEN, scores, _OFF),
               lambda b, q, kt, v, mask, off, c=1.0: _hidden(b, q, kt, v, scale(c), mask, True), f"{name}, shown"),
        _fused(P.add(scores, _MASK),
               lambda b, q, kt, v, mask, c=1.0: _attention(b, q, kt, v, scale(c), mask), f"{name}, masked"),
    ]


#: Tables of rewrites, by how the scores are scaled; each with and without a mask.
ATTENTION = Rules(
    *_rules(P.div(_SCORES, _C), lambda c: 1 / c, "attention, divided"),
    *_rules(P.mul(_SCORES, _C), lambda c: c, "attention, scaled"),
    *_rules(_SCORES, lambda c: 1.0, "attention"),
)
