"""Products of int8 and of floats of 8 bits by templates, with factors behind them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends.triton import plan_graph, target
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph, Node
from jitpy.ir.ops.matmul import INT8_PRODUCT
from jitpy.ir.spec import contiguous_spec
from jitpy.runtime.gpu.compile import Target, compile_kernels
from tests.graph_tools import spec_of, trace
from tests.triton.cases import BF16, Tensor
from tests.triton.test_float8 import KINDS
from tests.triton.test_products import launches, run


def computed(graph: Graph, inputs: tuple[Tensor, ...]) -> Tensor:
    """By one kernel, which also compiles for a GPU."""
    plan = plan_graph(graph, products="all")
    assert len(launches(plan)) == 1
    assert compile_kernels([step.kernel for step in launches(plan)], Target("cuda", 90))
    return run(plan, inputs)[0]


def begun(inputs: tuple[Tensor, ...]) -> tuple[Graph, Builder, list[Node]]:
    graph = Graph("product")
    return graph, Builder(graph, into=graph.nodes), [graph.add_input(spec_of(one)) for one in inputs]


@pytest.mark.parametrize("inner", [256, 200, 8192])
@pytest.mark.parametrize("rows", [1, 16, 48])
def test_int8(rows: int, inner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of a cluster share a long inner axis."""
    monkeypatch.setattr(target, "has_clusters", lambda device: True)
    x, weight = (torch.randint(-128, 128, (count, inner), dtype=torch.int8) for count in (rows, 72))
    inputs = x, weight, torch.rand(rows, 1), torch.rand(72)
    graph, b, nodes = begun(inputs)
    sums = b.call(INT8_PRODUCT, nodes[0], b.call("aten.t.default", nodes[1]))
    scaled = b.call("aten.mul.Tensor", b.call("aten.mul.Tensor", sums, nodes[2]), nodes[3])
    graph.outputs = [b.call("aten.relu.default", b.call("aten._to_copy.default", scaled, dtype=BF16))]
    wanted = ((x.int() @ weight.int().t()) * inputs[2] * inputs[3]).to(BF16).relu()
    assert torch.equal(computed(graph, inputs), wanted)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("inner", [256, 208])
@pytest.mark.parametrize("rows", [1, 16, 48])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_scaled_float8(kind: torch.dtype, rows: int, inner: int, by_rows: bool) -> None:
    x, weight = (torch.randn(count, inner).to(kind) for count in (rows, 80))
    inputs = x, weight, torch.rand((rows, 1) if by_rows else (1,)), torch.rand((1, 80) if by_rows else ())
    graph, b, (left, right, *scales) = begun(inputs)
    product = b.call("aten._scaled_mm.default", left, b.call("aten.t.default", right), *scales, None, None, BF16,
                     spec=contiguous_spec(BF16, (rows, 80), torch.device("cpu")))
    graph.outputs = [b.call("aten.relu.default", product)]
    wanted = ((x.double() @ weight.double().t()) * inputs[2] * inputs[3]).relu()
    found = computed(graph, inputs)
    assert found.dtype is BF16
    assert (found - wanted).norm() <= 3e-3 * wanted.norm()


def packed(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Numbers of four bits, two a byte, with a factor for 32 of them."""
    numbers = torch.stack([weight & 15, weight >> 4], -1).view(len(scale), -1, 32).to(BF16) - 8
    return F.linear(x, (numbers * scale[:, :, None]).view(len(scale), -1))


def grouped(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, (weight.view(len(scale), -1, 32).to(BF16) * scale[:, :, None]).view(weight.shape)).relu()


@pytest.mark.parametrize("rows", [1, 16, 48])
@pytest.mark.parametrize("fn", [packed, grouped])
def test_weights_in_groups_are_converted_in_the_product(fn: Callable[..., Tensor], rows: int) -> None:
    weight = torch.randint(0, 256, (64, 128), dtype=torch.uint8) if fn is packed else \
        torch.randint(-128, 128, (64, 256), dtype=torch.int8)
    inputs = torch.randn(rows, 256).to(BF16), weight, torch.rand(64, 8).to(BF16)
    wanted = fn(*inputs).float()
    assert (computed(trace(fn, inputs), inputs).float() - wanted).norm() <= 5e-3 * wanted.norm()


def test_factors_of_blocks_are_the_librarys() -> None:
    inputs = torch.zeros(32, 256).to(KINDS[0]), torch.zeros(128, 256).to(KINDS[0]), torch.rand(32, 2), torch.rand(2, 1)
    graph, b, (left, right, *scales) = begun(inputs)
    graph.outputs = [b.call("aten._scaled_mm.default", left, b.call("aten.t.default", right), *scales, None, None, BF16,
                            spec=contiguous_spec(BF16, (32, 128), torch.device("cpu")))]
    assert not launches(plan_graph(graph, products="all"))


@pytest.mark.parametrize("rows", [1, 16])
def test_converted_weights_of_few_rows_stay_apart(rows: int) -> None:
    """Tensor cores would wait for three conversions a step. A product of one row has none of them."""
    def fn(x: Tensor, *given: Tensor) -> list[Tensor]:
        return [torch.matmul(x, (weight.t().float() * scale).to(BF16))
                for weight, scale in zip(given[:3], given[3:], strict=True)]

    inputs = (torch.randn(rows, 1, 64).to(BF16), *(torch.randn(32, 64).to(KINDS[0]) for _ in range(3)),
              *(torch.rand(32) for _ in range(3)))
    plan = plan_graph(trace(fn, inputs), products="all")
    assert len(launches(plan)) == (1 if rows == 1 else 3)
    for found, wanted in zip(run(plan, inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
