"""Seconds that `import jitpy` and the engine's import add to `import torch`, in fresh processes.

    python -m benchmarks.import_time [--rounds N] [--json FILE]
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks import timing

PROGRAM = """
import time
started = time.perf_counter()
import torch
middle = time.perf_counter()
import jitpy
ended = time.perf_counter()
jitpy.jit(lambda: None)  # builds or loads the native part
begun = time.process_time()
jitpy.jitted.LazyEngine(jitpy.options.Options()).engine
made = time.process_time()
jitted = jitpy.jit(lambda x: x * 2 + 1)
x = torch.randn(4)
called = time.process_time()
jitted(x)
print(middle - started, ended - middle, made - begun, time.process_time() - called)
"""


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    pairs = []
    for _ in range(chosen.rounds + 1):
        done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
        pairs.append([float(part) for part in done.stdout.split()])
    pairs = pairs[1:]  # the first one fills the system's file cache
    names = ("torch", "jitpy, after torch", "its engine (CPU), at the first call", "the first call otherwise (CPU)")
    figures = {name: statistics.median(row[index] for row in pairs) for index, name in enumerate(names)}
    print(timing.table(["import", "median s"], [[name, f"{value:.3f}"] for name, value in figures.items()]))
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
