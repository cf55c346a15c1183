"""Layers whose sizes change: eager's values, and one variant for all sizes after the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy
from tests.counting import variants

SHAPES = ((2, 3, 8, 8), (3, 3, 10, 12), (4, 3, 14, 10), (5, 3, 8, 6))

_weight = torch.randn(4, 3, 3, 3)
_batch_norm = torch.nn.BatchNorm2d(3).eval()
_trained_batch_norm = torch.nn.BatchNorm2d(3)
_instance_norm = torch.nn.InstanceNorm2d(3)

CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "nearest to sizes": lambda x: F.interpolate(x, size=(5, 6)),
    "nearest to a size of a tensor": lambda x: F.interpolate(x, size=x.shape[-1]),
    "nearest by a factor": lambda x: F.interpolate(x, scale_factor=2.0),
    "bilinear": lambda x: F.interpolate(x, size=(5, 6), mode="bilinear", align_corners=False),
    "bilinear by a factor": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, size=(5, 6), mode="bicubic"),
    "bilinear, channels last": lambda x: F.interpolate(x.permute(0, 3, 1, 2), size=(5, 6), mode="bilinear"),
    "linear": lambda x: F.interpolate(x.flatten(2), size=7, mode="linear"),
    "batch_norm by running statistics": lambda x: _batch_norm(x) + 1,
    "batch_norm by the batch": lambda x: F.batch_norm(x, None, None, None, None, True),
    "instance_norm": lambda x: _instance_norm(x),
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive pool of a transposed": lambda x: F.adaptive_avg_pool1d(x.flatten(2).transpose(1, 2), 1),
    "unfold": lambda x: F.unfold(x, 3, padding=1),
    "channels last": lambda x: F.relu(F.conv2d(x.to(memory_format=torch.channels_last), _weight)),
    "grid_sample": lambda x: F.grid_sample(x, x.new_zeros(x.shape[0], 4, 4, 2), align_corners=False),
    "rfft": lambda x: torch.fft.rfft(x).abs(),
}
if torch.torch_version.TorchVersion(torch.__version__) < (2, 12):
    del CASES["rfft"]  # its meta kernel tells other strides than its result has


@pytest.mark.parametrize("name", CASES)
def test_two_variants_serve_all_sizes(name: str) -> None:
    fn = CASES[name]
    jitpy.reset()
    compiled = jitpy.jit(fn, fullgraph=True, backend="eager")
    with torch.no_grad():
        for shape in SHAPES:
            x = torch.randn(shape)
            expected, result = fn(x), compiled(x)
            torch.testing.assert_close(result, expected)
            assert result.stride() == expected.stride()
    assert variants() == 2


_pointwise = torch.nn.Conv2d(16, 32, 1)
_spatial = torch.nn.Conv2d(16, 8, 3, padding=1)

CHANNELS_LAST: dict[str, Callable[[torch.Tensor], Any]] = {
    "convolution": lambda x: _spatial(x),
    "convolution of a transposed": lambda x: _pointwise((x + 1).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)),
    "view of a convolution": lambda x: _pointwise(x).reshape(x.shape[0] * 2, 16, -1) + 1,
    "cat": lambda x: torch.cat([x, x + 1], 1),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "roll": lambda x: x.roll(1, 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "group_norm": lambda x: F.group_norm(x, 4),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_channels_last_stays_so(name: str, grad: bool) -> None:
    """The layout of a result is eager's also where a size is symbolic: views of it depend on that."""
    fn = CHANNELS_LAST[name]
    compiled = jitpy.jit(fn)
    for shape in ((2, 16, 6, 6), (3, 16, 6, 6), (4, 16, 8, 6), (5, 16, 9, 6)):
        x = torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_(grad)
        expected, result = fn(x), compiled(x)
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()


def test_running_statistics_are_updated() -> None:
    twin = torch.nn.BatchNorm2d(3)
    compiled = jitpy.jit(_trained_batch_norm, fullgraph=True, backend="eager")
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), twin(x))
        torch.testing.assert_close(_trained_batch_norm.running_var, twin.running_var)
        assert _trained_batch_norm.num_batches_tracked == twin.num_batches_tracked


@pytest.mark.parametrize("grad", [True, False])
def test_transposed_parameters(grad: bool) -> None:
    weight, x = torch.nn.Parameter(torch.randn(4, 5)), torch.randn(3, 5)

    def fn() -> tuple[torch.Tensor, torch.Tensor]:
        return x @ weight.T, x @ weight.mT

    with torch.set_grad_enabled(grad):
        for found, wanted in zip(jitpy.jit(fn, fullgraph=True)(), fn(), strict=True):
            torch.testing.assert_close(found, wanted)
            assert found.requires_grad == wanted.requires_grad
