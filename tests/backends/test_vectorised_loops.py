"""What GCC makes of loops with choices: vectors, and not branches, which cost ten times as much where numbers vary."""

from __future__ import annotations

import math
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy import logs
from jitpy.backends.cpp.flags import compiler_flags

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or platform.machine() not in ("x86_64", "AMD64"), reason="asks GCC on x86")

IMAGES = torch.randn(2, 64, 16, 16).to(memory_format=torch.channels_last)
ROWS, OTHERS = torch.randn(64, 256), torch.randn(64, 256)
MASK = OTHERS > 0

CASES: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "the larger of two relus": (lambda x: torch.maximum(torch.relu(x), torch.relu(OTHERS)), ROWS),
    "the largest of three": (lambda x: torch.maximum(torch.maximum(x, OTHERS), x * 2), ROWS),
    "between tensors": (lambda x: torch.minimum(torch.maximum(x, OTHERS * 0.5), OTHERS), ROWS),
    "pooled relu": (lambda x: F.max_pool2d(torch.relu(x), 2), IMAGES),
    "pooled relu, overlapping": (lambda x: F.max_pool2d(torch.relu(x), 3, 2, 1), IMAGES),
    "pooled rows": (lambda x: F.max_pool1d(torch.relu(x), 2), ROWS),
    "sine and cosine of one number": (lambda x: x.sin() + x.cos(), ROWS),
    "masked softmax": (lambda x: torch.softmax(torch.where(MASK, x, -1e9), -1), ROWS),
    "largest of what a mask leaves": (lambda x: x.masked_fill(MASK, -torch.inf).amax(-1), ROWS),
    "conditions on relus": (lambda x: torch.logical_and(torch.relu(x), torch.relu(OTHERS)), ROWS),
    "logaddexp of relus": (lambda x: torch.logaddexp(torch.relu(x), torch.relu(OTHERS)), ROWS),
    "logarithm of relus": (lambda x: torch.xlogy(torch.relu(x), torch.relu(OTHERS)).sum(-1), ROWS),
    "logarithm of what is clamped": (lambda x: x.clamp(min=1e-6).log(), ROWS),
    "logarithm of halves": (lambda x: torch.xlogy(torch.relu(x), x), ROWS.bfloat16()),
    "conditions on doubles": (lambda x: (x.clamp(0, 1) == 1) | (torch.relu(x) == 0), ROWS.double()),
    "what a mask leaves": (lambda x: x.abs().masked_fill(MASK, 2.0).log() + (x.tril() == 0), ROWS),
    "truth values as numbers": (lambda x: (MASK.float() * 2 - (x > 0).float()).sum(-1), ROWS),
    "rolled rows": (lambda x: x - torch.roll(x, 3, -1), ROWS),
    "remainders": (lambda x: x % OTHERS, ROWS),
    "rounded quotients": (lambda x: (x + 1) // (OTHERS.relu() + 0.5) - torch.fmod(x, 0.3), ROWS),
    "softmax of halves": (lambda x: torch.softmax(x * 2, -1), ROWS.bfloat16()),
}


@pytest.mark.parametrize("simd", ["avx2", "avx512"])
@pytest.mark.parametrize("name", CASES)
def test_loops_become_vectors(name: str, simd: str, tmp_path: Path) -> None:
    fn, x = CASES[name]
    written: list[str] = []
    before = logs.set_sink(written.append)
    logs.enable("output_code")
    try:
        with torch.no_grad():
            found = jitpy.jit(fn)(x)
    finally:
        logs.disable("output_code")
        logs.set_sink(before)
    torch.testing.assert_close(found, fn(x))
    source = tmp_path / "kernel.cpp"
    source.write_text(next(text for text in written if "kernel0_part" in text).split("] ", 1)[1])
    made = subprocess.run(["g++", *compiler_flags(simd), "-fopt-info-vec-optimized", "-c", str(source), "-o",
                           str(tmp_path / "kernel.o")], capture_output=True, text=True, check=True)
    lines = source.read_text().splitlines()
    kernel = next(k for k, line in enumerate(lines) if "kernel0_part(" in line)
    loops = [k + 2 for k, line in enumerate(lines) if "omp simd" in line and k > kernel]
    told = {int(line.split(":")[1]) for line in made.stderr.splitlines()
            if re.search("loop vectorized using (32|64) byte", line)}
    assert loops and told.intersection(range(loops[0], loops[0] + 4)), made.stderr


def test_choices_keep_zeros_signs_and_nan() -> None:
    numbers = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38]
    for dtype, integer in {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16,
                           torch.float16: torch.int16}.items():
        x, y = (t.contiguous() for t in torch.meshgrid(*[torch.tensor(numbers * 6).to(dtype)] * 2, indexing="ij"))

        def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
            return [torch.relu(x), x.clamp(-0.5, 1), x.clamp(min=0.0), torch.where(x > y, x, y),
                    x.masked_fill(y > 0, -0.0), torch.where(x == y, -0.0, x), x.tril(), (x > y).to(x.dtype),
                    torch.where(y != y, x, 0.0), F.threshold(x, 0.5, -0.0), torch.nan_to_num(x), F.relu6(y),
                    torch.logical_and(torch.relu(x), y).to(x.dtype), (x > y).tril().to(x.dtype)]

        for found, wanted in zip(jitpy.jit(fn)(x, y), fn(x, y), strict=True):
            assert ((found.view(integer) == wanted.view(integer)) | found.isnan() & wanted.isnan()).all()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(37, 256), (5, 300), (1000,), (130, 9)])
def test_rolled_tensors(shape: tuple[int, ...], dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        circular = F.pad(x.view(1, *x.shape), (5, 6), mode="circular")
        return [torch.roll(x, 3, -1) + 1, torch.roll(x, -5, -1) - torch.roll(x, 7, -1), torch.roll(x, 11) + x,
                circular * 2, torch.roll(torch.roll(x, 100, -1), 200, -1) * x,
                torch.roll(x.bfloat16(), 3, -1) * 2, torch.roll(x, 3, -1).bfloat16() * 2,
                torch.roll(x > 0, 3, -1).float(), torch.fft.fftshift(x, dim=-1) + 1,
                torch.roll(x, [2] * x.ndim, list(range(x.ndim))) * 2]

    compiled = jitpy.jit(fn, dynamic=dynamic)
    for more in (0, 3, 70) if dynamic else (0,):
        x = torch.randn([size + more for size in shape])
        for found, wanted in zip(compiled(x), fn(x), strict=True):
            assert torch.equal(found, wanted)
