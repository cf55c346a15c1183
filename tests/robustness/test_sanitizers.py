"""The sanitizers see planted mistakes: an overrun of a tensor in a kernel, and undefined arithmetic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jitpy import config
from tools import sanitize

KERNEL = """
from jitpy import config
from jitpy.backends.cpp.flags import compiler_flags
from jitpy.runtime import compiler
import ctypes
import torch
source = '''
extern "C" void fill(float* x, long n) { for (long i = 0; i < n; i++) x[i] = 1.0f; }
extern "C" int shifted(int n) { return 1 << n; }
'''
library = compiler.load_text_cached(source, compiler_flags(config.simd))
library.fill.argtypes = [ctypes.c_void_p, ctypes.c_long]
"""
OF_TORCH = "x = torch.empty(1000)\n"
OF_JITPY = """
import jitpy
x = jitpy.jit(lambda x: x * 2 + 1)(torch.randn(SIZE))
from jitpy.runtime.native_build import load_native
load_native("runtime")
"""


RACE = """
from jitpy.runtime import compiler
import ctypes, threading
source = "#include <atomic>\\nstatic TYPE n; extern \\"C\\" void count() { for (int i = 0; i < COUNT; i++) n = n + 1; }"
library = compiler.load_text_cached(source, compiler.sanitizer_flags())
threads = [threading.Thread(target=library.count) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def run(tmp_path: Path, program: str, sanitizers: str = "address,undefined") -> list[str]:
    try:
        environment = sanitize.environment(sanitizers, tmp_path)
    except (SystemExit, OSError) as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, "-c", program + "print('ended')"], env=environment,
                          capture_output=True, text=True, timeout=550)
    assert done.stdout.endswith("ended\n"), done.stderr
    (tmp_path / "output").write_text(done.stderr)
    return sanitize.summaries(tmp_path)


@pytest.mark.parametrize("beyond", [0, 1, 7])
def test_an_overrun_of_a_tensor_of_torchs(tmp_path: Path, beyond: int) -> None:
    found = run(tmp_path, KERNEL + OF_TORCH + f"library.fill(x.data_ptr(), 1000 + {beyond})\n")
    assert [("heap-buffer-overflow" in line) for line in found[:1]] == [True] * bool(beyond), found


def test_undefined_arithmetic(tmp_path: Path) -> None:
    found = run(tmp_path, KERNEL + "library.shifted(3); library.shifted(40)\n")
    assert len(found) == 1 and "runtime error: shift exponent 40 is too large" in found[0]


@pytest.mark.parametrize("race", [False, True])
def test_a_race(tmp_path: Path, race: bool) -> None:
    kind = "volatile long" if race else "std::atomic<long>"
    found = run(tmp_path, RACE.replace("TYPE", kind).replace("COUNT", "10000000"), "thread")
    assert [("data race" in line) for line in found[:1]] == [True] * race, found


@pytest.mark.skipif("address" not in config.sanitize, reason="needs the native runtime with sanitizers: make sanitize")
@pytest.mark.parametrize("size", [1000, 100_000])
@pytest.mark.parametrize("beyond", [0, 1])
def test_an_overrun_of_a_tensor_of_the_pools(tmp_path: Path, size: int, beyond: int) -> None:
    program = OF_JITPY.replace("SIZE", str(size))
    found = run(tmp_path, KERNEL + program + f"library.fill(x.data_ptr(), {size} + {beyond})\n")
    assert [("heap-buffer-overflow" in line) for line in found[:1]] == [True] * beyond, found
