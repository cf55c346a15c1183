"""`flex_attention`, forwards and backwards, against torch.compile's and SDPA, where that computes the same.

    python -m benchmarks.gpu.flex [--cases NAME ...] [--no-compile] [--json FILE]

Microseconds on the device, medians of rounds in which the versions take turns; seconds of the first call and gradients;
megabytes at the peak of the gradients' computation; what was compiled over five lengths. `error` is the distance from
float64, relative to its norm, of results and gradients at a smaller size.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jitpy
from jitpy.engine import all_engines

ROUNDS, CALLS = 7, 5
LENGTHS = (1024, 1152, 1300, 1536, 2048)
WINDOW = 1024
#: batch, heads, heads of keys, queries, keys, size
SHAPES = {"16 heads of 64": (8, 16, 16, 4096, 4096, 64), "32 heads of 128 on 8": (4, 32, 8, 4096, 4096, 128)}
FEW = {"one token": (8, 32, 8, 1, 8192, 128), "one token of one": (1, 32, 8, 1, 8192, 128)}

Tensor = torch.Tensor
Shape = tuple[int, int, int, int, int, int]


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k <= WINDOW)


def soft_cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 20.0 * torch.tanh(score / 20.0)


def functions(name: str, shape: Shape) -> tuple[Any, Any]:
    """The function of scores, and that of the mask."""
    heads, keys = shape[1], shape[4]
    if name == "document":
        ids = torch.arange(keys, device="cuda") // (keys // 6 + 37)
        return None, lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)
    if name == "alibi":
        slopes = 2.0 ** -torch.linspace(1, 8, heads, device="cuda")
        return lambda score, b, h, q, k: score + slopes[h] * (k - q), causal
    return {"window": (None, window), "soft cap": (soft_cap, causal), "causal": (None, causal),
            "no mask": (None, None)}[name]


def inputs(shape: Shape, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    batch, heads, shared, queries, keys, size = shape
    sizes = (batch, heads, queries, size), (batch, shared, keys, size), (batch, shared, keys, size)
    return [torch.randn(one, device="cuda").to(dtype).requires_grad_() for one in sizes]


def program(score: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def attention(score: Any) -> Callable[..., Tensor]:
    """A function object of its own for each case."""
    def call(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return program(score, q, k, v, mask)

    return call


def mask_of(function: Any, shape: Shape) -> Any:
    return None if function is None else create_block_mask(function, None, None, shape[3], shape[4], device="cuda")


def timed(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(CALLS):
                call()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) / CALLS * 1e3)
    return {name: statistics.median(taken) for name, taken in times.items()}


def gradients(out: Tensor, given: list[Tensor], grad: Tensor) -> Callable[[], Any]:
    return functools.partial(torch.autograd.grad, out, given, grad, retain_graph=True)


def measure(name: str, shape: Shape, versions: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """One case at one size, forwards and backwards."""
    score, function = functions(name, shape)
    given, mask, figures = inputs(shape), mask_of(function, shape), {}
    grad = torch.randn_like(given[0])
    forward: dict[str, Callable[[], Any]] = {}
    backward: dict[str, Callable[[], Any]] = {}
    for version, make in versions.items():
        started = time.perf_counter()
        call = forward[version] = functools.partial(make(attention(score)), *given, mask)
        backward[version] = gradients(call(), given, grad)
        backward[version]()
        torch.cuda.synchronize()
        figures[f"first {version}"] = time.perf_counter() - started
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        backward[version]()
        figures[f"peak {version}"] = (torch.cuda.max_memory_allocated() - before) / 1e6
    if name == "causal":
        shares = shape[1] != shape[2]
        same = functools.partial(F.scaled_dot_product_attention, *given, is_causal=True, enable_gqa=shares)
        forward["sdpa"], backward["sdpa"] = same, gradients(same(), given, grad)
    figures |= {f"forward {version}": taken for version, taken in timed(forward).items()}
    figures |= {f"backward {version}": taken for version, taken in timed(backward).items()}
    return figures


def dense(score: Any, mask: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same written out: functions of one element take all of them at once."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    grid = [torch.arange(size, device=q.device).view([-1 if a == axis else 1 for a in range(4)])
            for axis, size in enumerate(scores.shape)]
    scores = scores if score is None else score(scores, *grid)
    scores = scores if mask is None else scores.masked_fill(~mask(*grid), float("-inf"))
    return torch.softmax(scores, -1) @ v


def errors(name: str, shape: Shape, versions: dict[str, Callable[..., Any]]) -> dict[str, float]:
    """The largest distance from float64 of results and gradients, at a length that no block divides."""
    small = (2, *shape[1:3], 1000, 1000, shape[5])
    score, function = functions(name, small)
    given, mask = inputs(small), mask_of(function, small)
    grad = torch.randn_like(given[0])
    double = [one.detach().double().requires_grad_() for one in given]
    exact = dense(score, function, *double)
    wanted = [exact, *torch.autograd.grad(exact, double, grad.double())]
    figures = {}
    for version, make in versions.items():
        out = make(attention(score))(*given, mask)
        found = [out, *torch.autograd.grad(out, given, grad)]
        figures[f"error {version}"] = max(((a.double() - b).norm() / b.norm()).item()
                                          for a, b in zip(found, wanted, strict=True))
    return figures


def compiled_over_lengths(name: str, shape: Shape) -> list[int]:
    """How many variants there are behind each of five lengths."""
    jitpy.reset()
    found = []
    score, function = functions(name, (*shape[:3], max(LENGTHS), max(LENGTHS), shape[5]))
    call = jitpy.jit(attention(score))
    for length in LENGTHS:
        one = (1, *shape[1:3], length, length, shape[5])
        given = inputs(one)
        call(*given, mask_of(function, one)).sum().backward()
        found.append(sum(len(engine.variants) for engine in all_engines()))
    return found


def few_queries(shape: Shape, versions: dict[str, Callable[..., Any]]) -> dict[str, float]:
    """One token, whose keys programs share."""
    given = [one.detach() for one in inputs(shape)]
    with torch.no_grad():
        calls = {version: functools.partial(make(attention(None)), *given, None) for version, make in versions.items()}
        calls["sdpa"] = functools.partial(F.scaled_dot_product_attention, *given, enable_gqa=True)
        return timed(calls)


def shown(figures: dict[str, Any], what: str, form: str) -> str:
    return ", ".join(f"{key.split(' ', 1)[1]} {format(value, form)}" for key, value in figures.items()
                     if key.startswith(what + " "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=["window", "soft cap", "document", "alibi", "causal"])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    versions: dict[str, Callable[..., Any]] = {"jitpy": jitpy.jit}
    if not chosen.no_compile:
        versions["compile"] = torch.compile
    table: dict[str, Any] = {}
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    for title, shape in SHAPES.items():
        for name in chosen.cases:
            torch.compiler.reset()
            jitpy.reset()
            figures = table[f"{name}, {title}"] = measure(name, shape, versions)
            figures |= errors(name, shape, {"jitpy": jitpy.jit})
            if shape is next(iter(SHAPES.values())):
                figures["compiled jitpy"] = compiled_over_lengths(name, shape)
            print(f"{name}, {title}: forward us {shown(figures, 'forward', '.0f')} | backward us "
                  f"{shown(figures, 'backward', '.0f')} | first s {shown(figures, 'first', '.1f')} | peak MB "
                  f"{shown(figures, 'peak', '.0f')} | error {figures['error jitpy']:.1e} | variants "
                  f"{figures.get('compiled jitpy', '-')}", flush=True)
    for title, shape in FEW.items():
        torch.compiler.reset()
        figures = table[title] = few_queries(shape, versions)
        print(f"{title} {shape}: us {', '.join(f'{key} {value:.0f}' for key, value in figures.items())}", flush=True)
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
