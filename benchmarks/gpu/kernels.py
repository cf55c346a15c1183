"""Memory-bound kernels on a GPU: achieved share of the copy bandwidth, against eager and torch.compile.

    python -m benchmarks.gpu.kernels [--only NAME,...] [--no-compile] [--mode MODE] [--flush HOW] [--json FILE]

Each function is captured once in a CUDA graph and replayed with a cold L2 cache, so that the times are the device's.
The cache is filled by writing other memory: every kernel, the copy too, then also waits for some 20 MB of the flush's
own lines to leave (3 to 5 us), which weighs most on kernels that only read. `--flush read` fills it by reading.
`share` is the bytes that must move at least, over the time, relative to a copy of 134 MB measured in the same run.
`error` is the distance from the same function of the inputs in float64, relative to its size, beside eager's own.
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

Tensor = torch.Tensor
ROWS, COLUMNS = 16384, 4096
#: Seconds of replays before any is timed. What ran before (compilers while the card was idle, the exact results in
#: float64) shows for some ten milliseconds: cross entropy, which computes much, took 180 us then and 155 behind them.
WARM_UP = 0.1


@dataclass(frozen=True)
class Case:
    """`fn(*make())` moves `bytes(inputs, outputs)`: by default each input once and each output once."""

    name: str
    fn: Callable[..., Any]
    make: Callable[[], tuple[Tensor, ...]]
    moved: Callable[..., int] | None = None


def big(dtype: torch.dtype = torch.bfloat16, *shape: int) -> Tensor:
    return torch.randn(*(shape or (ROWS, COLUMNS)), device="cuda").to(dtype)


def vector(dtype: torch.dtype = torch.bfloat16, n: int = COLUMNS) -> Tensor:
    return torch.randn(n, device="cuda").to(dtype)


def rms_norm(x: Tensor, residual: Tensor, w: Tensor) -> Tensor:
    h = (x + residual).float()
    return (h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def written_out_softmax(x: Tensor) -> Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    m = m * 0.9 + g * 0.1
    v = v * 0.999 + g * g * 0.001
    return p - 0.01 * (m / 0.9) / ((v / 0.95).sqrt() + 1e-8), m, v


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5)


def rows_read(w: Tensor, i: Tensor, *rest: Tensor) -> int:
    return 2 * i.numel() * w.shape[1] * w.element_size() + i.nbytes


CASES = [
    Case("gelu", lambda x: F.gelu(x), lambda: (big(),)),
    Case("gelu written out", lambda x: 0.5 * x * (1 + torch.erf(x * 0.7071067811865476)), lambda: (big(),)),
    Case("bias relu scale", lambda x, b: torch.relu(x + b) * 0.5, lambda: (big(), vector())),
    Case("softmax", lambda x: torch.softmax(x, -1), lambda: (big(),)),
    Case("softmax written out", written_out_softmax, lambda: (big(),)),
    Case("layer norm", lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b), lambda: (big(), vector(), vector())),
    Case("rms norm residual", rms_norm, lambda: (big(), big(), vector())),
    Case("row sum", lambda x: x.sum(-1), lambda: (big(),)),
    Case("column sum", lambda x: x.sum(0), lambda: (big(),)),
    Case("full sum", lambda x: x.sum(), lambda: (big(),)),
    Case("outer broadcast", lambda x, y: x[:, None] * y[None], lambda: (vector(n=ROWS), vector())),
    Case("swiglu", lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], lambda: (big(),)),
    Case("rotary", rotary, lambda: (big(torch.bfloat16, 8, 32, 2048, 128), big(torch.bfloat16, 2048, 128),
                                    big(torch.bfloat16, 2048, 128))),
    Case("cross entropy 50k", lambda x, t: F.cross_entropy(x, t, reduction="none"),
         lambda: (big(torch.bfloat16, 4096, 50257), torch.randint(0, 50257, (4096,), device="cuda"))),
    Case("group norm silu", lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)),
         lambda: (big(torch.bfloat16, 32, 512, 64, 64), vector(n=512), vector(n=512))),
    Case("adam fp32", adam, lambda: tuple(big(torch.float32).abs() for _ in range(4))),
    Case("transpose add", lambda x, y: x.t() + y, lambda: (big(torch.bfloat16, 8192, 8192),
                                                           big(torch.bfloat16, 8192, 8192))),
    Case("variance normalisation", normalised, lambda: (big(),)),
    Case("embedding layer norm", lambda w, i, g, b: F.layer_norm(F.embedding(i, w), (1024,), g, b),
         lambda: (big(torch.bfloat16, 50257, 1024), torch.randint(0, 50257, (64, 1024), device="cuda"),
                  vector(n=1024), vector(n=1024)), rows_read),
    Case("cumsum", lambda x: x.cumsum(-1), lambda: (big(torch.float32, 8192, 4096),)),
    Case("argmax", lambda x: x.argmax(-1), lambda: (big(),)),
]


def device_time(call: Callable[[], Any], flush: str = "written") -> float:
    """Milliseconds of one call on the device: the median of replays, each behind a flush of the cache."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    area = torch.zeros(64 << 20, dtype=torch.float32, device="cuda")

    def replays(count: int) -> list[float]:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        for start, end in events:
            area.zero_() if flush == "written" else area.sum()
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    settled = time.perf_counter() + WARM_UP
    while time.perf_counter() < settled:
        replays(10)
    return statistics.median(replays(25))


def copy_bandwidth(flush: str = "written") -> float:
    """Bytes read and written by a copy, in GB/s."""
    source = big()
    target = torch.empty_like(source)
    return 2 * source.nbytes / device_time(lambda: target.copy_(source), flush) / 1e6


def bytes_of(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(bytes_of, value)) if isinstance(value, (tuple, list)) else 0


def measure(
    case: Case, compiled: bool, bandwidth: float, mode: str = "default", flush: str = "written"
) -> dict[str, Any]:
    """One row of the table; failures are part of it."""
    torch.manual_seed(0)
    inputs = case.make()
    moved = case.moved(*inputs) if case.moved else bytes_of(inputs) + bytes_of(case.fn(*inputs))
    exact = case.fn(*(value.double() if value.is_floating_point() else value for value in inputs))
    row: dict[str, Any] = {"name": case.name, "MB": round(moved / 1e6)}
    ways: dict[str, Callable[..., Any]] = {"jitpy": jitpy.jit(case.fn, mode=mode), "eager": case.fn}
    if compiled:
        torch._dynamo.reset()
        ways["torch.compile"] = torch.compile(case.fn)
    for name, fn in ways.items():
        try:
            started = time.perf_counter()
            found = fn(*inputs)
            torch.cuda.synchronize()
            row[f"{name} first s"] = round(time.perf_counter() - started, 2)
            row[f"{name} error"] = distance(found, exact)
            del found
            row[name] = device_time(lambda fn=fn: fn(*inputs), flush)
        except Exception as error:  # a benchmark goes on
            row[name] = None
            row[f"{name} failed"] = f"{type(error).__name__}: {error}"[:300]
    if row["jitpy"]:
        row["share"] = moved / row["jitpy"] / 1e6 / bandwidth
    return row


def distance(found: Any, exact: Any) -> float:
    """How far results are from what is exact, relative to its size."""
    pairs = zip(found, exact, strict=True) if isinstance(found, (tuple, list)) else [(found, exact)]
    return max(float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--mode", default="default", help="jitpy's: default, max-autotune")
    parser.add_argument("--flush", choices=["read", "written"], default="written", help="how the cache is filled")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    bandwidth = copy_bandwidth(options.flush)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copy {bandwidth:.0f} GB/s")
    rows = []
    head = f"{'microseconds':24}{'MB':>6}{'eager':>9}{'compile':>9}{'jitpy':>9}{'share':>7}"
    print(head + f"{'x compile':>10}{'error':>9}{'(eager)':>9}{'first s':>8}")
    wanted = [name for name in options.only.split(",") if name]
    for case in CASES:
        if wanted and case.name not in wanted:
            continue
        row = measure(case, not options.no_compile, bandwidth, options.mode, options.flush)
        rows.append(row)
        jit, other = row["jitpy"], row.get("torch.compile")
        times = "".join(f"{row[name] * 1e3:9.1f}" if row.get(name) else f"{'-':>9}"
                        for name in ("eager", "torch.compile", "jitpy"))
        ratio = f"{other / jit:10.2f}" if other and jit else f"{'-':>10}"
        print(f"{case.name:24}{row['MB']:6}{times}{row.get('share', 0):7.2f}{ratio}"
              f"{row.get('jitpy error', float('nan')):9.1e}{row.get('eager error', float('nan')):9.1e}"
              f"{row.get('jitpy first s', 0):8.2f}"
              + "".join(f"\n    {key}: {row[key]}" for key in row if key.endswith("failed")), flush=True)
        write(options.json, bandwidth, rows)
    ratios = [row["torch.compile"] / row["jitpy"] for row in rows if row.get("torch.compile") and row["jitpy"]]
    if ratios:
        print(f"geometric mean over torch.compile: {statistics.geometric_mean(ratios):.3f}")

def write(path: str, bandwidth: float, rows: list[dict[str, Any]]) -> None:
    """Keep what there is so far."""
    if path:
        with open(path, "w") as file:
            json.dump({"bandwidth": bandwidth, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
