"""Floats of 8 bits in kernels: converted as torch converts them, and as the weights of products."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends.triton import plan_graph
from jitpy.runtime.gpu.compile import Target, compile_kernels
from jitpy.runtime.plan import CallStep
from tests.graph_tools import trace
from tests.triton.cases import BF16, HALF, Tensor
from tests.triton.test_products import launches, run, small

pytest.importorskip("triton")

KINDS = (torch.float8_e4m3fn, torch.float8_e5m2)
#: the ends of the ranges, where numbers are rounded to the largest one or overflow
ENDS = [448, 463.9, 464, 464.1, 480, 57344, 61439, 61440, 65536, float("inf"), float("nan"), 0.0, 2.0**-9, 2.0**-17]


def numbers() -> Tensor:
    scales = [1e-9, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6]
    ends = torch.tensor(ENDS)
    return torch.cat([*(torch.randn(500) * scale for scale in scales), ends, -ends])


def same(found: Tensor, wanted: Tensor) -> bool:
    """To the bit, but that all NaN are alike."""
    if found.dtype in KINDS:
        return same(found.float(), wanted.float())
    both = (found, wanted)
    signs = torch.equal(*(torch.signbit(one.nan_to_num(0)) for one in both))
    return found.dtype is wanted.dtype and signs and bool(torch.isclose(*both, 0, 0, equal_nan=True).all())


def computed(fn: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """By one kernel, which also compiles for a GPU."""
    plan = plan_graph(trace(fn, inputs), products="all")
    assert len(launches(plan)) == 1 and not any(isinstance(step, CallStep) for step in plan.steps)
    assert compile_kernels([step.kernel for step in launches(plan)], Target("cuda", 90))
    return run(plan, inputs)[0]


@pytest.mark.parametrize("source", [torch.float32, BF16, HALF], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_conversions_are_torchs(kind: torch.dtype, source: torch.dtype) -> None:
    x = numbers().to(source)
    small = x.to(kind)
    assert same(computed(lambda x: x.to(kind), x), small)
    assert same(computed(lambda x: (x * 2).to(kind), x), (x * 2).to(kind))
    assert same(computed(lambda x: x.to(source) * 2, small), small.to(source) * 2)
    assert same(computed(lambda x: (x * 2).to(kind).float() + 1, x), (x * 2).to(kind).float() + 1)
    assert same(computed(lambda x: x.to(kind).float(), x), small.float())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_is_unpacked_that_was_packed(kind: torch.dtype) -> None:
    """ptxas 12.8 mixes up registers there."""
    plan = plan_graph(trace(lambda x: (x.to(kind), x.to(kind).to(BF16) * 2), (numbers(),)))
    (binary,) = compile_kernels([step.kernel for step in launches(plan)], Target("cuda", 90))
    assert "satfinite" in binary.assembly and not re.search(r"cvt\.rn\.f16x2\.e[45]m[23]x2", binary.assembly)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_amax_scale_and_cast_are_one_kernel(kind: torch.dtype) -> None:
    x = small(24, 96)

    def quantised(x: Tensor) -> Tensor:
        scale = x.abs().amax(1, keepdim=True).float().clamp(min=1e-12) / 448
        return (x.float() / scale).clamp(-448, 448).to(kind)

    assert same(computed(quantised, x), quantised(x))


@pytest.mark.parametrize("rows", [1, 16, 40])
@pytest.mark.parametrize("kind", [*KINDS, torch.int8], ids=str)
def test_weights_of_8_bits_are_converted_in_the_product(kind: torch.dtype, rows: int) -> None:
    x, scale = small(rows, 208), torch.rand(72, 1)
    weight = (torch.randn(72, 208) * 20).to(kind)

    def fn(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        return F.linear(x, (weight.float() * scale).to(BF16)).relu()

    exact = F.linear(x.double(), (weight.float() * scale).to(BF16).double()).relu()
    found = computed(fn, x, weight, scale)
    assert (found - exact).norm() <= 4e-3 * exact.norm()


def test_float8_is_moved_by_kernels_and_else_eagers() -> None:
    """A transposed copy is a kernel's; a comparison is not."""
    x = torch.randn(24, 40).to(KINDS[0])
    assert same(computed(lambda x: x.t().contiguous(), x), x.t().contiguous())
    plan = plan_graph(trace(lambda x: x.t().contiguous() == x.t(), (x,)))
    assert any(isinstance(step, CallStep) for step in plan.steps)


def test_padding_by_nothing_behind_a_checked_position() -> None:
    weight, ids = torch.randn(8, 16), torch.tensor([1, 7, 3])

    def fn(weight: Tensor, ids: Tensor) -> Tensor:
        return F.pad(F.embedding(ids, weight) * 2, (0, 0))

    assert torch.equal(computed(fn, weight, ids), fn(weight, ids))
