"""An adaptive solver keeps its state in named tuples that each step makes anew, often at the same address."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch, jitpy
from torchdiffeq import odeint

torch.manual_seed(0)
weight = torch.randn(2, 2) * .5
fields = [lambda t, y: y @ weight, lambda t, y: torch.sin(t) * y]

def solve(y0, t):
    return odeint(fields[int(sys.argv[1])], y0, t, method="dopri5")

jitted = jitpy.jit(solve, backend="eager")
for k in range(5):
    y0, t = torch.randn(2, 2), torch.linspace(0., 1. + k % 3, 4)
    torch.testing.assert_close(jitted(y0, t), solve(y0, t), rtol=1e-4, atol=1e-4)
print("right")
"""


@pytest.mark.skipif(importlib.util.find_spec("torchdiffeq") is None, reason="torchdiffeq is not installed")
@pytest.mark.parametrize("field", [0, 1])
def test_dopri5(field: int) -> None:
    """The allocator overwrites freed memory, so that a guard that reads it crashes or sees nonsense."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM, str(field)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0 and "right" in done.stdout, done.stderr[-2000:]
