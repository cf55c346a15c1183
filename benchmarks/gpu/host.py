"""Host time per call: what Python and the launch cost where the work is nothing.

    python -m benchmarks.gpu.host [--json FILE] [--skip-compile]

Each function is called many times without waiting for the GPU in between (fewer than its queue holds), and the wall
clock is read. Figures are microseconds a call, the median of rounds; the versions take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import jitpy

ROUNDS, CALLS = 30, 200


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
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": table}, file)


if __name__ == "__main__":
    main()
