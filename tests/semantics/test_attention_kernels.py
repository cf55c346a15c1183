"""Which kernels scaled_dot_product_attention may be: chosen outside, between calls, and by the function itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import jitpy
from tests.semantics.harness import case, make_test


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                      SDPBackend.CUDNN_ATTENTION]):
        yield


def attention(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q).sum()


def by_hand(q: torch.Tensor) -> torch.Tensor:
    return (q @ q.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ q


@pytest.mark.parametrize("requires_grad", [False, True])
def test_kernels_that_are_forbidden_between_calls(requires_grad: bool) -> None:
    q = torch.randn(2, 2, 4, 8, requires_grad=requires_grad)
    fast = jitpy.jit(attention)
    for _ in range(3):
        torch.testing.assert_close(fast(q), attention(q))
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):  # there is none for CPUs
        for function in (attention, fast, fast):
            with pytest.raises(RuntimeError, match="No viable backend"):
                function(q)
    torch.testing.assert_close(fast(q), attention(q))


def test_the_formula_has_second_derivatives_to_the_bit() -> None:
    """A kernel's numbers are others than the formula's: what is computed is what was asked for."""
    q = torch.randn(2, 2, 4, 8, requires_grad=True)
    fast = jitpy.jit(attention, backend="eager")
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(backend):
            wanted, found = attention(q), fast(q)
            assert torch.equal(found, wanted)
            assert torch.equal(*(torch.autograd.grad(loss, q)[0] for loss in (found, wanted)))


def test_attention_by_hand_needs_no_kernel() -> None:
    q = torch.randn(2, 2, 4, 8)
    fast = jitpy.jit(by_hand)
    for backend in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            torch.testing.assert_close(fast(q), by_hand(q))


def test_no_kernel_is_left() -> None:
    def fn(q: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return attention(q * 2)

    fast, q = jitpy.jit(fn), torch.randn(2, 2, 4, 8)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="No viable backend"):
            fast(q)
        assert torch.backends.cuda.flash_sdp_enabled()


def qkv() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, 2, 4, 8, requires_grad=True) for _ in range(3))


def plain() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, 2, 4, 8) for _ in range(3))


@case(qkv, plain, fullgraph=True, tolerance=1e-6)
def the_formula(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q * 2, k, v, is_causal=True)
    return y + 1, F.scaled_dot_product_attention(q, k, v)


@case(qkv, plain, fullgraph=True)
def with_dropout_and_a_mask(q, k, v):
    with sdpa_kernel([SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, q.detach()[..., :4], dropout_p=0.5, scale=0.3)


@case(qkv, plain, fullgraph=True)
def the_usual_kernel(q, k, v):
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v)


@case(qkv, fullgraph=True)
def switches_read(q, k, v):
    read = torch.backends.cuda
    found = [read.flash_sdp_enabled(), read.math_sdp_enabled()]
    with sdpa_kernel(SDPBackend.MATH):
        found += [read.flash_sdp_enabled(), read.math_sdp_enabled(), read.mem_efficient_sdp_enabled()]
    return q + k, [*found, read.flash_sdp_enabled()]


@case(qkv)
def at_a_break(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, k, v)
        jitpy.graph_break()
        return y + F.scaled_dot_product_attention(k, q, v), torch.backends.cuda.flash_sdp_enabled()


@case(qkv, fullgraph=True, factory=True)
def left_switched_off():
    def fn(q, k, v):
        torch.backends.cuda.enable_flash_sdp(False)
        y = F.scaled_dot_product_attention(q, k, v)
        torch.backends.cuda.enable_flash_sdp(True)
        return y

    return fn


@case(lambda: (torch.randn(3),), fullgraph=True)
def settings_read(x):
    return (x + 1, torch.get_num_threads(), torch.is_anomaly_enabled(), torch.get_float32_matmul_precision(),
            torch.backends.mkldnn.enabled)


@case(lambda: (torch.randn(1, 2, 4, 8, dtype=torch.complex64),), lambda: (torch.ones(1, 2, 4, 8),))
def refused_of_complex_numbers(q):
    try:
        return F.scaled_dot_product_attention(q, q, q)
    except (RuntimeError, NotImplementedError) as error:
        return type(error), str(error)


test_all = make_test(__name__)
