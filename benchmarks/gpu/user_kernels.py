"""Triton kernels and operators of the program's own on a GPU: are results eager's, and what does a call cost the host?

    python -m benchmarks.gpu.user_kernels
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

import jitpy
from jitpy.engine import all_engines
from jitpy.runtime.plan import CallStep, LaunchStep


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


CONFIGS = [triton.Config({"BLOCK": 256}, num_warps=4), triton.Config({"BLOCK": 1024}, num_warps=8)]
tuned = triton.autotune(configs=CONFIGS, key=["n"])(add)
heuristic = triton.heuristics({"BLOCK": lambda args: 256 if args["n"] < 4096 else 1024})(add)


@torch.library.triton_op("jitpybench::added", mutates_args=())
def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = out.numel()
    torch.library.wrap_triton(add)[(triton.cdiv(n, 512),)](x, y, out, n, BLOCK=512)
    return out


@torch.library.custom_op("jitpybench::into", mutates_args={"out"})
def into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


def between_kernels(x, y):
    x = x * 2
    out = torch.empty_like(x)
    n = out.numel()
    add[(triton.cdiv(n, 512),)](x, y, out, n, BLOCK=512)
    return out.sin()


def grid_function(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x + 1, y, out, n, BLOCK=512)
    return out * 3


def with_tuner(x, y):
    x = x * 2
    out = torch.empty_like(x)
    n = out.numel()
    tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
    return out.sin()


def with_heuristics(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    heuristic[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y * 2, out, n)
    return out.sin()


def triton_operator(x, y):
    return added(x * 2, y).sin()


def argument_written(x, y):
    double[(triton.cdiv(x.numel(), 512),)](x, x.numel(), BLOCK=512)
    return x + y


def not_divisible(x, y):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel() - 1, 512),)](x[1:], y[1:], out[1:], x.numel() - 1, BLOCK=512)
    return out[1:] + 1


def part_of_argument_written(x, y):
    double[(2,)](x[16:528], 512, BLOCK=256)
    return x + y


def custom_operator(x, y):
    into(y, x)
    return x + 1


CASES = (between_kernels, grid_function, with_tuner, with_heuristics, triton_operator, argument_written, not_divisible,
         part_of_argument_written, custom_operator)


def steps() -> list[str]:
    """The launches and calls of the compiled graphs."""
    plans = [getattr(variant.compiled, "plan", None) for engine in all_engines() for variant in engine.variants]
    return [f"{'launch' if isinstance(step, LaunchStep) else 'call'} "
            f"{step.name if isinstance(step, LaunchStep) else getattr(step.function, '__name__', step.function)}"
            for plan in plans if plan is not None for step in plan.steps if isinstance(step, (LaunchStep, CallStep))]


def host_time(fn: Callable[..., Any], *args: Any) -> float:
    """Microseconds of one call, as the host sees it."""
    for _ in range(20):
        fn(*args)
    times = []
    for _ in range(300):
        torch.cuda.synchronize()
        start = time.perf_counter()
        fn(*args)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def equal(fn: Callable[..., Any], jitted: Callable[..., Any]) -> bool:
    """Whether results and arguments are eager's, for sizes that change."""
    for n in (4096, 5000, 8192, 4097, 6000):
        x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        mine = x.clone()
        if not torch.allclose(fn(x, y), jitted(mine, y), atol=1e-6) or not torch.equal(x, mine):
            return False
    return True


def main() -> None:
    print(torch.__version__, triton.__version__, torch.cuda.get_device_name())
    for fn in CASES:
        jitpy.reset()
        jitted = jitpy.jit(fn, fullgraph=True)
        same = equal(fn, jitted)
        x, y = torch.randn(4096, device="cuda"), torch.randn(4096, device="cuda")
        print(f"{fn.__name__:26} equal: {same}; host us: eager {host_time(fn, x, y):5.1f}, jitpy "
              f"{host_time(jitted, x, y):5.1f}; {', '.join(dict.fromkeys(steps()))}", flush=True)
    for mode in ("reduce-overhead", "max-autotune"):
        jitpy.reset()
        jitted = jitpy.jit(between_kernels, mode=mode, fullgraph=True)
        print(f"{mode}: equal: {equal(between_kernels, jitted)}; {host_time(jitted, x, y):.1f} us", flush=True)

    def loss(weight, y):
        out = torch.empty_like(y)
        add[(8,)](y, y, out, 4096, BLOCK=512)
        return (weight * out).sin().sum()

    weight = torch.randn(4096, device="cuda", requires_grad=True)
    gradients = [torch.autograd.grad(run(weight, y), weight)[0] for run in (loss, jitpy.jit(loss, fullgraph=True))]
    print("gradients: equal:", torch.allclose(*gradients))


if __name__ == "__main__":
    main()
