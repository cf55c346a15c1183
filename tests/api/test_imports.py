"""What a first call imports."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
import torch
from torch import nn
import jitpy

before = "sympy" in sys.modules
model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)), torch.randn(3, 4)
with torch.no_grad():
    jitpy.jit(model)(x)
print(before or "sympy" not in sys.modules)
jitpy.jit(lambda x: model(x).square().mean() + (x * 2).softmax(-1).std())(x).backward()
print(before or "sympy" not in sys.modules)

jitted = jitpy.jit(lambda x: x.reshape(-1).sum() * (x.shape[0] // 2 if x.shape[0] % 3 else x.shape[1]))
for rows in (2, 5, 9, 7):
    x = torch.arange(rows * 4.0).view(rows, 4)  # sums are exact in any order
    assert torch.equal(jitted(x), x.sum() * (rows // 2 if rows % 3 else 4))
print("sympy" in sys.modules)
"""


def test_sympy_comes_with_the_first_symbol() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JITPY_RAISE": "1"}
    result = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "True", "True"]
