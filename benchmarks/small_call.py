"""What one call costs when there is nothing to compute: `(x + 1).sin() * 2` on 16 floats, in microseconds.

    python -m benchmarks.small_call [--no-compile] [--json FILE]

Without gradients; and where x requires grad: the call, the backward pass by the engine (`x.grad` is None before it),
and the same as programs call it, by `Tensor.backward`, which is Python around the engine. "no node" is what of that is
torch's own: a backward pass from x itself, which only puts the gradient into `x.grad`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first

import jitpy  # noqa: E402


def small(x):
    return (x + 1).sin() * 2


def main() -> None:
    chosen = timing.parser(__doc__).parse_args()
    timing.build_native()
    rivals = {"eager": small, "jitpy": jitpy.jit(small)}
    if not chosen.no_compile:
        rivals["torch.compile"] = torch.compile(small)
    x, y = torch.randn(16), torch.randn(16, requires_grad=True)
    for fn in rivals.values():
        for argument in (x, y):
            torch.testing.assert_close(fn(argument), small(argument))
    ends = {name: fn(y) for name, fn in rivals.items()} | {"no node": y}
    columns: dict[str, dict[str, Callable[[], Any]]] = {
        "no gradients": {name: (lambda fn=fn: fn(x)) for name, fn in rivals.items()},
        "forward": {name: (lambda fn=fn: fn(y)) for name, fn in rivals.items()},
        "backward, engine": {name: by_engine(end, y) for name, end in ends.items()},
        "backward, Python": {name: by_python(end, y) for name, end in ends.items()},
    }
    nothing = timing.per_call(lambda: None, 100_000)
    seconds = {column: timing.interleaved_small(calls) for column, calls in columns.items()}
    figures = {name: {column: (seconds[column].get(name, math.nan) - nothing) * 1e6 for column in columns}
               for name in ends}
    print(timing.table(["(x + 1).sin() * 2 on 16 floats, us a call", *columns],
                       [[name, *("" if math.isnan(value) else f"{value:.2f}" for value in row.values())]
                        for name, row in figures.items()]))
    timing.save(chosen.json, figures)


def by_engine(result: torch.Tensor, leaf: torch.Tensor) -> Callable[[], Any]:
    """A backward pass without the Python functions around it, again and again on one graph."""
    run = torch.autograd.Variable._execution_engine.run_backward
    roots, grads = (result,), (torch.ones_like(result),)

    def call() -> None:
        leaf.grad = None
        run(roots, grads, True, False, (), allow_unreachable=True, accumulate_grad=True)

    return call


def by_python(result: torch.Tensor, leaf: torch.Tensor) -> Callable[[], Any]:
    """`result.backward(...)`, again and again on one graph."""
    grad = torch.ones_like(result)

    def call() -> None:
        leaf.grad = None
        result.backward(grad, retain_graph=True)

    return call


if __name__ == "__main__":
    main()
