"""The largest number of a few rows: each row's is found by a program of its own, and readers compute the whole's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends.triton import plan_graph
from jitpy.runtime.gpu.compile import Target, compile_kernels
from tests.graph_tools import trace
from tests.triton.cases import BF16, Tensor
from tests.triton.test_products import launches, run

pytest.importorskip("triton")
FLOAT8 = torch.float8_e4m3fn


def quantised(x: Tensor) -> Tensor:
    """Floats of 8 bits with one factor for all."""
    scale = x.abs().amax((0, 2), keepdim=True).float() / 448
    return (x.float() / scale).clamp(-448, 448).to(FLOAT8)


def of_norm(x: Tensor, weight: Tensor) -> Tensor:
    return quantised(F.layer_norm(x, (512,), weight))


def of_smallest(x: Tensor, weight: Tensor) -> Tensor:
    return x - x.min() * weight


@pytest.mark.parametrize("fn, kernels", [(of_norm, 2), (of_smallest, 2), (lambda x, w: quantised(x), 2)])
@pytest.mark.parametrize("rows", [2, 13, 32])
@pytest.mark.parametrize("unknown", [False, True])
def test_readers_compute_it(fn: object, kernels: int, rows: int, unknown: bool) -> None:
    x, weight = torch.randn(rows, 1, 512).to(BF16), torch.rand(512).to(BF16)
    if unknown:
        x[-1, 0, 7] = float("nan")
    with torch.no_grad():
        graph = trace(fn, (x, weight))
        plan, wanted = plan_graph(graph), fn(x, weight)
    assert len(launches(plan)) == kernels
    assert compile_kernels([step.kernel for step in launches(plan)], Target("cuda", 90))
    (found,) = run(plan, (x, weight))
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=2e-2, equal_nan=True)
    assert found.isnan().sum() == wanted.isnan().sum()


@pytest.mark.parametrize("rows, length", [(33, 512), (16, 256), (1, 512)])
def test_others_are_one_reduction(rows: int, length: int) -> None:
    """Many rows, or short ones."""
    x = torch.randn(rows, 1, length).to(BF16)
    plan = plan_graph(trace(quantised, (x,)))
    assert len(launches(plan)) == 1
    assert torch.equal(run(plan, (x,))[0].float(), quantised(x).float())
