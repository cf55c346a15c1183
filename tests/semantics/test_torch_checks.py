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
