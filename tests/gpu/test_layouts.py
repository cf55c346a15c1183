"""Networks that mix the rows of images: residuals lie row-major, whatever eager does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import jitpy


class Mixer(nn.Module):
    """A block of a mixer behind patches of a row-major image."""

    def __init__(self, width: int = 128, places: int = 196) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.up1, self.down1 = nn.Linear(places, 2 * places - 8), nn.Linear(2 * places - 8, places)
        self.up2, self.down2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for _ in range(2):
            x = x + self.down1(nn.functional.gelu(self.up1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
            x = x + self.down2(nn.functional.gelu(self.up2(self.norm2(x))))
        return self.norm3(x).mean(1)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("images", [3, 16])
def test_mixer(images: int, mode: str, cuda: torch.device) -> None:
    torch.manual_seed(0)
    model, x = Mixer().to(cuda).eval(), torch.randn(images, 3, 224, 224, device=cuda)
    jitted = jitpy.jit(copy.deepcopy(model), mode=mode)
    with torch.inference_mode():
        exact = copy.deepcopy(model).double()(x.double())
        with torch.autocast("cuda", torch.bfloat16):
            expected, found = model(x), [jitted(x).clone() for _ in range(3)]
    for one in found:
        assert one.stride() == expected.stride() and one.dtype is expected.dtype
        assert (one - exact).norm() <= 1.2 * (expected - exact).norm()
