"""Timing that is fair between rivals: calls are interleaved, and medians compared."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Call = Callable[[], Any]


def seconds_of(call: Call) -> float:
    """One call, timed."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def interleaved(calls: dict[str, Call], budget: float = 1.0, least: int = 5) -> dict[str, float]:
    """Median seconds of each call. The calls take turns, so that a slow spell of the machine hits all of them.

    budget: seconds to spend on each call; at least `least` rounds are made.
    """
    for call in calls.values():
        call()
    slowest = max(seconds_of(call) for call in calls.values())
    rounds = max(least, min(1000, int(budget / max(slowest, 1e-7))))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            taken[name].append(seconds_of(calls[name]))
    return {name: statistics.median(values) for name, values in taken.items()}


def per_call(call: Call, number: int) -> float:
    """Seconds per call over `number` calls in a row: for calls shorter than a clock reading is exact."""
    started = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - started) / number


def interleaved_small(calls: dict[str, Call], number: int = 1000, rounds: int = 25) -> dict[str, float]:
    """Median seconds per call of batches that take turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        per_call(call, number)
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(per_call(call, number))
    return {name: statistics.median(values) for name, values in taken.items()}


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def fresh_caches() -> None:
    """Empty folders for what compilers keep on disk, except for jitpy's native part. Call before importing torch."""
    folder = tempfile.mkdtemp(prefix="jitpy-bench-")
    users = os.environ.get("JITPY_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jitpy")
    os.environ.setdefault("JITPY_NATIVE_DIR", users)
    os.environ["JITPY_CACHE_DIR"] = os.path.join(folder, "jitpy")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "inductor")


def build_native() -> None:
    """Build jitpy's native part now, where that was not done before: first calls are not about it."""
    from jitpy.explain import doctor

    doctor.build()


def last_level_cache() -> int:
    """Bytes of the largest CPU cache; 32 MiB where the system does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KMG")) * {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1], 1))
    return max(sizes, default=32 * 2**20)


def parser(text: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="write the figures to this file as well")
    made.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    return made


def save(path: Path | None, figures: Any) -> None:
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n")


def table(headings: list[str], rows: list[list[str]]) -> str:
    """Aligned text in Markdown's table form."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]

    def line(cells: list[str]) -> str:
        first, *others = (cell.ljust(width) if i == 0 else cell.rjust(width)
                          for i, (cell, width) in enumerate(zip(cells, widths, strict=True)))
        return "| " + " | ".join([first, *others]) + " |"

    rules = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join([line(headings), "| " + " | ".join(rules) + " |", *(line(row) for row in rows)])
