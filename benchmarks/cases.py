"""The functions that the benchmarks, the demo and the tests share: what people write, at sizes given by `elements`.

Each case makes its arguments from a number of elements (of the largest tensor, about) and a dtype.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Case:
    """`fn(*make(elements, dtype))`. `kernels` is how many generated kernels it should take, where that is settled.

    `make` is called under a fixed seed; integers stay integers whatever the dtype.
    """

    name: str
    fn: Callable[..., Any]
    make: Callable[[int, torch.dtype], tuple[Any, ...]]
    kernels: int | None = None


def add_mul_sin(x):
    return ((x + 1) * 2).sin()


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def bias_relu_scale(x, bias, scale):
    return torch.relu(x + bias) * scale


def softmax_written(x):
    e = torch.exp(x - x.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def rms_norm_residual(x, residual, weight):
    h = x + residual
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, h


def sum_rows(x):
    return (x * 2 + 1).sum(1)


def sum_columns(x):
    return (x * 2 + 1).sum(0)


def lstm_cell(gates, c):
    i, f, g, o = gates.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def attention(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def cross_entropy(logits, target):
    return F.cross_entropy(logits, target)


def swiglu(x, gate):
    return F.silu(gate) * x


def rotary(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def adam(p, grad, m, v):
    m = m * 0.9 + grad * 0.1
    v = v * 0.999 + grad * grad * 0.001
    return p - 1e-3 * (m / (1 - 0.9**10)) / (torch.sqrt(v / (1 - 0.999**10)) + 1e-8), m, v


def transpose_add(x, y):
    return x.t() + y


def embedding(tokens, table, positions, weight, bias):
    h = table[tokens] + positions[: tokens.shape[1]]
    return F.layer_norm(h, (h.shape[-1],), weight, bias)


class Block(torch.nn.Module):
    """A pre-norm Transformer block: attention, then a feed-forward network."""

    def __init__(self, width: int = 256, heads: int = 8) -> None:
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) -> the same."""
        h = self.norm1(x)
        a, _ = self.attention(h, h, h, need_weights=False)
        x = x + a
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def make_block(width: int = 256, heads: int = 8, dtype: torch.dtype = torch.float32) -> Block:
    torch.manual_seed(0)
    return Block(width, heads).to(dtype).eval()


_BLOCKS: dict[torch.dtype, Block] = {}


def block(x):
    return _BLOCKS[x.dtype](x)


def _matrix(elements: int, dtype: torch.dtype, columns: int = 1024) -> torch.Tensor:
    return torch.randn(max(2, elements // columns), columns, dtype=dtype)


def _block_input(elements: int, dtype: torch.dtype) -> tuple[Any, ...]:
    if dtype not in _BLOCKS:
        with torch.random.fork_rng(devices=()):  # the first input is the same as all later ones
            _BLOCKS[dtype] = make_block(dtype=dtype)
    length = 128
    return (torch.randn(max(1, elements // (length * 256 * 8)), length, 256, dtype=dtype),)


def _attention_input(elements: int, dtype: torch.dtype) -> tuple[Any, ...]:
    batch = max(1, elements // (8 * 256 * 256))
    return tuple(torch.randn(batch, 8, 256, 64, dtype=dtype) for _ in range(3))


def _rotary_input(elements: int, dtype: torch.dtype) -> tuple[Any, ...]:
    x = torch.randn(max(1, elements // (8 * 512 * 64)), 8, 512, 64, dtype=dtype)
    angle = torch.randn(512, 64, dtype=dtype)
    return x, angle.cos(), angle.sin()


def _embedding_input(elements: int, dtype: torch.dtype) -> tuple[Any, ...]:
    width, length = 512, 128
    tokens = torch.randint(0, 8192, (max(1, elements // (width * length)), length))
    table, positions = torch.randn(8192, width, dtype=dtype), torch.randn(length, width, dtype=dtype)
    return tokens, table, positions, torch.randn(width, dtype=dtype), torch.randn(width, dtype=dtype)


def _with_rows(count: int, columns: int = 1024) -> Callable[[int, torch.dtype], tuple[Any, ...]]:
    """A matrix and `count` rows to broadcast over it."""
    return lambda n, dtype: (_matrix(n, dtype), *(torch.randn(columns, dtype=dtype) for _ in range(count)))


def _square(elements: int, dtype: torch.dtype) -> tuple[Any, ...]:
    side = max(2, math.isqrt(elements))
    return torch.randn(side, side, dtype=dtype), torch.randn(side, side, dtype=dtype)


def _same(count: int) -> Callable[[int, torch.dtype], tuple[Any, ...]]:
    return lambda n, dtype: tuple(_matrix(n, dtype) for _ in range(count))


def _adam_input(elements: int, dtype: torch.dtype) -> tuple[Any, ...]:
    p, grad, m, v = (_matrix(elements // 2, dtype) for _ in range(4))
    return p, grad, m, v.abs()


CASES: tuple[Case, ...] = (
    Case("add_mul_sin", add_mul_sin, _same(1), kernels=1),
    Case("gelu_tanh", gelu_tanh, _same(1), kernels=1),
    Case("bias_relu_scale", bias_relu_scale, _with_rows(2), kernels=1),
    Case("softmax_written", softmax_written, _same(1), kernels=1),
    Case("layer_norm", layer_norm, _with_rows(2), kernels=1),
    Case("rms_norm_residual", rms_norm_residual,
         lambda n, dtype: (*_same(2)(n, dtype), torch.randn(1024, dtype=dtype)), kernels=1),
    Case("sum_rows", sum_rows, _same(1), kernels=1),
    Case("sum_columns", sum_columns, _same(1), kernels=1),
    Case("lstm_cell", lstm_cell,
         lambda n, dtype: (_matrix(n, dtype, 4096), torch.randn(max(2, n // 4096), 1024, dtype=dtype))),
    Case("attention", attention, _attention_input),
    Case("cross_entropy", cross_entropy,
         lambda n, dtype: (_matrix(n, dtype, 8192), torch.randint(0, 8192, (max(2, n // 8192),)))),
    Case("swiglu", swiglu, _same(2)),
    Case("rotary", rotary, _rotary_input),
    Case("adam", adam, _adam_input),
    Case("transformer_block", block, _block_input),
    Case("transpose_add", transpose_add, _square),
    Case("embedding", embedding, _embedding_input),
)


def arguments(case: Case, elements: int, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """The arguments, the same ones each time."""
    torch.manual_seed(0)
    return case.make(elements, dtype)


def as_double(case: Case, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments in float64, for the reference result."""
    if case.fn is block and torch.float64 not in _BLOCKS:
        _BLOCKS[torch.float64] = make_block(dtype=torch.float64)
        _BLOCKS[torch.float64].load_state_dict(_BLOCKS[args[0].dtype].state_dict())
    return tuple(arg.double() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg for arg in args)


def largest_difference(found: Any, wanted: Any) -> float:
    """Between two results, over all of their tensors, relative to the largest value."""
    pairs = zip(*([r] if isinstance(r, torch.Tensor) else list(r) for r in (found, wanted)), strict=True)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


def which_is_off(case: Case, args: tuple[Any, ...], found: Any, eager: Any) -> str:
    """How far the results of jitpy and of eager are from that in float64."""
    exact = case.fn(*as_double(case, args))
    return (f"From the result in float64, jitpy's is off by {largest_difference(found, exact):.1e}, "
            f"eager's by {largest_difference(eager, exact):.1e}.")
