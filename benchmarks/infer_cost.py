"""Prints what a shape rule costs: microseconds per `infer`, over the ops of a Transformer block, against meta tensors.

python -m benchmarks.infer_cost
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from jitpy.ir import SizeEnv, TensorSpec, contiguous_stride, ops
from jitpy.ir.ops.derived import derive
from jitpy.ir.ops.oracle import ANSWERS


def tensor(*shape: Any, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec(dtype, shape, contiguous_stride(shape), requires_grad=dtype.is_floating_point)


def calls(batch: Any, length: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """One call of each kind that a Transformer block makes."""
    hidden, weight = tensor(batch, length, 768), tensor(768, 768)
    heads = tensor(batch, 12, length, 64)
    split = TensorSpec(torch.float32, (batch, 12, length, 64), (768 * length, 64, 768, 1), requires_grad=True)
    ids = tensor(batch, length, dtype=torch.int64)
    vector = tensor(768)
    return [
        ("embedding.default", (tensor(30000, 768), ids)),
        ("linear.default", (hidden, weight, vector)),
        ("view.default", (hidden, [batch, length, 12, 64])),
        ("transpose.int", (tensor(batch, length, 12, 64), 1, 2)),
        ("matmul.default", (heads, tensor(batch, 12, 64, length))),
        ("div.Tensor", (tensor(batch, 12, length, length), 8.0)),
        ("add.Tensor", (tensor(batch, 12, length, length), tensor(batch, 1, 1, length))),
        ("softmax.int", (tensor(batch, 12, length, length), -1)),
        ("dropout.default", (hidden, 0.1, False)),
        ("permute.default", (heads, [0, 2, 1, 3])),
        ("contiguous.default", (split,)),
        ("reshape.default", (split, [batch, length, 768])),
        ("layer_norm.default", (hidden, [768], vector, vector, 1e-12)),
        ("gelu.default", (hidden,)),
        ("add.Tensor", (hidden, hidden)),
        ("mul.Tensor", (hidden, vector)),
        ("slice.Tensor", (hidden, 1, 0, 1)),
        ("select.int", (hidden, 1, 0)),
        ("cat.default", ([hidden, hidden], -1)),
        ("mean.dim", (hidden, [-1], True)),
        ("to.dtype", (hidden, torch.float64)),
        ("lt.Tensor", (ids, ids)),
        ("masked_fill.Scalar", (tensor(batch, length), tensor(batch, length, dtype=torch.bool), 0.0)),
        ("scaled_dot_product_attention.default", (heads, heads, heads)),
    ]


def microseconds(fn: Callable[[], Any], repeats: int) -> float:
    fn()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    return (time.perf_counter() - start) / repeats * 1e6


def main() -> None:
    fixed, symbolic = SizeEnv(), SizeEnv()
    batch, length = symbolic.new_symbol(8, "batch"), symbolic.new_symbol(128, "length")
    print(f"{'op':40s} {'static':>9s} {'symbolic':>9s} {'meta':>9s}  (us)")
    totals = [0.0, 0.0, 0.0]
    rows = zip(calls(8, 128), calls(batch, length), strict=True)
    for (name, args), (_, symbolic_args) in rows:
        op = ops.get(f"aten.{name}")

        def on_meta(op: Any = op, args: Any = args) -> None:
            ANSWERS.clear()
            derive(op, fixed, args, {})

        costs = (
            microseconds(lambda op=op, args=args: ops.infer(op, fixed, args), 2000),
            microseconds(lambda op=op, args=symbolic_args: ops.infer(op, symbolic, args), 100),
            microseconds(on_meta, 100),
        )
        totals = [t + c for t, c in zip(totals, costs, strict=True)]
        print(f"{name:40s} {costs[0]:9.1f} {costs[1]:9.1f} {costs[2]:9.1f}")
    count = len(calls(8, 128))
    print(f"{'mean':40s} {totals[0] / count:9.1f} {totals[1] / count:9.1f} {totals[2] / count:9.1f}")
    assert not symbolic.relations, symbolic.relations


if __name__ == "__main__":
    main()
