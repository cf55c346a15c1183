"""Real programs of well-known libraries, warm: eager beside jitpy, interleaved.

    python -m benchmarks.libraries [--only NAME ...] [--compile] [--json FILE]

A row has the milliseconds of a call, how many times as fast as eager jitpy is, its graph breaks, and the seconds of its
first calls. Programs whose library is not installed are left out.
"""

from __future__ import annotations

import functools
import statistics
from typing import Any

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first

import jitpy  # noqa: E402
from jitpy.engine import all_engines  # noqa: E402
from tests.libraries.programs import PROGRAMS, Program, declare_torchvisions_operators, missing  # noqa: E402

#: Calls before the clock counts: sizes and numbers have become symbolic by then.
WARM_UP = 12


def measure(program: Program, with_compile: bool, budget: float) -> dict[str, float]:
    """Seconds of a warm call per rival, and of jitpy's first ones. Each rival has state of its own; data are shared."""
    jitpy.reset()
    rivals: dict[str, Any] = {}
    inputs: Any = None
    for name in ("eager", "jitpy", *(("compile",) if with_compile else ())):
        torch.manual_seed(0)
        fn, inputs = program.make()
        rivals[name] = {"eager": lambda fn: fn, "jitpy": jitpy.jit, "compile": torch.compile}[name](fn)
    figures: dict[str, float] = {}
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    number, spent = 0, 0.0
    while number < WARM_UP + 5 or (spent < budget and number < 2000):
        arguments = inputs(number)
        for name, fn in rivals.items():
            seconds = timing.seconds_of(functools.partial(fn, *arguments))
            if number >= WARM_UP:
                taken[name].append(seconds)
                spent += seconds
            elif name == "jitpy":
                figures["first"] = figures.get("first", 0.0) + seconds
        number += 1
    figures |= {name: statistics.median(times) for name, times in taken.items()}
    variants = [variant for engine in all_engines() for variant in engine.variants]
    figures["breaks"] = sum(variant.break_record is not None for variant in variants)
    return figures


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME")
    options.add_argument("--compile", action="store_true", help="time torch.compile too")
    options.add_argument("--budget", type=float, default=4.0, help="seconds of timed calls a program")
    chosen = options.parse_args()
    timing.build_native()
    declare_torchvisions_operators()
    rows, figures = [], {}
    for program in PROGRAMS.values():
        if chosen.only and program.name not in chosen.only:
            continue
        if (name := missing(program)) is not None:
            print(f"{program.name}: {name} is not installed", flush=True)
            continue
        one = figures[program.name] = measure(program, chosen.compile, chosen.budget)
        cells = [f"{one[key] * 1e3:.2f}" if key in one else "-" for key in ("eager", "compile", "jitpy")]
        ratio, breaks, first = one["eager"] / one["jitpy"], int(one["breaks"]), one["first"]
        rows.append([program.name, *cells, f"{ratio:.2f}", str(breaks), f"{first:.2f}"])
        print(" ".join(rows[-1]), flush=True)
    headings = ["program", "eager ms", "compile ms", "jitpy ms", "eager/jitpy", "breaks", "first calls s"]
    print("\n" + timing.table(headings, rows))
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
