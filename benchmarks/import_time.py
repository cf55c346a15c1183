"""What `import jitpy` adds to `import torch`, in fresh processes.

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
print(middle - started, ended - middle)
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
    figures = {"torch": statistics.median(p[0] for p in pairs), "jitpy": statistics.median(p[1] for p in pairs)}
    rows = [["torch", f"{figures['torch']:.3f}"], ["jitpy, after torch", f"{figures['jitpy']:.3f}"]]
    print(timing.table(["import", "median s"], rows))
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
