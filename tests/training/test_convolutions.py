"""Convolutions in training: layouts that the library's kernels do not survive."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

#: Corrupts the heap where the 1x1 branch runs in channels-last.
_BRANCHES = """
    import gc
    import torch
    import jitpy

    torch.manual_seed(0)
    wide, narrow = torch.nn.Conv2d({channels}, 48, 3, 2, 1), torch.nn.Conv2d({channels}, 48, 1, 2)
    images = torch.randn(1, {channels}, 128, 128)

    def step(fn):
        x = images.clone().requires_grad_()
        fn(x).square().mean().backward()
        junk = [torch.empty(n) for n in range(1, 3000, 7)]
        del junk
        gc.collect()
        return x.grad

    def fn(x):
        return torch.relu(wide(x) + narrow(x))

    jitted = jitpy.jit(fn)
    for _ in range(3):
        torch.testing.assert_close(step(jitted), step(fn))
    print("done")
"""


@pytest.mark.parametrize("channels", [3, 12])
def test_branches_that_skip_pixels(channels: int) -> None:
    text = textwrap.dedent(_BRANCHES).format(channels=channels)
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False)
    assert ran.stdout.strip() == "done", ran.stderr[-2000:]
