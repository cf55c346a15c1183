"""The same backend under jitpy and under torch.compile: a call of a compiled function, and its first call.

    python -m benchmarks.backends [--count N] [--json FILE]

The function is `(x + 1).sin() * 2` on 16 floats, with constant and with symbolic sizes; microseconds a call. The custom
backend returns the module's own `forward`. First calls are of new functions, in seconds; compilers take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first

import jitpy  # noqa: E402


def custom(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    return module.forward


BACKENDS: dict[str, Any] = {"eager": "eager", "custom": custom, "aot_eager": "aot_eager", "inductor": "inductor"}


def new_function(number: int) -> Callable[..., Any]:
    """A small function that nobody has seen."""
    text = f"def fn{number}(x):\n    return (x + {number}.25).sin() * 2\n"
    namespace: dict[str, Any] = {}
    exec(compile(text, f"<backends {number}>", "exec"), namespace)
    return namespace[f"fn{number}"]


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--count", type=int, default=5)
    chosen = options.parse_args()
    timing.build_native()
    x = torch.randn(16)
    number = 0
    figures: dict[str, dict[str, float]] = {}
    rows: list[list[str]] = []

    def row(title: str, seconds: dict[str, float], unit: float) -> None:
        figures[title] = seconds
        ratio = seconds["torch.compile"] / seconds["jitpy"]
        rows.append([title, *(f"{value * unit:.2f}" for value in seconds.values()), f"{ratio:.2f}"])

    for name, backend in BACKENDS.items():
        for dynamic in (False, True):
            number += 1
            plain = new_function(number)
            fns = {"jitpy": jitpy.jit(plain, backend=backend, dynamic=dynamic),
                   "torch.compile": torch.compile(plain, backend=backend, dynamic=dynamic)}
            for fn in fns.values():
                torch.testing.assert_close(fn(x), plain(x))
            calls = {key: (lambda fn=fn: fn(x)) for key, fn in fns.items()}
            kind = "symbolic" if dynamic else "constant"
            row(f"{name}, {kind} sizes: us a call", timing.interleaved_small(calls), 1e6)
    compilers = {"jitpy": jitpy.jit, "torch.compile": torch.compile}
    for name in ("custom", "inductor"):
        for dynamic in (False, True):
            taken: dict[str, list[float]] = {key: [] for key in compilers}
            for _ in range(chosen.count):
                for key, compiler in compilers.items():
                    number += 1
                    fn = compiler(new_function(number), backend=BACKENDS[name], dynamic=dynamic)
                    taken[key].append(timing.seconds_of(lambda fn=fn: fn(x)))
            medians = {key: statistics.median(values) for key, values in taken.items()}
            row(f"{name}, {'symbolic' if dynamic else 'constant'} sizes: first call, ms", medians, 1e3)
    print(timing.table(["(x + 1).sin() * 2 on 16 floats", "jitpy", "torch.compile", "ratio"], rows))
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
