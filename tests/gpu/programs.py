"""Functions for the tests on GPUs: name -> (function, makes its arguments given a dtype and a device)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Make = Callable[[torch.dtype, torch.device], tuple[Any, ...]]

PROGRAMS: dict[str, tuple[Callable[..., Any], Make]] = {}


def tensors(*shapes: tuple[int, ...]) -> Make:
    return lambda dtype, device: tuple(torch.randn(shape, device=device, dtype=dtype) for shape in shapes)


def program(*shapes: tuple[int, ...], make: Make | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = (function, make or tensors(*shapes))
        return function

    return add


@program((16,))
def small(x):
    return (x + 1).sin() * 2


@program((37, 53), (53,), (37, 1))
def broadcast(x, row, column):
    return torch.where(x > row, x * column, row - column).clamp(-2, 2)


@program((64, 1000))
def gelu_by_hand(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


@program((33, 1023), (1023,), (1023,))
def bias_relu_scale(x, bias, scale):
    return torch.relu(x + bias) * scale


@program((65, 1000))
def softmax(x):
    return torch.softmax(x, -1)


@program((65, 1000))
def softmax_by_hand(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@program((3, 70000))
def long_rows(x):
    return torch.log_softmax(x, -1), x.sum(-1), x.amax(-1)


@program((64, 768), (768,), (768,))
def layer_norm(x, weight, bias):
    return F.layer_norm(x, (768,), weight, bias)


@program((64, 768), (64, 768), (768,))
def rms_norm_residual(x, residual, weight):
    h = x + residual
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, h


@program((2, 32, 16, 16), (32,), (32,))
def group_norm_silu(x, weight, bias):
    return F.silu(F.group_norm(x, 8, weight, bias))


@program((500, 300))
def sums(x):
    return x.sum(), x.sum(0), x.sum(1), x.mean((0, 1)), x.amax(0), x.amin(1)


@program((500, 300))
def variances(x):
    return x.var(1), x.std(0), x.var((0, 1)), torch.var_mean(x, 1, keepdim=True)


@program((300, 200), (200, 300))
def transpose_add(x, y):
    return (x + y.t()).contiguous()


@program((128, 1), (1, 250))
def outer(x, y):
    return x * y + 1


@program((64, 256), (64, 256))
def swiglu(gate, up):
    return F.silu(gate) * up


@program((2, 8, 128, 64), (128, 32), (128, 32))
def rotary(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


@program((64, 128), (128, 96), (96,))
def linear_gelu(x, weight, bias):
    return F.gelu(x @ weight + bias)


@program((4, 100), (4, 60))
def cat_pad(x, y):
    return F.pad(torch.cat((x, y), 1), (1, 2), value=3.0), *x.chunk(4, 1)


@program((20, 500))
def cumulative(x):
    return x.cumsum(1), x.cumsum(0), torch.cummax(x, 1).values


@program((50, 400))
def arguments(x):
    return x.argmax(1), x.argmin(0), x.max(1).indices, x.argmax()


@program((8, 40))
def integers(x):
    i = (x * 10).to(torch.int64)
    return i // 3, i % 7, i << 1, i.float().to(torch.int32), (i > 0) & (i < 5), i.bool()


@program((100, 32), make=lambda dtype, device: (
    torch.randn(100, 32, device=device, dtype=dtype), torch.randint(0, 100, (7, 9), device=device),
    torch.randn(32, device=device, dtype=dtype), torch.randn(32, device=device, dtype=dtype)))
def embedding_norm(table, tokens, weight, bias):
    return F.layer_norm(F.embedding(tokens, table), (32,), weight, bias)


@program(make=lambda dtype, device: (torch.randn(50, 1000, device=device, dtype=dtype),
                                     torch.randint(0, 1000, (50,), device=device)))
def cross_entropy(logits, target):
    return F.cross_entropy(logits, target)


@program(make=lambda dtype, device: (torch.randn(60, 30, device=device, dtype=dtype),
                                     torch.randint(0, 60, (25,), device=device),
                                     torch.randint(0, 30, (60, 4), device=device)))
def gathers(x, rows, columns):
    return x[rows], x.gather(1, columns), x.index_select(0, rows), x[rows[:5], columns[:5, 0]]


@program(make=lambda dtype, device: (torch.zeros(40, 16, device=device, dtype=dtype),
                                     torch.randperm(40, device=device)[:20],
                                     torch.randn(20, 16, device=device, dtype=dtype)))
def scatters(x, rows, values):
    return x.index_add(0, rows, values), x.index_copy(0, rows, values), x.index_put((rows,), values)


@program((50, 60))
def masks(x):
    return x.tril(), x.triu(1), x.masked_fill(x < 0, -1.0), torch.arange(60, device=x.device) + x


@program((12, 5, 7))
def views(x):
    y = x.permute(2, 0, 1).reshape(7, -1)
    return y.flip(1) + 1, x[:, 1:4, ::2] * 2, x.unfold(0, 4, 2).sum(-1), x.expand(3, 12, 5, 7).sum(0)


@program((64, 100))
def in_place(x):
    y = x.clone()
    y.mul_(2).add_(1)
    y[::2] = 0
    y[:, 3].neg_()
    return y


@program((64, 100))
def changes_its_input(x):
    x.mul_(2)
    return x + 1


@program((2, 4, 96, 32), (2, 4, 96, 32), (2, 4, 96, 32))
def attention_by_hand(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 32 ** -0.5, -1) @ v


@program((2, 4, 96, 32), (2, 4, 96, 32), (2, 4, 96, 32))
def attention_causal(q, k, v):
    mask = torch.ones(96, 96, device=q.device, dtype=torch.bool).tril()
    return torch.softmax((q @ k.transpose(-1, -2) * 32 ** -0.5).masked_fill(~mask, float("-inf")), -1) @ v


@program((2, 3, 32, 32), (8, 3, 3, 3))
def convolution(x, weight):
    return F.max_pool2d(F.relu(F.conv2d(x, weight, padding=1)), 2)


@program((1000,))
def special_functions(x):
    return torch.erf(x), torch.exp(x), torch.log1p(x.abs()), torch.sigmoid(x), torch.atan2(x, x + 1), x.abs().pow(0.3)


@program((300, 300))
def host_number(x):
    return x * x.sum().item()


@program((31, 17), (31, 17))
def compare(x, y):
    return x == y, x.eq(x).all(), (x > y).any(), torch.maximum(x, y), torch.isfinite(x / (y * 0))
