"""Norms, softmax and cross entropy by the width of their rows, and the gradients: shares of the copy bandwidth.

    python -m benchmarks.gpu.rows [--dtype float32] [--widths N,N] [--only TEXT] [--rows N] [--budget SECONDS]
                                  [--no-compile] [--json FILE]

There are as many rows as 134 MB have in bfloat16, or `--rows`. The figures are those of `benchmarks.gpu.kernels`: bytes
that must move at least over the time, relative to a copy. Beside them stands torch.compile's share.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from .kernels import Case, Tensor, copy_bandwidth, measure

WIDTHS = (256, 1024, 4096, 16384, 65536, 262144)
ELEMENTS, EPS = 1 << 26, 1e-6
aten = torch.ops.aten


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt((h * h).mean(-1, keepdim=True) + EPS)).to(x.dtype) * w


def rms_gradient(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h, up = x.float(), g.float()
    scale = torch.rsqrt((h * h).mean(-1, keepdim=True) + EPS)
    normal, inner = h * scale, up * w.float()
    result = scale * (inner - normal * (inner * normal).mean(-1, keepdim=True))
    return result.to(x.dtype), (up * normal).sum(0).to(w.dtype)


def layer_norm_gradient(g: Tensor, x: Tensor, mean: Tensor, scale: Tensor, w: Tensor, b: Tensor) -> Any:
    return aten.native_layer_norm_backward(g, x, (x.shape[-1],), mean, scale, w, b, [True, True, True])


def cross_entropy_gradient(x: Tensor, t: Tensor) -> Tensor:
    chosen = torch.arange(x.shape[-1], device=x.device) == t[:, None]
    return ((torch.softmax(x.float(), -1) - chosen.float()) / x.shape[0]).to(x.dtype)


def cases(width: int, rows: int, dtype: torch.dtype) -> list[Case]:
    def matrix() -> Tensor:
        return torch.randn(rows, width, device="cuda", dtype=dtype)

    def vector() -> Tensor:
        return torch.randn(width, device="cuda", dtype=dtype)

    def targets() -> Tensor:
        return torch.randint(0, width, (rows,), device="cuda")

    def normalised() -> tuple[Tensor, ...]:
        x = matrix()
        return x, *torch.native_layer_norm(x, (width,), None, None, EPS)[1:]

    functions: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
        "softmax": (lambda x: torch.softmax(x, -1), lambda: (matrix(),)),
        "softmax gradient": (lambda g, y: aten._softmax_backward_data(g, y, -1, y.dtype),
                             lambda: (matrix(), matrix().softmax(-1))),
        "layer norm": (lambda x, w, b: F.layer_norm(x, (width,), w, b, EPS), lambda: (matrix(), vector(), vector())),
        "layer norm gradient": (layer_norm_gradient, lambda: (matrix(), *normalised(), vector(), vector())),
        "rms norm": (rms_norm, lambda: (matrix(), vector())),
        "rms norm gradient": (rms_gradient, lambda: (matrix(), matrix(), vector())),
        "cross entropy": (lambda x, t: F.cross_entropy(x, t, reduction="none"), lambda: (matrix(), targets())),
        "cross entropy gradient": (cross_entropy_gradient, lambda: (matrix(), targets())),
    }
    return [Case(f"{name} {width}", *parts) for name, parts in functions.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--only", default="")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--budget", type=float, default=3600.0)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    dtype, ends = getattr(torch, options.dtype), time.monotonic() + options.budget
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.dtype}: copy {bandwidth:.0f} GB/s")
    print(f"{'':32}{'rows':>8}{'us':>10}{'share':>8}{'compile':>9}{'error':>9}{'(eager)':>9}")
    found = []
    for width in map(int, options.widths.split(",")):
        rows = options.rows or ELEMENTS // width
        for case in cases(width, rows, dtype):
            if options.only not in case.name or time.monotonic() > ends:
                continue
            row = measure(case, not options.no_compile, bandwidth)
            found.append(row | {"rows": rows})
            other, own = row.get("torch.compile"), row["jitpy"]
            compiled = row["share"] * own / other if own and other else 0.0
            print(f"{case.name:32}{rows:8}{(own or 0) * 1e3:10.1f}{row.get('share', 0):8.2f}{compiled:9.2f}"
                  f"{row.get('jitpy error', 0):9.1e}{row.get('eager error', 0):9.1e}"
                  + "".join(f"\n    {key}: {row[key]}" for key in row if key.endswith("failed")), flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps({"bandwidth": bandwidth, "rows": found}))


if __name__ == "__main__":
    main()
