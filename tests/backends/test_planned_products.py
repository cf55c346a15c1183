"""Matrix products that write into planned memory: values, strides, layouts that eager treats otherwise."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends.codegen import compile_graph
from jitpy.backends.cpp.backend import plan_graph
from jitpy.ir import Graph, ops
from jitpy.ir.passes.matmuls import LARGE
from jitpy.runtime.plan import CallStep
from tests.graph_tools import spec_of, trace


def linear_graph(*tensors: torch.Tensor) -> Graph:
    graph = Graph()
    nodes = [graph.add_input(spec_of(t)) for t in tensors]
    op = ops.get("aten.linear.default")
    graph.outputs = [graph.add(op, tuple(nodes), {}, ops.infer(op, graph.sizes, nodes, {}, False))]
    return graph


@pytest.mark.parametrize("shape", [(600, 40), (20, 30, 40), (2, 10, 30, 40), (40,), (3, 40), (0, 40), (7, 1000, 40)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_like_eager(shape: tuple[int, ...], bias: bool) -> None:
    tensors = [torch.randn(shape), torch.randn(50, 40), *([torch.randn(50)] if bias else [])]
    (found,) = compile_graph(linear_graph(*tensors))(*tensors)
    expected = F.linear(*tensors)
    assert found.stride() == expected.stride()
    if len(shape) < 4 and found.nbytes < LARGE:
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected)


def test_linear_of_other_layouts() -> None:
    x, weight = torch.randn(30, 20, 40).transpose(0, 1), torch.randn(40, 50).t()
    (found,) = compile_graph(linear_graph(x, weight))(x, weight)
    torch.testing.assert_close(found, F.linear(x, weight))
    x = torch.randn(40, 600).t()
    (found,) = compile_graph(linear_graph(x, weight))(x, weight)
    torch.testing.assert_close(found, F.linear(x, weight))


def test_products_into_planned_memory() -> None:
    """Each call has results of its own, and large ones are written where the plan says."""
    x, y, b = torch.randn(200, 300), torch.randn(300, 150), torch.randn(150)
    batch = torch.randn(4, 100, 90)

    def program(x, y, b, batch):
        products = x @ y, torch.addmm(b, x, y), torch.bmm(batch, batch.mT).relu()
        return *products, torch.baddbmm(batch[:, :, :1], batch, batch.mT)

    graph = trace(program, [x, y, b, batch])
    calls = {str(s.function) for s in plan_graph(graph).steps if isinstance(s, CallStep)}
    assert calls == {"aten.mm.out", "aten.addmm.out", "aten.bmm.out", "aten.baddbmm.out"}
    run = compile_graph(trace(program, [x, y, b, batch]))
    first, second = run(x, y, b, batch), run(x + 1, y, b, batch)
    for found, expected in zip(first, program(x, y, b, batch), strict=True):
        assert torch.equal(found, expected)
    for found, expected in zip(second, program(x + 1, y, b, batch), strict=True):
        assert torch.equal(found, expected)
