"""Kernels that reduce the rows of a matrix and its columns in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy.backends.cpp import plan_graph
from jitpy.runtime.executable import make_executable
from jitpy.runtime.plan import CallStep, KernelStep
from tests.graph_tools import trace

Tensor = torch.Tensor


def norm_gradients(g: Tensor, x: Tensor, w: Tensor) -> Any:
    mean = x.mean(-1, keepdim=True)
    rstd = ((x - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    made, gw, gb = torch.ops.aten.native_layer_norm_backward(g, x, [x.shape[-1]], mean, rstd, w, w, [True] * 3)
    return made, gw, gb


def softmax_gradients(g: Tensor, x: Tensor, w: Tensor) -> Any:
    y = (x + w).softmax(-1)
    made = y * (g - (y * g).sum(-1, keepdim=True))
    return made, made.sum(0)


def scaled_columns(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """What is made of the columns' results alone is part of the kernel, a column of a matrix that it reads too."""
    y = x / x.norm(dim=-1, keepdim=True)
    return y, (y * g).sum(0) * 0.5 + w, x.amax(0), x.amin(1)


def many_kinds(g: Tensor, x: Tensor, w: Tensor) -> Any:
    peak = x.amax(-1, keepdim=True)
    return (x == peak).sum(0), (x > g).all(0), (x > peak - 0.1).any(0), (x * 0.01 + 1).prod(0), x.sum(-1)


def of_one_row(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """Columns of what is one number a row."""
    total = (x * g).sum(-1, keepdim=True)
    return total, (total * w).sum(0), (total.expand_as(x)).sum(0)


ONE_KERNEL: dict[str, Callable[..., Any]] = {
    "layer norm": norm_gradients,
    "softmax": softmax_gradients,
    "epilogue of columns": scaled_columns,
    "kinds": many_kinds,
    "one number a row": of_one_row,
}


def compare(fn: Callable[..., Any], inputs: list[Tensor], results: Any) -> None:
    """Results are as near to those in float64 as eager's, but for a few roundings."""
    exact = fn(*(t.double() for t in inputs))
    for own, eager, wanted in zip(results, fn(*inputs), exact, strict=True):
        assert own.dtype is eager.dtype and own.shape == eager.shape and own.stride() == eager.stride()
        if own.is_floating_point():
            scale = wanted.abs().max().item() * torch.finfo(own.dtype).eps
            roundings = 64 if own.dtype is torch.float64 else 8  # eager is the reference of the former
            allowed = 2 * (eager.double() - wanted).abs().max().item() + roundings * scale
            assert (own.double() - wanted).abs().max().item() <= allowed
        else:
            assert torch.equal(own, eager)


@pytest.mark.parametrize(("shape", "dtype"), [
    ((1000, 96), torch.float32), ((64, 1024), torch.float32), ((5000, 17), torch.float64), ((999, 80), torch.bfloat16)])
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    if dtype is torch.bfloat16 and name == "kinds":
        pytest.skip("products of 16-bit numbers are rounded at each step in eager")
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype), torch.randn(shape[1], dtype=dtype)]
    plan = plan_graph(trace(ONE_KERNEL[name], inputs))
    run = make_executable(plan)
    if dtype is not torch.bfloat16:
        assert sum(isinstance(step, KernelStep) for step in plan.steps) == 1
        assert not any(isinstance(step, CallStep) for step in plan.steps)
    compare(ONE_KERNEL[name], inputs, run(*inputs))
    again = run(*inputs)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = run(*inputs)
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, again, alone)), "results depend on the number of threads"


def test_matrices_of_more_axes() -> None:
    def fn(g: Tensor, x: Tensor, w: Tensor) -> Any:
        y = x.permute(1, 0, 2) * w  # rows that do not follow each other in memory
        scale = (y * y).mean((-1,), keepdim=True).rsqrt()
        return y * scale, (y * scale * g.permute(1, 0, 2)).sum((0, 1))

    inputs = [torch.randn(30, 40, 80), torch.randn(30, 40, 80), torch.randn(80)]
    plan = plan_graph(trace(fn, inputs))
    assert sum(isinstance(step, KernelStep) for step in plan.steps) == 1
    compare(fn, inputs, make_executable(plan)(*inputs))


def rows_read_columns(g: Tensor, x: Tensor, w: Tensor) -> Any:
    return x.softmax(-1) - x.mean(0), x.sum(-1)


def columns_of_a_square(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """As many rows as columns: a row's number is no column's."""
    rows, columns = x.sum(1), x.sum(0)
    return rows + columns, rows * 2, columns * w + rows, x - rows, x - columns[:, None]


def lying(g: Tensor, x: Tensor, w: Tensor) -> Any:
    y = x.t()
    return y.softmax(-1), y.sum(0), y.argmax(0)


@pytest.mark.parametrize("fn", [rows_read_columns, columns_of_a_square, lying])
def test_what_needs_more_than_one_pass(fn: Callable[..., Any]) -> None:
    inputs = [torch.randn(300, 300), torch.randn(300, 300), torch.randn(300)]
    compare(fn, inputs, make_executable(plan_graph(trace(fn, inputs)))(*inputs))


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm])
def test_training_with_sizes_that_change(norm: Callable[..., Tensor]) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return norm(x, (48,), w) * 2

    own = jitpy.jit(fn, dynamic=True)
    for rows in (2000, 3333, 7, 20000, 1):
        x, g = torch.randn(rows, 48), torch.randn(rows, 48)

        def gradients(g: Tensor, x: Tensor, w: Tensor, run: Any = fn) -> tuple[Tensor, ...]:
            leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
            return torch.autograd.grad(run(*leaves), leaves, g)

        inputs = [g, x, torch.randn(48)]
        compare(gradients, inputs, gradients(*inputs, own))


def test_gradients_into_grad() -> None:
    """A captured step adds to gradients that exist: in the same kernel, in their memory."""
    x, w = torch.randn(4000, 32), torch.randn(32, requires_grad=True)
    other = w.detach().clone().requires_grad_()

    def step(w: Tensor) -> Tensor:
        loss = F.layer_norm(x, (32,), w, w).square().mean()
        loss.backward()
        return loss.detach()

    own = jitpy.jit(step)
    for _ in range(3):
        torch.testing.assert_close(own(w), step(other))
        assert w.grad is not None and other.grad is not None
        torch.testing.assert_close(w.grad, other.grad)


def test_long_columns_are_as_exact_as_eager() -> None:
    for shape in ((100_000, 16), (400, 300, 16)):
        x = torch.randn(shape)
        fn = lambda x: (x.sum(tuple(range(x.dim() - 1))),)  # noqa: E731
        (own,) = make_executable(plan_graph(trace(fn, [x])))(x)
        exact = fn(x.double())[0]
        assert (own - exact).abs().max() <= 4 * (fn(x)[0] - exact).abs().max()
