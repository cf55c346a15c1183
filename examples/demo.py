"""What jitpy does, in under two minutes: `make demo`, or `python -m examples.demo`.

Compiles the functions of the benchmark suite and a Transformer block, checks them against eager, shows the report of a
function with a graph break in it, and a table of times.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

import jitpy
from benchmarks import timing
from benchmarks.cases import CASES, Case, arguments, largest_difference, which_is_off

#: Elements of the largest tensor: enough to fill the last-level cache of most machines.
ELEMENTS = 8 * 2**20
TOLERANCE = 1e-5


def normalise(x: torch.Tensor, limit: float = 3.0) -> torch.Tensor:
    """A function with a branch that depends on data: two graphs, and one place where Python decides."""
    y = (x - x.mean()) / x.std()
    if y.abs().max() > limit:
        y = y.clamp(-limit, limit)
    return torch.tanh(y) * 2


def check(case: Case, args: tuple[Any, ...], found: Any, eager: Any) -> float:
    """How far jitpy's result is from eager's. Raises AssertionError where it is too far, and says which one is off."""
    difference = largest_difference(found, eager)
    assert difference < TOLERANCE, f"{case.name}: off by {difference:.1e}. {which_is_off(case, args, found, eager)}"
    return difference


def compile_and_check() -> list[list[str]]:
    """Every case once: first call, largest difference, times. Raises AssertionError where a result is wrong."""
    rows = []
    for case in CASES:
        args = arguments(case, ELEMENTS)
        fn = jitpy.jit(case.fn, fullgraph=True)
        expected = case.fn(*args)
        started = time.perf_counter()
        result = fn(*args)
        first = time.perf_counter() - started
        difference = check(case, args, result, expected)
        del result, expected
        calls = {"eager": lambda fn=case.fn, args=args: fn(*args), "jitpy": lambda fn=fn, args=args: fn(*args)}
        seconds = timing.interleaved(calls, budget=0.25)
        rows.append([case.name, f"{first:.2f}", f"{difference:.0e}", f"{seconds['eager'] * 1e3:.2f}",
                     f"{seconds['jitpy'] * 1e3:.2f}", f"{seconds['eager'] / seconds['jitpy']:.2f}x"])
        print(f"  {case.name:<18} first call {first:.2f} s, differs from eager by {difference:.0e}", flush=True)
    return rows


def main() -> int:
    started = time.perf_counter()
    print(f"jitpy on torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    with torch.no_grad():
        print("1. The first call of each function compiles it:\n")
        rows = compile_and_check()
        print("\n2. A function with a branch on data. jitpy.explain says where and why its graph breaks:\n")
        x = torch.randn(1000)
        print(jitpy.explain(normalise)(x))
        torch.testing.assert_close(jitpy.jit(normalise)(x), normalise(x))
    print("\n3. Milliseconds a call:\n")
    print(timing.table(["function", "first call s", "difference", "eager", "jitpy", "faster by"], rows))
    print(f"\nAll results equal eager's. {time.perf_counter() - started:.0f} seconds.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
