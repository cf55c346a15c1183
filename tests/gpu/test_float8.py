"""Conversions from and to floats of 8 bits on the GPU: eager's to the bit."""

from __future__ import annotations

import pytest
import torch

import jitpy
from tests.triton.test_float8 import KINDS, numbers, same


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_all_numbers_of_16_bits(kind: torch.dtype) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16, device="cuda")
    jitted = jitpy.jit(lambda x: x.to(kind), fullgraph=True)
    for source in (torch.bfloat16, torch.float16):
        x = bits.view(source)
        assert same(jitted(x).cpu(), x.to(kind).cpu())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_numbers_of_32_bits_there_and_back(kind: torch.dtype) -> None:
    x = torch.cat([numbers(), torch.arange(-(2**31), 2**31, 9973).int().view(torch.float32)]).cuda()
    jitted = jitpy.jit(lambda x: (x.to(kind), x.to(kind).to(torch.bfloat16) * 2), fullgraph=True)
    for found, wanted in zip(jitted(x), (x.to(kind), x.to(kind).to(torch.bfloat16) * 2), strict=True):
        assert same(found.cpu(), wanted.cpu())
