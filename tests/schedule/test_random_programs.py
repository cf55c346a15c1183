"""Random programs of elementwise ops, reductions and views: the compiled result must be eager's."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitpy.backends.cpp import plan_graph
from jitpy.runtime.executable import make_executable
from tests.graph_tools import trace

Tensor = torch.Tensor
EXAMPLES = int(os.environ.get("JITPY_TEST_EXAMPLES", "50"))

FLOAT_UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.sin,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.neg,
    torch.abs,
    lambda x: x * 0.5 + 1,
    torch.square,
    lambda x: torch.exp(-x.abs()),
    lambda x: torch.nn.functional.gelu(x),
    torch.floor,
]
INT_UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.neg,
    torch.abs,
    lambda x: x * 3 - 1,
    lambda x: x // 3,
    lambda x: x % 5,
    lambda x: x & 7,
    lambda x: x >> 1,
    lambda x: x.clamp(-4, 9),
    torch.bitwise_not,
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    torch.minimum,
    lambda x, y: torch.where(x > y, x, y - x),
    lambda x, y: x.masked_fill(y < 0, 2),
]


REDUCTIONS: list[Callable[[Tensor, int, bool], Tensor]] = [
    lambda x, d, k: x.sum(d, keepdim=k),
    lambda x, d, k: x.amax(d, keepdim=k),
    lambda x, d, k: x.amin(d, keepdim=k),
    lambda x, d, k: x.sum(d, keepdim=k) * 2,
]
FLOAT_REDUCTIONS: list[Callable[[Tensor, int, bool], Tensor]] = [
    *REDUCTIONS,
    lambda x, d, k: x.mean(d, keepdim=k),
    lambda x, d, k: x.var(d, keepdim=k, correction=0),
]


def pick(options: list[object], k: int) -> object:
    return options[k % len(options)]


def run_step(stack: list[Tensor], step: tuple[int, ...], kind: str) -> Tensor:
    """One op on tensors of the stack, chosen by the numbers in `step`."""
    what, a, b, c, d = step
    x = stack[-1 - a % min(3, len(stack))]
    family = what % 10
    floating = x.dtype.is_floating_point
    if x.dtype is torch.bool:
        x = x.to(torch.float32 if kind != "int" else torch.int64)
        floating = x.dtype.is_floating_point
    if family <= 2:
        return pick(FLOAT_UNARY if floating else INT_UNARY, b)(x)
    if family <= 4:
        others = [t for t in stack if broadcasts(t, x) and t.dtype is not torch.bool]
        other = pick(others, c)
        if other.dtype is not x.dtype:
            other = other.to(x.dtype)
        return pick(BINARY, b)(x, other)
    if family == 5 and x.dim():
        return pick(FLOAT_REDUCTIONS if floating else REDUCTIONS, b)(x, c % x.dim(), bool(d % 2))
    if family == 6 and x.dim() and floating:
        dim = c % x.dim()
        return pick(
            [
                torch.softmax,
                lambda x, d: x - x.mean(d, keepdim=True),
                lambda x, d: x / (1 + x.abs().sum(d, keepdim=True)),
                lambda x, d: torch.nn.functional.layer_norm(x, x.shape[d:]),
            ],
            b,
        )(x, dim)
    if family == 7:
        return pick(
            [
                lambda x: x > 0,
                lambda x: x == x.abs(),
                lambda x: x.to(torch.float32),
                lambda x: x.to(torch.int64) if not x.dtype.is_floating_point else x.clamp(-100, 100).to(torch.int64),
            ],
            b,
        )(x)
    return view_step(x, b, c, d)


def broadcasts(a: Tensor, b: Tensor) -> bool:
    return (
        all(p == q or p == 1 or q == 1 for p, q in zip(reversed(a.shape), reversed(b.shape), strict=False))
        and max(a.numel(), b.numel()) < 5000
    )


def view_step(x: Tensor, b: int, c: int, d: int) -> Tensor:
    """A view, or a copy that moves elements."""
    n = x.dim()
    if n == 0:
        return x.reshape(1).expand(3)
    dim = c % n
    size = x.shape[dim]
    choice = b % 14
    if choice == 0 and n >= 2:
        return x.transpose(dim, d % n)
    if choice == 1:
        return x.reshape(-1)
    if choice == 2 and size > 1:
        return x.narrow(dim, 1, size - 1)
    if choice == 3:
        return x.unsqueeze(dim)
    if choice == 4 and x.numel() * 2 < 5000:
        return torch.cat([x, x.flip(dim)], dim)
    if choice == 5 and size % 2 == 0 and size:
        return x.unflatten(dim, (size // 2, 2)).transpose(dim, dim + 1).flatten(dim, dim + 1)
    if choice == 6:
        return torch.nn.functional.pad(x, (1, 2), value=1)
    if choice == 7 and n >= 2:
        return x.flatten(0, 1)
    if choice == 8:
        return x.select(dim, d % size) if size else x
    if choice == 9 and size:
        return x.index_select(dim, torch.arange(d % 3 + 1) % size)
    if choice == 11:
        return x.flip(dim)
    if choice == 12:
        return x.roll(1 + d % 3, dim)
    if choice == 13 and x.numel() * 2 < 5000:
        return x.unsqueeze(-1).expand(*x.shape, 2).reshape(*x.shape[:-1], x.shape[-1] * 2)
    if choice == 10 and x.dtype.is_floating_point:
        return x.cumsum(dim)
    return x.contiguous() if d % 2 else x.clone()


def check(inputs: list[Tensor], steps: list[tuple[int, ...]], kind: str, keep: int) -> None:
    def fn(*tensors: Tensor) -> list[Tensor]:
        stack = list(tensors)
        for step in steps:
            stack.append(run_step(stack, step, kind))
        return stack[len(inputs) :][-keep:]

    wanted = fn(*inputs)
    graph = trace(fn, inputs)
    found = make_executable(plan_graph(graph))(*inputs)
    reference = fn(*(t.double() if t.dtype.is_floating_point else t for t in inputs)) if kind == "bf16" else wanted
    for k, (a, b, exact) in enumerate(zip(found, wanted, reference, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype, f"{a.shape} {a.dtype}, eager {b.shape} {b.dtype}\n{graph}"
        assert a.numel() < 2 or 1 in a.shape or a.stride() == b.stride(), (
            f"output {k}: {a.stride()} {b.stride()}\n{graph}"
        )
        tolerance = {"float": 2e-4, "bf16": 0.1}.get(kind, 1e-5)
        if kind == "bf16" and not b.dtype.is_floating_point:
            continue  # comparisons of rounded numbers may differ
        try:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        except AssertionError as error:
            if kind == "bf16" and near_reference(a, b, exact):
                continue
            raise AssertionError(f"output {k}: {error}\n{graph}") from error


def near_reference(found: Tensor, eager: Tensor, exact: Tensor) -> bool:
    """Whether the result is about as far from the exact one as eager is."""
    mine, theirs = (found.double() - exact.double()).abs().max(), (eager.double() - exact.double()).abs().max()
    return bool(mine <= 2 * theirs + 0.05)


SHAPES = [(4, 6), (3, 8), (2, 3, 4), (17, 5), (1, 7), (70,), (3, 130), (64, 33), (2, 2, 2, 6), ()]
STEP = st.tuples(*[st.integers(0, 1000)] * 5)


@pytest.mark.parametrize("kind", ["float", "int", "bf16"])
def test_equal_to_eager(kind: str) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(st.sampled_from(SHAPES), st.lists(STEP, min_size=2, max_size=10), st.integers(1, 3), st.booleans())
    def run(shape: tuple[int, ...], steps: list[tuple[int, ...]], keep: int, transposed: bool) -> None:
        torch.manual_seed(1)
        row = shape[-1:]
        if kind == "int":
            inputs = [torch.randint(-9, 9, shape), torch.randint(-9, 9, row)]
        else:
            dtype = torch.float32 if kind == "float" else torch.bfloat16
            inputs = [torch.randn(shape).to(dtype), torch.randn(row).to(dtype)]
        if transposed and len(shape) >= 2:
            inputs[0] = inputs[0].transpose(0, 1).contiguous().transpose(0, 1)
        check(inputs, steps, kind, keep)

    run()
