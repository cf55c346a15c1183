"""Compilation in two steps: the backward half that will probably be asked for begins beside the forward half."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitpy.autograd import compile_differentiable
from jitpy.backends import eager
from jitpy.ir import Graph, TensorSpec
from jitpy.ir.builder import Builder
from jitpy.ir.spec import contiguous_stride


class Steps:
    """A backend that says what it does: "begin" and "finish", forward or backward."""

    def __init__(self, fails: bool = False) -> None:
        self.said: list[str] = []
        self.fails = fails

    def begin(self, graph: Graph) -> Callable[[], Any]:
        half = "backward" if graph.name.endswith("backward") else "forward"
        self.said.append(f"begin {half}")
        if self.fails and half == "backward" and len(self.said) == 2:
            raise ValueError("not now")

        def finish() -> Any:
            self.said.append(f"finish {half}")
            return eager.compile_graph(graph, {})

        return finish

    def compile(self, graph: Graph) -> Any:
        return self.begin(graph)()


def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x @ w).tanh()
    return y.sum(), y * 2


def graph_of_step() -> Graph:
    graph = Graph("graph")
    cpu = torch.device("cpu")
    x, w = (graph.add_input(TensorSpec(torch.float32, shape, contiguous_stride(shape), cpu, requires_grad=needs), name)
            for name, shape, needs in (("x", (3, 4), False), ("w", (4, 4), True)))
    b = Builder(graph)
    y = b.call("aten.tanh.default", b.call("aten.matmul.default", x, w))
    graph.outputs = [b.call("aten.sum.default", y), b.call("aten.mul.Tensor", y, 2.0)]
    return graph


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("position", [0, 1])
def test_backward_begins_beside_forward(position: int, fails: bool) -> None:
    """It is the one for the loss; a pass from another result compiles its own, and one that failed is tried again."""
    steps = Steps(fails)
    run = compile_differentiable(graph_of_step(), steps.compile, steps.compile, steps.begin)
    assert steps.said == ["begin forward", "begin backward", "finish forward"]
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    for _ in range(2):
        found = torch.autograd.grad(run(x, w)[position].sum(), w)[0]
        torch.testing.assert_close(found, torch.autograd.grad(step(x, w)[position].sum(), w)[0])
    again = ["begin backward"] if position == 1 or fails else []
    assert steps.said[3:] == [*again, "finish backward"]


def test_without_steps_nothing_begins() -> None:
    steps = Steps()
    run = compile_differentiable(graph_of_step(), steps.compile, steps.compile)
    assert steps.said == ["begin forward", "finish forward"]
    run(torch.randn(3, 4), torch.randn(4, 4, requires_grad=True))[0].backward()
    assert steps.said[2:] == ["begin backward", "finish backward"]
