"""`torch._check`: a check that holds is no break, one that fails raises as in eager."""

from __future__ import annotations

import pytest
import torch

import jitpy


def checked(x: torch.Tensor, size: int) -> torch.Tensor:
    y = x * 2
    torch._check(size > 2)
    torch._check_value(x.shape[0] == size, lambda: f"not {size}")
    return y


def test_checks_that_hold_are_captured() -> None:
    jitted = jitpy.jit(checked, fullgraph=True)
    for size in (3, 4, 5):
        x = torch.randn(size)
        assert torch.equal(jitted(x, size), checked(x, size))


@pytest.mark.parametrize("size", [1, 4])
def test_checks_that_fail_raise_as_in_eager(size: int) -> None:
    jitted = jitpy.jit(checked)
    x = torch.randn(3)
    for given in (3, size, 3, size):
        try:
            expected = checked(x, given)
        except (RuntimeError, ValueError) as error:
            with pytest.raises(type(error)) as caught:
                jitted(x, given)
            assert str(caught.value) == str(error)
        else:
            assert torch.equal(jitted(x, given), expected)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize("name", ["cholesky", "inv", "lu_factor", "solve", "tensorinv", "eigh", "matrix_power"])
def test_matrices_that_cannot_be_factored_raise_as_in_eager(name: str, needs_grad: bool, is_read: bool,
                                                            backend: str) -> None:
    more = {"solve": (torch.ones(3, 2),), "tensorinv": (1,), "matrix_power": (-1,)}.get(name, ())

    def fn(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        result = getattr(torch.linalg, name)(x, *more)
        count.add_(1)
        part = result if isinstance(result, torch.Tensor) else result[0]
        return part * 2 if is_read else x * 2

    jitted = jitpy.jit(fn, backend=backend)
    singular = torch.full((3, 3), float("nan")) if name == "eigh" else torch.zeros(3, 3)
    for values in (torch.eye(3), singular, torch.eye(3) * 2, singular):
        x = values.requires_grad_(needs_grad)
        wanted, found = torch.zeros(()), torch.zeros(())
        try:
            expected = fn(x, wanted)
        except RuntimeError as error:
            with pytest.raises(type(error)) as caught:
                jitted(x, found)
            assert str(caught.value) == str(error)
        else:
            assert torch.equal(jitted(x, found), expected)
        assert torch.equal(found, wanted)
