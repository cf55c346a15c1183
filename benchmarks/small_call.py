"""What one call costs when there is nothing to compute: `(x + 1).sin() * 2` on 16 floats, in microseconds.

    python -m benchmarks.small_call [--no-compile] [--json FILE]
"""

from __future__ import annotations

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first

import jitpy  # noqa: E402


def small(x):
    return (x + 1).sin() * 2


def main() -> None:
    chosen = timing.parser(__doc__).parse_args()
    timing.build_native()
    x = torch.randn(16)
    rivals = {"eager": small, "jitpy": jitpy.jit(small)}
    if not chosen.no_compile:
        rivals["torch.compile"] = torch.compile(small)
    for fn in rivals.values():
        torch.testing.assert_close(fn(x), small(x))
    seconds = timing.interleaved_small({name: (lambda fn=fn: fn(x)) for name, fn in rivals.items()})
    nothing = timing.per_call(lambda: None, 100_000)
    figures = {name: (value - nothing) * 1e6 for name, value in seconds.items()}
    print(timing.table(["(x + 1).sin() * 2 on 16 floats", "us a call"], [[n, f"{v:.2f}"] for n, v in figures.items()]))
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
