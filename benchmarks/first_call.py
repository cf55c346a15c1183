"""Seconds until the first result of a new small function, in a process that has compiled before.

    python -m benchmarks.first_call [--count N] [--no-compile] [--json FILE]

Each function is new to both compilers and their caches; they take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first

import jitpy  # noqa: E402


def new_function(number: int) -> Callable[..., Any]:
    """A small function that nobody has seen: its constants make its kernel new as well."""
    text = f"def fn{number}(x, y):\n    return ((x + {number}.25) * y).tanh() - x.exp() * {number + 2}\n"
    namespace: dict[str, Any] = {}
    exec(compile(text, f"<first call {number}>", "exec"), namespace)
    return namespace[f"fn{number}"]


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--count", type=int, default=8)
    chosen = options.parse_args()
    timing.build_native()
    compilers: dict[str, Callable[..., Any]] = {"jitpy": jitpy.jit}
    if not chosen.no_compile:
        compilers["torch.compile"] = torch.compile
    x, y = torch.randn(64, 64), torch.randn(64)
    number = 0
    for compiler in compilers.values():
        number += 1
        compiler(new_function(number))(x, y)
    taken: dict[str, list[float]] = {name: [] for name in compilers}
    for _ in range(chosen.count):
        for name, compiler in compilers.items():
            number += 1
            plain = new_function(number)
            fn = compiler(plain)
            taken[name].append(timing.seconds_of(lambda fn=fn: fn(x, y)))
            torch.testing.assert_close(fn(x, y), plain(x, y))
    figures = {name: statistics.median(values) for name, values in taken.items()}
    rows = [[name, f"{figures[name]:.3f}", f"{min(taken[name]):.3f}", f"{max(taken[name]):.3f}"] for name in figures]
    print(timing.table(["first call of a new function", "median s", "least", "most"], rows))
    if len(figures) == 2:
        print(f"torch.compile takes {figures['torch.compile'] / figures['jitpy']:.1f} times as long")
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
