"""What calling a compiled plan costs: a small kernel made by hand, eager operators, a view, a large output.

    python benchmarks/call_overhead.py

Prints nanoseconds of CPU time per call (best of several rounds) under eager, the native executable and the Python one.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch

from jitpy.runtime import compiler
from jitpy.runtime.executable import PythonExecutable, empty_pool, make_executable, set_pool_limit
from jitpy.runtime.plan import AllocStep, CallStep, KernelStep, Plan, SlotRef, Step, ViewStep

KERNELS = r"""
#include <cmath>
#include <cstdint>
static void sine(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = sinf(x[i] + 1) * 2; }
static void twice(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i]; }
extern "C" void small(void* const* p, const int64_t*) { sine((const float*)p[0], (float*)p[1], 16); }
extern "C" void large(void* const* p, const int64_t*) { twice((const float*)p[0], (float*)p[1], 10000000); }
"""
CPU = torch.device("cpu")


def nanoseconds(function: Callable[..., Any], *args: Any, rounds: int = 7, seconds: float = 0.1) -> float:
    """CPU nanoseconds per call: the best of `rounds`, each of about `seconds`."""
    count, took = 1, 0.0
    while took < seconds:
        count *= 2
        started = time.process_time()
        for _ in range(count):
            function(*args)
        took = time.process_time() - started
    best = took
    for _ in range(rounds - 1):
        started = time.process_time()
        for _ in range(count):
            function(*args)
        best = min(best, time.process_time() - started)
    return best / count * 1e9


def plan(*steps: Step, keep: ctypes.CDLL) -> Plan:
    return Plan(1, 2, (1,), list(steps), keep_alive=[keep])


def main() -> None:
    torch.set_num_threads(1)
    library = compiler.load_text_cached(KERNELS, ("-O3", "-march=native"))

    def kernel(name: str) -> KernelStep:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        return KernelStep(address, (SlotRef(0), SlotRef(1)), name)

    def alloc(*shape: int) -> AllocStep:
        return AllocStep(1, shape, (1,), torch.float32, CPU)

    aten = torch.ops.aten
    relu = CallStep(aten.relu.default, (SlotRef(0),), {}, (1,))
    add = CallStep(aten.add.Tensor, (SlotRef(0), 1.0), {}, (1,))
    x = torch.randn(16)
    cases: list[tuple[str, Callable[[torch.Tensor], Any], Plan]] = [
        ("(x + 1).sin() * 2", lambda t: (t + 1).sin() * 2, plan(alloc(16), kernel("small"), keep=library)),
        ("relu, called", torch.relu, plan(relu, keep=library)),
        ("x + 1.0, called", lambda t: t + 1.0, plan(add, keep=library)),
        ("x.view(4, 4)", lambda t: t.view(4, 4), plan(ViewStep(1, 0, (4, 4), (4, 1), 0), keep=library)),
    ]
    print(f"{'16 floats, ns per call':28}{'eager':>10}{'native':>10}{'python':>10}")
    for name, eager, program in cases:
        native, python = make_executable(program), PythonExecutable(program)
        torch.testing.assert_close(native(x)[0], eager(x))
        times = [nanoseconds(function, x) for function in (eager, native, python)]
        print(f"{name:28}" + "".join(f"{t:10.0f}" for t in times))

    x = torch.randn(10_000_000)
    native = make_executable(plan(alloc(10_000_000), kernel("large"), keep=library))
    pooled = nanoseconds(native, x)
    set_pool_limit(0)
    unpooled = nanoseconds(native, x)
    empty_pool()
    eager = nanoseconds(lambda t: t * 2, x)
    times = f"eager {eager / 1e6:.2f}, pool off {unpooled / 1e6:.2f}, pool {pooled / 1e6:.2f}"
    print(f"\n2 * x, 40 MB, one thread, ms per call: {times}")


if __name__ == "__main__":
    main()
