"""Host time per call: what Python and the launch cost where the work is nothing.

    python -m benchmarks.gpu.host [--json FILE] [--skip-compile]

Each function is called many times without waiting for the GPU in between (fewer than its queue holds), and the wall
clock is read. Figures are microseconds a call, the median of rounds; the versions take turns. The last lines say what
the first case consists of: the same kernel launched in a loop of C (nothing can be below that on this machine), and
plans that only allocate, only launch, and do both, called without guards.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import jitpy
from jitpy.runtime.executable import make_executable
from jitpy.runtime.gpu.compile import submit
from jitpy.runtime.gpu.kernel import GpuKernel
from jitpy.runtime.gpu.load import target_of
from jitpy.runtime.plan import AllocStep, LaunchStep, Plan, SlotRef

ROUNDS, CALLS = 30, 200

SINE = GpuKernel(
    source='''import triton
import triton.language as tl


@triton.jit
def sine(x, y, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(y + index, tl.sin(tl.load(x + index) + 1.0) * 2.0)
''', name="sine", signature=(("x", "*fp32"), ("y", "*fp32"), ("BLOCK", "constexpr")), constexprs=(("BLOCK", 16),),
    num_warps=1)

#: launches a kernel `calls` times; nanoseconds of one
LAUNCHES = '''
#include <time.h>
typedef int launch_type(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                        void**);
double launches(launch_type* launch, void* function, unsigned threads, void** parameters, int calls) {
  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int i = 0; i < calls; ++i)
    if (launch(function, 1, 1, 1, threads, 1, 1, 0, 0, parameters, 0) != 0) return -1;
  clock_gettime(CLOCK_MONOTONIC, &end);
  return ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / calls;
}
'''


def small(x):
    return (x + 1).sin() * 2


def many_inputs(a, b, c, d, e, f, g, h):
    return a + b * c - d + e * f - g + h


def two_outputs(x, y):
    return x + y, x - y


def norm(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (64,), weight, bias)


def matmul(x, y):
    return torch.relu(x @ y + 1)


def cases() -> dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]:
    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda")

    return {
        "(x+1).sin()*2, 16 floats": (small, (make(16),)),
        "eight inputs": (many_inputs, tuple(make(16) for _ in range(8))),
        "two outputs": (two_outputs, (make(16), make(16))),
        "layer norm 4x64": (norm, (make(4, 64), make(64), make(64))),
        "matmul 16x16, relu": (matmul, (make(16, 16), make(16, 16))),
    }


def measure(versions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of a call of each version."""
    taken: dict[str, list[float]] = {name: [] for name in versions}
    for call in versions.values():
        for _ in range(20):
            call()
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        for name, call in versions.items():
            started = time.perf_counter()
            for _ in range(CALLS):
                call()
            taken[name].append((time.perf_counter() - started) / CALLS * 1e6)
            torch.cuda.synchronize()
    return {name: statistics.median(times) for name, times in taken.items()}


def bare_launches() -> Callable[[], float]:
    """A loop over the driver's cuLaunchKernel in C: microseconds of one launch."""
    binary = submit(SINE, target_of(torch.device("cuda", 0))).result()
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "launches.c"), Path(folder, "launches.so")
        source.write_text(LAUNCHES)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        loop = ctypes.CDLL(str(library)).launches
    loop.restype = ctypes.c_double
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    x, y = torch.randn(16, device="cuda"), torch.empty(16, device="cuda")
    assert driver.cuModuleLoadData(ctypes.byref(module), binary.code) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, binary.entry.encode()) == 0
    cells = (ctypes.c_uint64 * (2 + binary.extra_parameters))(x.data_ptr(), y.data_ptr())
    step = ctypes.sizeof(ctypes.c_uint64)
    pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cells) + n * step for n in range(len(cells))))

    def run(kept: Any = (x, y, cells)) -> float:
        taken = loop(driver.cuLaunchKernel, function, binary.threads, pointers, CALLS)
        assert taken > 0
        torch.cuda.synchronize()
        return taken / 1e3

    return run


def parts() -> dict[str, float]:
    """Microseconds of what a call of the smallest case consists of."""
    device = torch.device("cuda", 0)
    allocate = AllocStep(1, (16,), (1,), torch.float32, device)
    launch = LaunchStep(SINE, (1,), (SlotRef(0), SlotRef(1)), "sine")
    x, y = torch.randn(16, device=device), torch.empty(16, device=device)
    nothing = make_executable(Plan(1, 1, (0,), [], device=device))
    allocates = make_executable(Plan(1, 2, (1,), [allocate], device=device))
    launches = make_executable(Plan(2, 2, (1,), [launch], device=device))
    both = make_executable(Plan(1, 2, (1,), [allocate, launch], device=device))
    bare = bare_launches()
    found = {"cuLaunchKernel in a loop of C": statistics.median(bare() for _ in range(ROUNDS))}
    found |= measure({"torch.empty": lambda: torch.empty(16, device=device), "a plan of no steps": lambda: nothing(x),
                      "a plan that allocates": lambda: allocates(x), "a plan that launches": lambda: launches(x, y),
                      "a plan of both": lambda: both(x)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--skip-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    table: dict[str, dict[str, float]] = {}
    for name, (function, inputs) in cases().items():
        versions: dict[str, Callable[..., Any]] = {"eager": function, "jitpy": jitpy.jit(function)}
        if not arguments.skip_compile:
            versions["torch.compile"] = torch.compile(function)
        table[name] = measure({key: lambda f=f, i=inputs: f(*i) for key, f in versions.items()})
        print(f"{name:28}" + "".join(f"  {key} {value:6.2f} us" for key, value in table[name].items()), flush=True)
    found = parts()
    for name, value in found.items():
        print(f"{name:28}  {value:6.2f} us", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": table,
                       "parts": found}, file)


if __name__ == "__main__":
    main()
