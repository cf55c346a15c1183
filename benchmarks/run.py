"""Every benchmark, one process each. `make bench` runs this.

    python -m benchmarks.run [--no-compile]
"""

from __future__ import annotations

import subprocess
import sys

MODULES = ("import_time", "small_call", "first_call", "record_cost", "suite", "models", "training", "libraries")


def main() -> int:
    failed = []
    for name in MODULES:
        print(f"\n## {name}\n", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
