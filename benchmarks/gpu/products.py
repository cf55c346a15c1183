"""Matrix products and what is fused with them on a GPU, against eager and torch.compile.

    python -m benchmarks.gpu.products [--only TEXT] [--budget SECONDS] [--no-tuned] [--json FILE]

Each way is captured once in a CUDA graph; the graphs are replayed in turns, each behind a flush of the cache, and the
medians are microseconds of the device. The limit is the larger of the bytes that must move over the bandwidth of a
copy, and the operations over the rate of an 8192^3 product, both measured in the same run. `tuned` is max-autotune.
`error` is the distance from the same function of the inputs in float64, relative to its size, beside eager's own.
torch.compile is not tuned any more once the budget is spent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import jitpy

from .kernels import copy_bandwidth, distance

Tensor = torch.Tensor
ROUNDS, WARM_UP = 21, 0.1


@dataclass(frozen=True)
class Case:
    """`fn` of matrices of these shapes in bfloat16, which does so many operations."""

    name: str
    fn: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    operations: int


def relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(x @ w + b)


def gelu(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.gelu(x @ w + b) * r


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def experts(x: Tensor, w: Tensor) -> Tensor:
    """Tokens of eight experts each."""
    return torch.einsum("ecd,edf->ecf", x, w)


def grouped(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return torch.bmm(x, w).relu() * r


def product(m: int, k: int, n: int, batch: int = 1) -> int:
    return 2 * batch * m * k * n


def cases() -> list[Case]:
    found = [
        Case("relu(x @ w + b) 4096^3", relu, ((4096, 4096), (4096, 4096), (4096,)), product(4096, 4096, 4096)),
        Case("gelu(x @ w + b) * r 4096^3", gelu, ((4096, 4096), (4096, 4096), (4096,), (4096, 4096)),
             product(4096, 4096, 4096)),
    ]
    for rows in (16, 1):
        found.append(Case(f"gelu(x @ w + b) * r T={rows}", gelu, ((rows, 2048), (2048, 5632), (5632,), (rows, 5632)),
                          product(rows, 2048, 5632)))
    for rows in (8192, 64, 16, 1):
        found.append(Case(f"SwiGLU MLP T={rows}", swiglu, ((rows, 2048), (5632, 2048), (5632, 2048), (2048, 5632)),
                          3 * product(rows, 2048, 5632)))
    return [
        *found,
        Case("bmm 1024x64^3", torch.bmm, ((1024, 64, 64), (1024, 64, 64)), product(64, 64, 64, 1024)),
        Case("experts einsum 8x64x1024x4096", experts, ((8, 64, 1024), (8, 1024, 4096)), product(64, 1024, 4096, 8)),
        Case("grouped relu 64x64x512x512", grouped, ((64, 64, 512), (64, 512, 512), (64, 64, 512)),
             product(64, 512, 512, 64)),
        Case("x @ w 16x4096x4096", torch.mm, ((16, 4096), (4096, 4096)), product(16, 4096, 4096)),
        Case("linear 16x4096x4096", F.linear, ((16, 4096), (4096, 4096)), product(16, 4096, 4096)),
        Case("linear 256x1024x1024", F.linear, ((256, 1024), (1024, 1024)), product(256, 1024, 1024)),
    ]


def captured(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def in_turns(graphs: dict[str, torch.cuda.CUDAGraph]) -> dict[str, float]:
    """Median microseconds of each graph, the cache being flushed ahead of each replay."""
    area = torch.zeros(64 << 20, dtype=torch.float32, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in graphs}

    def round_() -> None:
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            area.zero_()
            start.record()
            graph.replay()
            end.record()
            events[name].append((start, end))

    settled = time.perf_counter() + WARM_UP
    while time.perf_counter() < settled:
        round_()
        torch.cuda.synchronize()
    for pairs in events.values():
        pairs.clear()
    for _ in range(ROUNDS):
        round_()
    torch.cuda.synchronize()
    return {name: 1e3 * statistics.median(start.elapsed_time(end) for start, end in pairs)
            for name, pairs in events.items()}


def measure(case: Case, tuned: bool, tunes_other: bool, bandwidth: float, rate: float) -> dict[str, Any]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    inputs = [torch.randn(shape, device="cuda").div_(shape[-1] ** 0.5 if len(shape) > 1 else 1).bfloat16()
              for shape in case.shapes]
    exact = case.fn(*(one.double() for one in inputs))
    ways: dict[str, Callable[..., Any]] = {"eager": case.fn, "compile": torch.compile(case.fn),
                                           "jitpy": jitpy.jit(case.fn)}
    if tunes_other:
        ways["compile tuned"] = torch.compile(case.fn, mode="max-autotune-no-cudagraphs", dynamic=False)
    if tuned:
        ways["jitpy tuned"] = jitpy.jit(case.fn, mode="max-autotune")
    row: dict[str, Any] = {"name": case.name}
    graphs = {}
    for name, fn in ways.items():
        try:
            started = time.perf_counter()
            found = fn(*inputs)
            torch.cuda.synchronize()
            row[f"{name} first s"] = time.perf_counter() - started
            row[f"{name} error"] = distance(found, exact)
            graphs[name] = captured(lambda fn=fn: fn(*inputs))
        except Exception as error:  # a benchmark goes on
            row[f"{name} failed"] = f"{type(error).__name__}: {error}"[:200]
    moved = sum(one.nbytes for one in inputs) + exact.numel() * 2
    del exact
    row |= in_turns(graphs)
    row["limit"] = max(moved / bandwidth / 1e3, case.operations / rate)
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--budget", type=float, default=240, help="seconds after which torch.compile is not tuned")
    parser.add_argument("--no-tuned", action="store_true")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    started = time.perf_counter()
    bandwidth = copy_bandwidth()
    big = torch.randn(8192, 8192, device="cuda").bfloat16()
    rate = product(8192, 8192, 8192) / in_turns({"": captured(lambda: big @ big)})[""]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copy {bandwidth:.0f} GB/s, "
          f"products {rate / 1e6:.0f} TFLOP/s")
    columns = ("eager", "compile", "compile tuned", "jitpy", "jitpy tuned", "limit")
    print(f"{'microseconds':32}" + "".join(f"{name:>14}" for name in columns)
          + f"{'share':>7}{'error':>9}{'(eager)':>9}")
    rows = []
    for case in cases():
        if options.only not in case.name:
            continue
        other = not options.no_tuned and time.perf_counter() - started < options.budget
        row = measure(case, not options.no_tuned, other, bandwidth, rate)
        rows.append(row)
        times = "".join(f"{row[name]:14.1f}" if name in row else f"{'-':>14}" for name in columns)
        best = min(row[name] for name in ("jitpy", "jitpy tuned") if name in row)
        print(f"{case.name:32}{times}{row['limit'] / best:7.2f}{row['jitpy error']:9.1e}{row['eager error']:9.1e}"
              + "".join(f"\n    {key}: {row[key]}" for key in row if key.endswith("failed")), flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
