"""Images in channels-last: results and gradients lie where eager's do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jitpy

FORMATS = {"last": torch.channels_last, "first": torch.contiguous_format}
CASES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "convolution": lambda x, w: F.conv2d(x, w, padding=1),
    "same size": lambda x, w: F.conv2d(x, w, padding="same"),
    "strided, relu": lambda x, w: F.relu(F.conv2d(x, w, stride=2)) + 1,
    "transposed": lambda x, w: F.conv_transpose2d(x, w),
    "by channel": lambda x, w: F.conv2d(x, w[:, :1], padding=1, groups=8),
    "by groups": lambda x, w: F.relu(F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w[:, :4], padding=1, groups=2)),
    "by groups of twelve": lambda x, w: F.conv2d(x.repeat(1, 3, 1, 1).relu(), w.repeat(3, 2, 1, 1)[:, :12], padding=1,
                                                groups=2).relu(),
    "of pixels": lambda x, w: F.conv2d(x.mean((2, 3), keepdim=True), w[:, :, 1:2, 1:2]).sigmoid() * x,
    "behind others": lambda x, w: F.relu(F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w[:, :1], padding=1, groups=8)),
    "of points": lambda x, w: F.conv2d(x, w[:, :, :1, :1]),
    "two": lambda x, w: F.conv2d(F.conv2d(x, w).relu(), w),
    "unshuffled": lambda x, w: F.pixel_unshuffle(x, 2) * w.sum(),
    "gated": lambda x, w: F.glu(F.conv2d(x, w), 1),
    "pooled": lambda x, w: F.avg_pool2d(F.conv2d(x, w, padding=1), 2),
}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_strides(cuda: torch.device, name: str, dtype: torch.dtype, mode: str) -> None:
    if mode != "default" and dtype is not torch.bfloat16:
        pytest.skip("one dtype is enough")
    function = CASES[name]
    for image in FORMATS.values():
        for kernel in FORMATS.values():
            torch.manual_seed(0)
            x = torch.randn(4, 8, 12, 12, device=cuda, dtype=dtype).to(memory_format=image)
            w = (torch.randn(8, 8, 3, 3, device=cuda, dtype=dtype) / 8).to(memory_format=kernel)
            jitted = jitpy.jit(function, mode=mode)
            for grad in (False, True):
                for _ in range(3):
                    found = []
                    for call in (function, jitted):
                        inputs = [one.detach().clone().requires_grad_(grad) for one in (x, w)]
                        out = call(*inputs)
                        found.append([out, *(torch.autograd.grad(out.square().sum(), inputs) if grad else ())])
                for theirs, ours in zip(*found, strict=True):
                    assert ours.stride() == theirs.stride(), (image, kernel, grad)
                    torch.testing.assert_close(ours.float(), theirs.float(), rtol=5e-2,
                                               atol=5e-2 * theirs.abs().max().item())
