"""Parts of tensors whose sizes change from call to call, counted from the end or beyond the bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitpy


def _written(x):
    y = x.clone()
    y[:, -x.shape[1]:-1] = 7
    y[:, -100:-2] *= 2
    return y


PROGRAMS: dict[str, Any] = {
    "as many as there are": lambda x: x[:, -x.shape[1]:] * 2,
    "all but the first": lambda x: x[:, -x.shape[1] + 3:] * 2,
    "more than there are": lambda x: x[:, -100:] * 2,
    "twice as many": lambda x: x[:, -2 * x.shape[1]:] * 2,
    "both ends": lambda x: x[:, -x.shape[1]:-3] * 2,
    "behind the end": lambda x: x[:, x.shape[1] + 2:].sum(1) * 2,
    "in steps": lambda x: x[:, -x.shape[1] + 1::2] * 2,
    "rows": lambda x: x[-x.shape[0]:, 1] * 2,
    "of what was joined": lambda x: torch.cat([x, x], 1)[:, -x.shape[1]:].contiguous(),
    "narrow": lambda x: x.narrow(1, -x.shape[1], x.shape[1] - 1) * 2,
    "narrow by keywords": lambda x: torch.narrow(x, dim=1, start=-x.shape[1] + 1, length=4) * 2,
    "put in": lambda x: torch.slice_scatter(x, x[:, :4] * 3, 1, -x.shape[1], -x.shape[1] + 4) * 2,
    "put in by keywords": lambda x: torch.slice_scatter(x, x[:, :4] * 3, dim=1, start=-x.shape[1] + 2,
                                                        end=-x.shape[1] + 6) * 2,
    "put in all": lambda x: torch.slice_scatter(x, x * 3, 1, -100) * 2,
    "written": _written,
    "of as many as data decides": lambda x: x[x[:, 0] > 0.3][-3:] * 2,
}


@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_part(name: str, grad: bool) -> None:
    program = PROGRAMS[name]
    compiled = jitpy.jit(program)
    torch.manual_seed(0)
    for rows, columns in ((2, 12), (3, 17), (3, 17), (4, 9)):
        x = torch.randn(rows, columns)
        mine, theirs = x.clone().requires_grad_(grad), x.clone().requires_grad_(grad)
        found, expected = compiled(mine), program(theirs)
        torch.testing.assert_close(found, expected)
        if grad:
            weights = torch.arange(float(expected.numel())).view(expected.shape)
            (found * weights).sum().backward()
            (expected * weights).sum().backward()
            torch.testing.assert_close(mine.grad, theirs.grad)


def test_narrow_out_of_range_raises() -> None:
    def fn(x):
        return x.narrow(1, -x.shape[1] - 1, 2) * 2

    compiled = jitpy.jit(fn)
    for columns in (4, 5, 6):
        with pytest.raises((IndexError, RuntimeError)) as expected:
            fn(torch.ones(2, columns))
        with pytest.raises(expected.type, match="."):
            compiled(torch.ones(2, columns))
