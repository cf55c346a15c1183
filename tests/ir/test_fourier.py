"""Layouts of Fourier transforms: those of the kernels."""

from __future__ import annotations

import itertools

import pytest
import torch

import jitpy
from jitpy.ir import SizeEnv, ops
from tests.counting import variants
from tests.ir.op_samples import spec_of

SHAPES = [(6,), (4, 6), (1, 4), (5, 6, 7), (3, 4, 5, 6), (2, 3, 4, 5, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layouts_are_those_of_kernels(shape: tuple[int, ...]) -> None:
    env = SizeEnv()
    places = list(itertools.permutations(range(len(shape))))
    for place in places[:: max(1, len(places) // 6)]:
        real = torch.randn(shape).permute(place)
        wide = torch.randn(shape, dtype=torch.complex128).permute(place)
        for rank in range(1, len(shape) + 1):
            axes = list(itertools.permutations(range(len(shape)), rank))
            for dims in map(list, axes[:: max(1, len(axes) // 6)]):
                calls = [("aten._fft_c2c.default", (wide, dims, 1, True)),
                         ("aten._fft_r2c.default", (real, dims, 2, True)),
                         ("aten._fft_c2r.default", (wide, dims, 0, max(2 * (wide.shape[dims[-1]] - 1), 1)))]
                for name, (x, *rest) in calls:
                    found = ops.infer(ops.get(name), env, (spec_of(x), *rest))
                    assert found == spec_of(ops.get(name).target(x, *rest)), (name, x.stride(), dims)


def _spectral(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    spectrum = torch.fft.rfftn(x, dim=(-2, -1))
    return spectrum, torch.fft.irfft2(spectrum * 2, s=x.shape[-2:])


def test_sizes_are_symbolic() -> None:
    jitpy.reset()
    jitted = jitpy.jit(_spectral, fullgraph=True)
    for sizes in ((2, 6, 8), (3, 7, 9), (4, 5, 12), (5, 8, 11)):
        x = torch.randn(sizes)
        torch.testing.assert_close(jitted(x), _spectral(x))
        assert [t.stride() for t in jitted(x)] == [t.stride() for t in _spectral(x)]
    assert variants() == 2
