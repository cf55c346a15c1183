"""Kernel families: functions with inputs that lead to each kind of kernel, for interpreter, compiler and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
BF16, HALF = torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Case:
    """`fn(*make())`. `launches`: how many there must be at most; `calls`: whether torch's kernels may help."""

    name: str
    fn: Callable[..., Any]
    make: Callable[[], tuple[Tensor, ...]]
    launches: int = 1
    #: where the reference is eager's own result, bit for bit
    exact: bool = False
    calls: bool = False
    #: units in the last place that it may be off where eager adds up in double precision
    units: float = 4

    def __str__(self) -> str:
        return self.name


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def integers(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(low, high, shape, dtype=dtype)


def special_rows() -> tuple[Tensor]:
    """Long rows with what is not finite: one infinity, nothing but -inf, NaN, -inf everywhere but at the end."""
    x = randn(5, 18000)
    x[0, 5], x[1], x[2, 17000] = float("inf"), float("-inf"), float("nan")
    x[3, :-1] = float("-inf")
    return (x,)


def short_extremes(dtype: torch.dtype, length: int) -> Tensor:
    """Rows where extremes meet: equal ones, zeros of both signs, infinities, NaN of both signs, tiny numbers."""
    x = (randn(12, length) * 2).round()
    x[0], x[1], x[2, 5], x[3, 9] = float("-inf"), float("inf"), float("nan"), -float("nan")
    x[4], x[4, 7:] = 0.0, -0.0
    x[5], x[5, 7:] = -0.0, 0.0
    x[6] *= 1e-7
    x[7, 11:] = float("nan")
    return x.to(dtype)


def rms_norm(x: Tensor, residual: Tensor, w: Tensor) -> Tensor:
    h = x + residual
    return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-5) * w


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def tensors(*sizes: int) -> tuple[Tensor, ...]:
    return tuple(randn(size) for size in sizes)


def conversions(*parameters: Tensor) -> tuple[Tensor, ...]:
    return tuple(p.to(BF16) for p in parameters)


def updates(rate: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
    """Of parameters with their gradients, by a rate that all share."""
    half = len(state) // 2
    pairs = zip(state[:half], state[half:], strict=True)
    return tuple(part for p, g in pairs for part in (p - rate * g, (p * g).abs()))


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    m = m * 0.9 + g * 0.1
    v = v * 0.999 + g * g * 0.001
    return p - 0.01 * (m / 0.9) / ((v / 0.95).sqrt() + 1e-8), m, v


def batch_norm(x: Tensor) -> Tensor:
    return (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), keepdim=True) + 1e-5).sqrt()


def layer_norm_gradient(g: Tensor, x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Also the gradient of a bias in front of it, as the sum of what is handed on."""
    _, mean, rstd = torch.native_layer_norm(x, (x.shape[-1],), w, b, 1e-5)
    dx, dw, db = torch.ops.aten.native_layer_norm_backward(g, x, (x.shape[-1],), mean, rstd, w, b, [True, True, True])
    return dx * 2, (dx * 2).sum(0), dw, db


SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, float("inf"), float("-inf"), float("nan"), 1e-40, 88.7, -104.0, 3e38] * 5
)
UNARY = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "erf", "erfc", "sigmoid", "reciprocal", "floor",
    "ceil", "trunc", "round", "sign", "abs", "neg", "relu", "square",
]  # fmt: skip


def unary(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(getattr(torch, name)(x) for name in UNARY)


def arithmetic(x: Tensor) -> tuple[Tensor, ...]:
    return x // 3, x % 5, x * 7, -x, x >> 1, x & 6, x | 9, x ^ 3, ~x, torch.fmod(x, 3), x.clamp(2, 40), x.float()


def logic(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x & y, x | y, ~x, x ^ y, x.float(), x < y, x >= y, torch.where(x, 1, 0), x == y, torch.maximum(x, y)


def predicates(x: Tensor) -> tuple[Tensor, ...]:
    return x.isnan(), x.isinf(), x.isfinite(), x.signbit(), x > 0, x != x, torch.logical_not(x)


def casts(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        (x + 0).to(t) for t in (torch.int8, torch.int16, torch.int32, torch.int64, torch.double, BF16, HALF, torch.bool)
    )


def strided(x: Tensor) -> Tensor:
    return x[1::2, ::3].t() * 2 + 1


CASES = [
    # pointwise
    Case("sin_chain", lambda x: (x + 1).sin() * 2, lambda: (randn(37, 130),)),
    Case("flip_of_reshaped", lambda x: 1 - x[..., None].expand(5, 3, 2).reshape(5, 6).flip(-1), lambda: (randn(5, 3),)),
    Case("sixteen", lambda x: (x + 1).sin() * 2, lambda: (randn(16),)),
    Case("gelu_bf16", lambda x: F.gelu(x), lambda: (randn(33, 130, dtype=BF16),)),
    Case("gelu_tanh_fp16", lambda x: F.gelu(x, approximate="tanh"), lambda: (randn(33, 130, dtype=HALF),)),
    Case("bias_relu_scale", lambda x, b: torch.relu(x + b) * 0.5,
         lambda: (randn(37, 130, dtype=BF16), randn(130, dtype=BF16))),
    Case("rows_of_blocks", lambda x, b: torch.relu(x + b) * 0.5, lambda: (randn(6, 1024), randn(1024))),
    Case("swiglu", lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], lambda: (randn(9, 130),)),
    Case("rotary", rotary, lambda: (randn(2, 3, 10, 16), randn(10, 16), randn(10, 16))),
    Case("many_conversions", conversions, lambda: tensors(5000, 3, 128, 129, 1, 2048, 700), launches=2, exact=True),
    Case("many_updates", updates, lambda: (randn(1)[0], *tensors(300, 7, 1024, 300, 7, 1024)), units=8),
    Case("many_counters", lambda *steps: tuple(s + 1 for s in steps), lambda: tuple(randn(5).unbind()), exact=True),
    Case("adam", adam, lambda: (randn(33, 7), randn(33, 7), randn(33, 7), randn(33, 7).abs())),
    Case("outer", lambda x, y: x[:, None] * y[None], lambda: (randn(33), randn(200))),
    Case("outer_sum", lambda x, y, z: x[:, None, None] + y[None, :, None] * z, lambda: (randn(9), randn(20), randn(7))),
    Case("zero_dim", lambda x, y: x * y + 1, lambda: (torch.tensor(2.0), torch.tensor(3.0))),
    Case("zero_dim_operand", lambda x, y: x * y, lambda: (randn(50), torch.tensor(3.0))),
    Case("empty", lambda x: x * 2 + 1, lambda: (randn(0, 5),), launches=0, calls=True),
    Case("one", lambda x: x * 2 + 1, lambda: (randn(1, 1),)),
    Case("strided", strided, lambda: (randn(30, 40),)),
    Case("unary", unary, lambda: (randn(100) * 3,), launches=30),
    Case("unary_special", unary, lambda: (SPECIAL,), launches=30),
    Case("unary_double", unary, lambda: (SPECIAL.double(),), launches=30),
    Case("predicates", predicates, lambda: (SPECIAL,), exact=True),
    Case("predicates_double", predicates, lambda: (SPECIAL.double(),), exact=True),
    Case("zeros_with_signs", lambda x: torch.copysign(torch.ones_like(x), -x),
         lambda: (torch.tensor([0.0, -0.0, 1.0]),), exact=True),
    Case("power", lambda x: (x**2, x**3.5, x.abs() ** 0.5, 2**x, x**-1), lambda: (randn(50),)),
    Case("modulo", lambda x, y: (x % y, torch.fmod(x, y), x // y), lambda: (randn(37, 130) * 9, randn(130))),
    Case("modulo_double", lambda x, y: (x % y, x // y), lambda: (randn(37, 13).double(), randn(13).double())),
    Case("minmax", lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y)),
         lambda: (SPECIAL, SPECIAL.flip(0)), exact=True),
    Case("clamp", lambda x: (x.clamp(-0.3, 0.7), x.clamp_min(0.1)), lambda: (SPECIAL,), exact=True),
    Case("two_operands", lambda x, y: (torch.atan2(x, y), torch.copysign(x, y), x / y, x - 2 * y),
         lambda: (randn(37, 13), randn(13))),
    Case("casts", casts, lambda: (randn(33, 17) * 10,), launches=2, exact=True),
    Case("casts_of_integers", lambda x: (x.float(), x.double(), x.to(BF16), x.bool(), x.to(torch.int8)),
         lambda: (integers(-100, 100, 33),), exact=True),
    Case("bool", logic, lambda: (randn(30) > 0, randn(30) > 0), launches=4, exact=True),
    Case("int8", arithmetic, lambda: (integers(-50, 50, 33, 7, dtype=torch.int8),), launches=6, exact=True),
    Case("int16", arithmetic, lambda: (integers(-5000, 5000, 33, 7, dtype=torch.int16),), launches=6, exact=True),
    Case("int32", arithmetic, lambda: (integers(-(2**30), 2**30, 33, 7, dtype=torch.int32),), launches=6, exact=True),
    Case("int64", arithmetic, lambda: (integers(-(2**60), 2**60, 33, 7),), launches=6, exact=True),
    Case("uint8", arithmetic, lambda: (integers(0, 255, 33, 7, dtype=torch.uint8),), launches=6, exact=True),
    Case("double", lambda x: (x * 0.1, x.exp() / 3, torch.where(x > 0, 0.1, x)), lambda: (randn(33, 7).double(),)),
    # layouts
    Case("transposed_operand", lambda x, y: x.t() + y, lambda: (randn(37, 130), randn(130, 37))),
    Case("transposed_result", lambda x: (x + 1).t().contiguous(), lambda: (randn(37, 130),)),
    Case("transposed_bf16", lambda x, y: x.t() + y, lambda: (randn(70, 130, dtype=BF16), randn(130, 70, dtype=BF16))),
    Case("permuted", lambda x, y: x.permute(2, 0, 1) + y, lambda: (randn(20, 30, 40), randn(40, 20, 30))),
    Case("channels_last", lambda x: (x * 2).contiguous(memory_format=torch.channels_last),
         lambda: (randn(2, 20, 9, 9),)),
    Case("cat", lambda x, y: torch.cat([x * 2, y, x], 1), lambda: (randn(37, 30), randn(37, 5)), launches=2),
    Case("pad", lambda x: F.pad(x, (3, 5, 1, 2), value=7.0), lambda: (randn(37, 30),)),
    Case("flip", lambda x: x.flip(0) + 1, lambda: (randn(37, 30),)),
    Case("roll", lambda x: x.roll(3, 1) + 1, lambda: (randn(37, 30),)),
    Case("arange", lambda x: x + torch.arange(30, device=x.device), lambda: (randn(37, 30),)),
    Case("tril", lambda x: x.tril(), lambda: (randn(37, 30),)),
    Case("reshape", lambda x: x.reshape(30, 37) * 2, lambda: (randn(37, 30),)),
    Case("group_mean_back", lambda x: x - x.reshape(3, 4, 10).mean(1).repeat_interleave(4, 0).reshape(12, 10),
         lambda: (randn(12, 10),), launches=3),
    # computed places
    Case("embedding", lambda w, i: F.embedding(i, w) * 2, lambda: (randn(37, 30), integers(0, 37, 5, 7))),
    Case("gather", lambda x, i: x.gather(1, i), lambda: (randn(37, 30), integers(0, 30, 37, 9))),
    Case("advanced_index", lambda x, i: x[i, i] + 1, lambda: (randn(30, 30), integers(-30, 30, 9))),
    Case("index_select", lambda x, i: x.index_select(1, i), lambda: (randn(9, 30), integers(0, 30, 12))),
    Case("embedding_norm", lambda w, i, g: F.layer_norm(F.embedding(i, w), (64,), g),
         lambda: (randn(37, 64), integers(0, 37, 5, 7), randn(64))),
    # additions at computed places
    Case("embedding_gradient", lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 37, 3, False),
         lambda: (randn(5, 70, 30), integers(0, 37, 5, 70)), launches=2),
    Case("index_add", lambda x, i, y: x.index_add(0, i, y.exp()) * 2,
         lambda: (randn(40, 16), integers(0, 40, 90), randn(90, 16)), launches=3),
    Case("scatter_add", lambda x, i, y: x.scatter_add(1, i, y),
         lambda: (randn(40, 16), integers(0, 16, 40, 29), randn(40, 29)), launches=3),
    Case("index_put", lambda x, i, j, y: x.index_put((i, j), y, True),
         lambda: (randn(40, 16), integers(-40, 40, 99), integers(0, 16, 99), randn(99)), launches=3),
    Case("embedding_gradient_bf16", lambda g, i: torch.ops.aten.embedding_dense_backward(g * 2, i, 37, 3, False),
         lambda: (randn(5, 70, 30, dtype=BF16), integers(0, 37, 5, 70)), launches=3),
    Case("index_put_fp16", lambda x, i, j, y: x.index_put((i, j), y, True) + 1,
         lambda: (randn(5, 16, dtype=HALF), integers(-5, 5, 99), integers(0, 16, 99), randn(99, dtype=HALF)),
         launches=3),
    Case("gather_gradient", lambda g, i: g.new_zeros(37, 30).scatter_add(1, i, g),
         lambda: (randn(37, 50), integers(0, 30, 37, 50)), launches=2),
    # rows
    Case("softmax", lambda x: torch.softmax(x, -1), lambda: (randn(37, 130),)),
    Case("softmax_bf16", lambda x: torch.softmax(x, -1), lambda: (randn(37, 128, dtype=BF16),)),
    Case("softmax_written_out", lambda x: (x - x.amax(-1, keepdim=True)).exp() /
         (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True), lambda: (randn(37, 130),)),
    Case("log_softmax_special", lambda x: (torch.log_softmax(x, -1), torch.softmax(x, -1)), special_rows),
    Case("softmax_long", lambda x: torch.softmax(x, -1), lambda: (randn(2, 20000),)),
    Case("log_softmax", lambda x: torch.log_softmax(x, -1), lambda: (randn(37, 130),)),
    Case("masked_softmax", lambda x, m: torch.softmax(x.masked_fill(m, float("-inf")), -1),
         lambda: (randn(7, 64), randn(7, 64) > 0.5)),
    Case("layer_norm", lambda x, w, b: F.layer_norm(x, (130,), w, b), lambda: (randn(37, 130), randn(130), randn(130))),
    Case("layer_norm_bf16", lambda x, w, b: F.layer_norm(x, (128,), w, b),
         lambda: (randn(37, 128, dtype=BF16), randn(128, dtype=BF16), randn(128, dtype=BF16))),
    Case("layer_norm_long", lambda x, w, b: F.layer_norm(x, (20000,), w, b),
         lambda: (randn(2, 20000), randn(20000), randn(20000))),
    Case("layer_norm_gradient", layer_norm_gradient,
         lambda: (randn(700, 64), randn(700, 64), randn(64), randn(64)), launches=3, units=400),
    Case("rms_norm_residual", rms_norm, lambda: (randn(37, 130), randn(37, 130), randn(130))),
    Case("cross_entropy", lambda x, t: F.cross_entropy(x, t), lambda: (randn(37, 130), integers(0, 130, 37)),
         launches=4),
    Case("rows_that_start_anywhere", lambda x: x.float().logsumexp(-1), lambda: (randn(66, 20003, dtype=BF16),)),
    Case("log_softmax_that_starts_anywhere", lambda x: torch.log_softmax(x, -1),
         lambda: (randn(5, 20005, dtype=HALF),)),
    Case("softmax_of_a_part", lambda x: torch.softmax(x[:, 3:], -1), lambda: (randn(3, 20011),)),
    Case("cross_entropy_long", lambda x, t: F.cross_entropy(x, t), lambda: (randn(3, 20001), integers(0, 20001, 3)),
         launches=4),
    Case("layer_norm_held_bf16", lambda x, w, b: F.layer_norm(x, (20008,), w, b),
         lambda: (randn(2, 20008, dtype=BF16), randn(20008, dtype=BF16), randn(20008, dtype=BF16))),
    Case("softmax_held_fp16", lambda x, y: torch.softmax(x + y, -1) * y,
         lambda: (randn(2, 24576, dtype=HALF), randn(2, 24576, dtype=HALF))),
    Case("group_norm_held", lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)),
         lambda: (randn(1, 16, 80, 80), randn(16), randn(16))),
    Case("group_norm_silu", lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)),
         lambda: (randn(3, 16, 5, 7), randn(16), randn(16))),
    Case("batch_norm", batch_norm, lambda: (randn(3, 16, 5, 7),), launches=3),
    Case("var", lambda x: x.var(-1), lambda: (randn(37, 130),)),
    Case("std_of_columns", lambda x: x.std(0), lambda: (randn(37, 130),)),
    Case("logsumexp", lambda x: x.logsumexp(-1), lambda: (randn(37, 130),)),
    Case("norm", lambda x: x / x.norm(dim=-1, keepdim=True), lambda: (randn(37, 130),)),
    Case("argmax", lambda x: x.argmax(-1), lambda: (integers(0, 9, 37, 130).float(),), exact=True),
    Case("argmax_of_the_worst", lambda x: (x.argmax(-1), x.argmin(0)),
         lambda: (torch.full((3, 20001), float("-inf")),), launches=3, exact=True),
    Case("argmax_bf16", lambda x: (x.argmax(-1), x.argmin(-1)), lambda: (short_extremes(BF16, 130),), exact=True),
    Case("argmax_fp16", lambda x: (x.argmax(-1), x.argmin(-1)), lambda: (short_extremes(HALF, 128),), exact=True),
    Case("argmax_of_long_rows", lambda x: (x.argmax(-1), x.argmin(-1)), lambda: (short_extremes(BF16, 1300),),
         exact=True),
    Case("max_of_long_rows", lambda x: (x * 2).max(-1), lambda: (integers(-40, 40, 7, 2048, dtype=torch.int32),),
         exact=True),
    Case("argmin_of_long_sums", lambda x, y: (x + y).argmin(-1, keepdim=True) + y,
         lambda: (integers(-9, 9, 5, 700).float(), integers(-9, 9, 700).float()), exact=True),
    Case("max_of_a_part_bf16", lambda x: x[:, 3:].max(-1), lambda: (short_extremes(BF16, 40),), exact=True),
    Case("argmin_of_columns", lambda x: x.argmin(0), lambda: (integers(0, 9, 37, 130),), exact=True),
    Case("any_all", lambda x: ((x > 2).any(-1), (x > -2).all(-1)), lambda: (randn(37, 130),), exact=True),
    Case("prod", lambda x: x.prod(-1), lambda: (randn(37, 13),)),
    Case("integer_sums", lambda x: (x.sum(-1), x.amax(-1), x.prod(-1)), lambda: (integers(-5, 5, 37, 13),), exact=True),
    Case("int8_max", lambda x: (x.amax(-1), x.amin(-1)), lambda: (integers(-128, 127, 37, 13, dtype=torch.int8),),
         exact=True),
    Case("double_sum", lambda x: (x.sum(-1), x.amax(0)), lambda: (randn(37, 13).double(),), launches=2),
    Case("nan_max", lambda x: (x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1)),
         lambda: (torch.where(randn(37, 20) > 2, float("nan"), randn(37, 20)),), exact=True),
    Case("row_of_one", lambda x: torch.softmax(x, -1), lambda: (randn(37, 2),)),
    Case("row_sum_epilogue", lambda x, y: (x * y).sum(-1).tanh() + 1, lambda: (randn(300, 40), randn(40))),
    # columns, and everything
    Case("column_sum", lambda x: x.sum(0), lambda: (randn(37, 130),)),
    Case("column_softmax", lambda x: torch.softmax(x, 0), lambda: (randn(37, 130),)),
    Case("column_softmax_long", lambda x: torch.softmax(x, 0), lambda: (randn(700, 50),)),
    Case("column_sum_of_blocks", lambda x: x.sum(0), lambda: (randn(32 * 95, 33),), launches=2),
    Case("full_sum_of_blocks", lambda x: x.sum(), lambda: (randn(4096 * 31),), launches=2),
    Case("column_sum_tall", lambda x: x.sum(0), lambda: (randn(3000, 33),), launches=2),
    Case("column_sum_tall_epilogue", lambda x, y: (x * 2).sum(0).exp() + y, lambda: (randn(3000, 3) / 99, randn(3)),
         launches=2),
    Case("column_arg_tall", lambda x: (x.argmax(0), x.argmin(0)), lambda: (integers(0, 500, 3000, 7).float(),),
         launches=2, exact=True),
    Case("middle_and_last", lambda x: x.mean((0, 2)), lambda: (randn(50, 9, 70),), launches=2),
    Case("full_sum", lambda x: x.sum(), lambda: (randn(300, 200),), launches=2),
    Case("full_mean_bf16", lambda x: x.mean(), lambda: (randn(300, 200, dtype=BF16),), launches=2),
    Case("full_argmax", lambda x: (x.argmax(), x.argmin()), lambda: (integers(0, 10000, 300, 200).float(),),
         launches=2, exact=True),
    Case("full_any", lambda x: ((x > 4.5).any(), (x > -9).all(), x.amax()), lambda: (randn(300, 200),), launches=2,
         exact=True),
    Case("full_sum_and_map", lambda x: (x.sum(), x * 2), lambda: (randn(300, 200),), launches=3),
    # additions that start from something
    Case("index_add", lambda x, i, s: x.index_add(0, i, s, alpha=-0.5),
         lambda: (randn(50, 20), integers(0, 50, 30), randn(30, 20)), launches=2),
    Case("index_add_to_a_result", lambda x, i, s: (x * 2).index_add(0, i, s),
         lambda: (randn(50, 20), integers(0, 50, 30), randn(30, 20)), launches=2),
    Case("index_add_bf16", lambda x, i, s: x.index_add(0, i, s),
         lambda: (randn(50, 20, dtype=BF16), integers(0, 50, 30), randn(30, 20, dtype=BF16)), launches=2),
    Case("scatter_add_of_rows_fp16", lambda x, i, s: torch.zeros_like(x).scatter_add(0, i[:, None].expand(30, 20), s),
         lambda: (randn(50, 20, dtype=HALF), integers(0, 50, 30), randn(30, 20, dtype=HALF)), launches=2),
    Case("scatter_add_to_few_fp16", lambda x, i, s: x.scatter_add(1, i, s),
         lambda: (randn(20, 5, dtype=HALF), integers(0, 5, 20, 90), randn(20, 90, dtype=HALF)), launches=3),
    Case("scatter_add_to_columns", lambda x, i, s: x.t().scatter_add(0, i, s),
         lambda: (randn(20, 50), integers(0, 50, 30, 20), randn(30, 20)), launches=2),
    # scans
    Case("cumsum", lambda x: x.cumsum(-1), lambda: (randn(7, 130),), units=100),
    Case("cumsum_of_columns", lambda x: x.cumsum(0), lambda: (randn(37, 130),), units=100),
    Case("cumsum_long", lambda x: x.cumsum(-1), lambda: (randn(2, 5000),), units=100),
    Case("cumsum_long_columns", lambda x: x.cumsum(0), lambda: (randn(500, 20),), units=100),
    Case("cumsum_integers", lambda x: (x * 2).cumsum(-1), lambda: (integers(-5, 9, 7, 130),), exact=True),
    Case("cumsum_of_one", lambda x: x.cumsum(-1), lambda: (randn(37, 1),)),
    Case("cumsum_of_one_is_a_copy", lambda x: x.cumsum(0), lambda: (randn(1, 37),), exact=True),
    Case("cumprod", lambda x: x.cumprod(0), lambda: (randn(37, 13),)),
    Case("cumsum_bf16", lambda x: x.cumsum(-1), lambda: (randn(7, 130, dtype=BF16),)),
    Case("cumsum_of_columns_fp16", lambda x: x.cumsum(0), lambda: (randn(70, 130, dtype=HALF),)),
    Case("cumsum_shared", lambda x: (x * 2).cumsum(-1), lambda: (randn(3, 20000),), launches=2, units=1000),
    Case("cumsum_shared_columns", lambda x: x.cumsum(0), lambda: (randn(2000, 70),), launches=2, units=400),
    Case("cumsum_shared_integers", lambda x: x.cumsum(-1), lambda: (integers(-1 << 40, 1 << 40, 2, 20001),),
         launches=2, exact=True),
    Case("cumsum_of_bytes", lambda x: x.cumsum(-1), lambda: (integers(0, 256, 3, 700, dtype=torch.uint8),), exact=True),
    Case("cumsum_shared_mask", lambda x: (x > 0).cumsum(-1), lambda: (randn(2, 20001),), launches=3, exact=True),
    Case("cumsum_shared_double", lambda x: x.cumsum(0), lambda: (randn(40001).double(),), launches=2, units=4000),
    Case("cumprod_shared", lambda x: (x * 0.01 + 1).cumprod(-1), lambda: (randn(2, 20001),), launches=2, units=400),
]
