"""Linear algebra on a GPU: matrices that cannot be factored raise as in eager, and what ran before that has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
Tensor = torch.Tensor
NAMES = ["cholesky", "inv", "lu_factor", "ldl_factor", "solve", "tensorinv", "eigh", "eigvalsh", "svd", "qr", "det",
         "slogdet", "pinv", "matrix_power", "solve_triangular", "lstsq", "cond"]


def call(name: str, x: Tensor) -> Any:
    other = torch.ones(3, 2, device=x.device)
    more: dict[str, tuple[Any, ...]] = {"solve": (other,), "lstsq": (other,), "matrix_power": (-1,)}
    if name == "tensorinv":
        return torch.linalg.tensorinv(x, 1)
    if name == "solve_triangular":
        return torch.linalg.solve_triangular(x, other, upper=True)
    return getattr(torch.linalg, name)(x, *more.get(name, ()))


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except RuntimeError as error:
        return type(error), str(error)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("name", NAMES)
def test_like_eager(name: str, batch: tuple[int, ...], needs_grad: bool, mode: str, cuda: torch.device) -> None:
    if name == "tensorinv" and batch:
        pytest.skip("takes no batches")

    def fn(x: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        result = call(name, x)
        count.add_(1)
        part = result if isinstance(result, Tensor) else result[0]
        return part * 2

    jitted = jitpy.jit(fn, mode=mode)
    whole = torch.eye(3, device=cuda).expand(*batch, 3, 3)
    bad = whole * (float("nan") if name in ("eigh", "eigvalsh", "svd") else 0.0)
    for values in (whole, bad, whole * 2, bad, whole * 3):
        x = values.clone().requires_grad_(needs_grad)
        wanted, found = torch.zeros((), device=cuda), torch.zeros((), device=cuda)
        expected, got = outcome(fn, x, wanted), outcome(jitted, x, found)
        if isinstance(expected, tuple):
            assert got == expected
        else:
            assert isinstance(got, Tensor), got
            torch.testing.assert_close(got, expected, equal_nan=True)
            assert got.requires_grad == expected.requires_grad
        assert torch.equal(found, wanted)
