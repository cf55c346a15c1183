"""Gradients of Fourier transforms, transforms the other way, and of conjugation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.graph import Node
from ...ir.ops.layout import normalize_dim
from ..pullback import Pullback
from .registry import rule

Grads = tuple[Any, ...]


@rule("aten._fft_c2c.default", complex=True)
def _complex_to_complex(p: Pullback, g: Node, x: Node, dim: Sequence[int], normalization: int, forward: bool) -> Grads:
    return (p.call("aten._fft_c2c.default", g, list(dim), normalization, not forward),)


@rule("aten._fft_r2c.default", complex=True)
def _real_to_complex(p: Pullback, g: Node, x: Node, dim: Sequence[int], normalization: int, onesided: bool) -> Grads:
    last = normalize_dim(dim[-1], x.tensor.ndim)
    if onesided:  # the half that is not there has no gradient
        missing = x.tensor.shape[last] - g.tensor.shape[last]
        g = p.call("aten.constant_pad_nd.default", g, [0, 0] * (x.tensor.ndim - 1 - last) + [0, missing])
    full = p.call("aten._fft_c2c.default", g, list(dim), normalization, False)
    return (p.call("aten.select.int", p.call("aten.view_as_real.default", full), -1, 0),)


@rule("aten._fft_c2r.default", complex=True)
def _complex_to_real(p: Pullback, g: Node, x: Node, dim: Sequence[int], normalization: int, size: Any) -> Grads:
    last = normalize_dim(dim[-1], x.tensor.ndim)
    half = p.call("aten._fft_r2c.default", g, list(dim), normalization, True)
    end = g.tensor.shape[last] - half.tensor.shape[last] + 1
    # what stands for two elements of the whole spectrum counts twice
    twice = p.mul(p.call("aten.slice.Tensor", half, last, 1, end, 1), 2)
    rest = p.call("aten.slice.Tensor", half, last, end, half.tensor.shape[last], 1)
    return (p.call("aten.cat.default", [p.call("aten.slice.Tensor", half, last, 0, 1, 1), twice, rest], last),)


@rule("aten._conj.default", complex=True)
def _conjugate(p: Pullback, g: Node, x: Node) -> Grads:
    # not a pending one: what torch's formulas do to a gradient was written down for one without
    return (p.call("aten.conj_physical.default", g),)
