"""Writes at one place that the graph computes: kernels of their own, in the memory of what they write to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitpy

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool,
          torch.complex64]
LAYOUTS: dict[str, Any] = {
    "row-major": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "with gaps": lambda x: torch.cat([x, x], -1)[..., ::2],
}


def written(x: torch.Tensor, i: torch.Tensor, value: torch.Tensor) -> Any:
    row, column = i[:1], i[1:2]
    y = x.clone()
    y[row, column] = value[0, 0]
    y[row] = value[1]
    y[:, column] = value[:, 1:2]
    y.T[row] = value[:, 2]
    z = y * 1
    z[row[None], column] = z[column, row]
    x[column] = value[0] + value[1]
    x[row, row] = value[2, 2]
    return y, z, x


def made(dtype: torch.dtype, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, value = (LAYOUTS[layout]((torch.randn(3, 3) * 5).to(dtype)) for _ in range(2))
    return x, value


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_place_as_eager(dtype: torch.dtype, layout: str) -> None:
    fast = jitpy.jit(written, fullgraph=True)
    for places in ([0, 2], [-1, 1], [2, -3], [1, 1]):
        found, wanted = (run(*made(dtype, layout)[:1], torch.tensor(places), made(dtype, layout)[1])
                         for run in (fast, written))
        for a, b in zip(found, wanted, strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()


def test_places_outside_are_errors() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x[i] = 1.0
        return x

    fast = jitpy.jit(fn)
    for place in (4, -5):
        x = torch.zeros(4)
        with pytest.raises(IndexError, match="out of bounds"):
            fast(x, torch.tensor([place]))
        assert not x.any()
    assert fast(torch.zeros(4), torch.tensor([-4])).tolist() == [1, 0, 0, 0]


def test_a_large_array_is_not_copied() -> None:
    def fn(weights: torch.Tensor, places: torch.Tensor, new: torch.Tensor) -> None:
        for k in range(3):
            weights[places[k:k + 1]] = new[k].abs()

    weights = torch.zeros(100_000)
    report = jitpy.explain(fn)(weights, torch.tensor([5, 5, 99_999]), torch.tensor([1.0, -2, 3]))
    assert weights[5] == 2 and weights[-1] == 3 and weights.sum() == 5
    assert [kernel.style for kernel in report.kernels] == ["scatter"] * 3 and not report.frames[0].eager


def test_gradients_through_a_write() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[i] = value * 3
        return (y * torch.arange(4.0)).sin().sum()

    grads = []
    for run in (fn, jitpy.jit(fn, fullgraph=True)):
        x, value = torch.arange(4.0).requires_grad_(), torch.tensor(0.5, requires_grad=True)
        run(x, torch.tensor([2]), value).backward()
        grads.append((x.grad, value.grad))
    torch.testing.assert_close(grads[0], grads[1])
