"""Calls that put elements into their operand itself, on a GPU and in CUDA graphs; additions in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jitpy
from tests.triton.test_calls_in_place import PROGRAMS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
Tensor = torch.Tensor


def add(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    x.index_add_(0, i, s)
    return x[0] * 2


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("program", [*PROGRAMS, add], ids=lambda p: p.__name__)
def test_like_eager(program: Callable[..., Tensor], mode: str, cuda: torch.device) -> None:
    jitted = jitpy.jit(program, mode=mode)
    x = torch.randn(9, 4, device=cuda)
    mine = x.clone()
    for seed in range(8):
        torch.manual_seed(seed)
        i, s = torch.randperm(5, device=cuda)[:3], torch.randn(3, 4, device=cuda)
        wanted, found = program(x, i, s), jitted(mine, i, s)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(mine, x)
        if seed == 5:  # the same in another place
            mine = mine.clone()
