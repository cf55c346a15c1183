"""Additions at computed places that start from a tensor: in the order of the program, as eager's kernels add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from jitpy.backends.cpp import plan_graph
from jitpy.runtime.executable import make_executable
from jitpy.runtime.plan import AllocStep, KernelStep
from tests.graph_tools import trace

Tensor = torch.Tensor


def built(fn: Callable[..., Any], *inputs: Tensor) -> tuple[Callable[..., Any], list[Any]]:
    plan = plan_graph(trace(fn, inputs))
    return make_executable(plan), plan.steps


CASES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "last axis": lambda x, i, s: x.scatter_add(1, i, s),
    "first axis": lambda x, i, s: x.scatter_add(0, i, s),
    "index_add": lambda x, i, s: x.index_add(0, i[0, :5], s[:5]),
    "index_put": lambda x, i, s: x.index_put((i[0], i[1]), s[0], accumulate=True),
    "few places of much": lambda x, i, s: (x * 2).index_put((i[0, :2],), s[:2], accumulate=True),
    "reads where it starts": lambda x, i, s: x.scatter_add(1, i, x),
    "starts from what others read": lambda x, i, s: (lambda y: y.scatter_add(0, i, s) * y)(x.sin()),
}


@pytest.mark.parametrize("layout", ["rows", "columns", "broadcast"])
@pytest.mark.parametrize("name", CASES)
def test_bits_are_eagers(name: str, layout: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 40)
    layouts = {"rows": x, "columns": x.t(), "broadcast": x[:, :1].expand(40, 40)}
    inputs = [layouts[layout], torch.randint(0, 40, (40, 40)), torch.randn(40, 40)]
    fn = CASES[name]
    run, steps = built(fn, *inputs)
    assert any(isinstance(step, KernelStep) for step in steps)
    before = inputs[0].clone()
    (own,) = run(*inputs)
    eager = fn(*inputs)
    assert own.stride() == eager.stride()
    if name == "starts from what others read":  # sin rounds differently
        torch.testing.assert_close(own, eager)
    else:
        assert torch.equal(own, eager)
    assert torch.equal(inputs[0], before), "the operand was written"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["scatter_add", "index_add", "index_add 1d", "index_put", "gather", "index_select"])
def test_16_bits_add_up_as_in_eager(name: str, dtype: torch.dtype) -> None:
    """Thousands of ones: a sum in 16 bits stays where it does not grow any more."""
    places = torch.randint(0, 2, (8000, 3))
    fns: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "scatter_add": lambda x, s: x.scatter_add(0, places, s),
        "index_add": lambda x, s: x.index_add(0, places[:, 0], s),
        "index_add 1d": lambda x, s: x[:, 0].index_add(0, places[:, 0], s[:, 0]),
        "index_put": lambda x, s: x.index_put((places[:, 0],), s, accumulate=True),
        "gather": lambda x, s: x.gather(0, places) * s,
        "index_select": lambda x, s: x.index_select(0, places[:, 0]) * s,
    }
    results = []
    for fn in (fns[name], jitpy.jit(fns[name])):
        x = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
        result = fn(x, torch.ones(8000, 3, dtype=dtype))
        result.backward(torch.ones_like(result))
        results.append((result.detach(), x.grad))
    assert torch.equal(results[1][0], results[0][0])
    assert torch.equal(results[1][1], results[0][1])


def test_what_nobody_else_reads_is_written_over() -> None:
    x, i, s = torch.randn(800, 800), torch.randint(0, 800, (800, 800)), torch.randn(800, 800)
    run, steps = built(lambda x, i, s: (x + 1).scatter_add(1, i, s), x, i, s)
    assert sum(isinstance(step, AllocStep) for step in steps) == 1
    assert torch.equal(run(x, i, s)[0], (x + 1).scatter_add(1, i, s))


def test_a_place_out_of_range() -> None:
    x, i, s = torch.zeros(4, 4), torch.full((4, 4), 4), torch.ones(4, 4)
    run, _ = built(lambda x, i, s: x.scatter_add(1, i, s), x, i.zero_(), s)
    with pytest.raises(IndexError):
        run(x, torch.full((4, 4), 4), s)
    assert torch.equal(run(x, i, s)[0], x.scatter_add(1, i, s))


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_embedding_gradients_scaled_by_frequency(dtype: torch.dtype, padding: int | None) -> None:
    def gradient(weight: Tensor, ids: Tensor, g: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(g, ids, 9, -1 if padding is None else padding, True)

    ids, g = torch.randint(0, 8, (5, 40)), torch.randn(5, 40, 24, dtype=dtype)
    run, steps = built(gradient, g, ids, g)
    assert any(isinstance(step, KernelStep) for step in steps) == (dtype is not torch.bfloat16)
    torch.testing.assert_close(run(g, ids, g)[0], gradient(g, ids, g))
