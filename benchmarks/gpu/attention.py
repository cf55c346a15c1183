"""Attention written out by hand, against torch's scaled_dot_product_attention on the same inputs.

    python -m benchmarks.gpu.attention [--no-compile] [--json FILE]

Microseconds on the device: calls captured in a CUDA graph, the median of rounds in which the versions take turns.
`error` is the distance from float64, relative to its norm.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import jitpy

ROUNDS, CALLS = 15, 10
SHAPE = (16, 8, 1024, 64)

Tensor = torch.Tensor


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, -1) @ v


def cases() -> dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]]:
    return {
        "attention": (plain, F.scaled_dot_product_attention),
        "causal attention": (causal, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    }


def captured(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> torch.cuda.CUDAGraph:
    """`CALLS` calls as one graph."""
    for _ in range(3):
        function(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            function(*inputs)
    return graph


def measure(versions: dict[str, Callable[..., Any]], inputs: tuple[Tensor, ...]) -> dict[str, float]:
    graphs = {name: captured(function, inputs) for name, function in versions.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) / CALLS * 1e3)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    inputs = tuple(torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    exact_inputs = tuple(value[:1].double() for value in inputs)
    table: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        for name, (function, library) in cases().items():
            versions = {"eager": function, "sdpa": library, "jitpy": jitpy.jit(function)}
            if not chosen.no_compile:
                versions["compile"] = torch.compile(function)
            figures = table[name] = measure(versions, inputs)
            exact = function(*exact_inputs)
            for version, call in versions.items():
                error = ((call(*inputs)[:1].double() - exact).norm() / exact.norm()).item()
                figures[f"error {version}"] = error
                print(f"{name:18} {version:8} {figures[version]:8.1f} us  error {error:.1e}", flush=True)
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
