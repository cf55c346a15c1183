"""Every benchmark of this folder in one run with a time limit; results are written as they come.

    python -m benchmarks.gpu.all FOLDER [--minutes 9] [--parts host,models,...]
    python -m benchmarks.gpu.all FOLDER --table      tables of what is there

Each part is a process of its own with a budget in seconds: it leaves out what does not fit, and is stopped some time
later. FOLDER receives `<part>.json` and `<part>.log`. Parts that the limit left no time for are printed at the end; a
second run with the same folder does these only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Seconds that a part may take beyond its budget: a compilation that is under way.
GRACE = 25


@dataclass(frozen=True)
class Part:
    """`python -m benchmarks.gpu.<command>`, which takes `--json`."""

    name: str
    seconds: int
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


#: In the order in which they run: what matters most comes first.
PARTS = [
    Part("host", 30, ("host",)),
    Part("attention", 35, ("attention",)),
    Part("kernels", 60, ("kernels",)),
    Part("products", 45, ("products", "--no-tuned")),
    Part("models", 270, ("models", "--jobs", "4", "--budget", "240")),
    Part("tuned", 70, ("kernels", "--no-compile", "--mode", "max-autotune"), {"JITPY_LOGS": "timing"}),
]


def run(part: Part, folder: Path, seconds: float) -> str:
    """Run a part for so many seconds at most; how it ended."""
    command = [sys.executable, "-m", f"benchmarks.gpu.{part.command[0]}", *part.command[1:],
               "--json", str(folder / f"{part.name}.json")]
    started = time.monotonic()
    with open(folder / f"{part.name}.log", "w") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=seconds, check=False,
                                  env={**os.environ, **part.environment}).returncode
            ended = "done" if code == 0 else f"exit status {code}"
        except subprocess.TimeoutExpired:
            ended = "stopped"
    return f"{ended} after {time.monotonic() - started:.0f} s"


def measure(folder: Path, minutes: float, wanted: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    left = []
    for part in PARTS:
        if wanted and part.name not in wanted or not wanted and (folder / f"{part.name}.json").exists():
            continue
        rest = end - time.monotonic()
        if rest < part.seconds:
            left.append(part.name)
            continue
        print(f"{part.name}: {run(part, folder, min(part.seconds + GRACE, rest))}", flush=True)
    if left:
        print(f"no time was left for {', '.join(left)}")


def models_table(folder: Path) -> list[str]:
    """Milliseconds of each model, and seconds of first calls."""
    lines = ["| model | version | ms | of eager | first call s | error |", "| --- | --- | --- | --- | --- | --- |"]
    for part in PARTS:
        figures: dict[str, float]
        for name, figures in (_read(folder, part) if part.command[0] == "models" else {}).items():
            for version in [key for key in figures if not key.startswith(("first ", "error "))]:
                share = f"{figures['eager'] / figures[version]:.2f}" if "eager" in figures else ""
                lines.append(f"| {name} | {version} | {figures[version]:.2f} | {share} "
                             f"| {figures.get(f'first {version}', 0):.1f} | {figures.get(f'error {version}', 0):.1e} |")
    return lines


def kernels_table(folder: Path) -> list[str]:
    """Microseconds of each kernel, and its share of the copy bandwidth."""
    tuned = {row["name"]: row for row in _read(folder, _part("tuned")).get("rows", [])}
    lines = ["| kernel | eager us | torch.compile us | jitpy us | share | tuned us |",
             "| --- | --- | --- | --- | --- | --- |"]
    for row in _read(folder, _part("kernels")).get("rows", []):
        times = [row.get(name) for name in ("eager", "torch.compile", "jitpy")]
        after = tuned.get(row["name"], {}).get("jitpy")
        cells = [f"{value * 1e3:.1f}" if value else "" for value in (*times, after)]
        lines.append(f"| {row['name']} | {' | '.join(cells[:3])} | {row.get('share', 0):.2f} | {cells[3]} |")
    return lines


def small_tables(folder: Path) -> list[str]:
    """Host time, and attention."""
    lines = ["| case | version | us |", "| --- | --- | --- |"]
    tables: list[dict[str, Any]] = [_read(folder, _part("host")).get("cases", {}), _read(folder, _part("attention"))]
    for table in tables:
        for name, figures in table.items():
            lines += [f"| {name} | {version} | {value:.1f} |" for version, value in figures.items()
                      if not version.startswith("error ")]
    return lines


def _part(name: str) -> Part:
    return next(part for part in PARTS if part.name == name)


def _read(folder: Path, part: Part) -> dict[str, Any]:
    path = folder / f"{part.name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--parts", default="", help=", ".join(part.name for part in PARTS))
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    if not chosen.table:
        measure(chosen.folder, chosen.minutes, [name for name in chosen.parts.split(",") if name])
    for table in (kernels_table, models_table, small_tables):
        print("\n" + "\n".join(table(chosen.folder)))


if __name__ == "__main__":
    main()
