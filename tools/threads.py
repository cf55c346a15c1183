"""Eight threads in the native runtime at once, for ThreadSanitizer: `python -m tools.sanitize --threads`.

They call the same jitted functions, miss on new sizes, run backward passes, and take and give back blocks of the
memory pool. Results are compared with eager's.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import torch

import jitpy
from jitpy.runtime.native_build import load_native

THREADS, SECONDS = 8, 20.0


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).sin() * 2


def reduced(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1).sum(0)


def with_operator(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x.t()).relu() + 1


def main() -> int:
    torch.set_num_threads(1)  # OpenMP's barriers are not known to the sanitizer
    load_native("runtime")
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [pointwise, reduced, with_operator]
    jitted = [jitpy.jit(function) for function in functions]
    sizes = ((4, 8), (64, 300), (200, 500))
    failures: list[str] = []
    calls = [0] * THREADS
    end = time.monotonic() + SECONDS
    start = threading.Barrier(THREADS)

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        start.wait()
        while time.monotonic() < end and not failures:
            for function, fast in zip(functions, jitted, strict=True):
                x = torch.randn(sizes[calls[number] % len(sizes)], generator=generator)
                for leaf in (x, x.clone().requires_grad_()):
                    found, wanted = fast(leaf), function(leaf)
                    if not torch.allclose(found, wanted, rtol=1e-4, atol=1e-4):
                        failures.append(f"{function.__name__} in thread {number}")
                    if leaf.requires_grad:
                        found.sum().backward()
                calls[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{sum(calls)} rounds in {THREADS} threads, {len(failures)} wrong results", *failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
