"""What eager's kernels refuse, compiled code refuses: kernels of our own would take it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jitpy

CALLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype]] = {
    "argmax": (lambda x: torch.argmax(x, 1), torch.bool),
    "argmin": (lambda x: torch.argmin(x), torch.bool),
    "trunc": (lambda x: torch.trunc(x) | x, torch.bool),
    "floor": (lambda x: torch.floor(x), torch.bool),
    "glu": (lambda x: F.glu(x, -1), torch.bool),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x, x + 1), torch.uint8),
    "smooth_l1_long": (lambda x: F.smooth_l1_loss(x, x + 1), torch.int64),
    "exp": (lambda x: x.exp() + 1, torch.int64),
    "sum": (lambda x: x.sum(0), torch.bool),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused_alike(name: str) -> None:
    fn, dtype = CALLS[name]
    x = torch.ones(4, 6).to(dtype)

    def outcome(called: Callable[[torch.Tensor], torch.Tensor]) -> object:
        try:
            return called(x).tolist()
        except (RuntimeError, NotImplementedError) as error:
            return type(error), str(error)

    jitted = jitpy.jit(fn)
    for _ in range(2):
        assert outcome(jitted) == outcome(fn)
