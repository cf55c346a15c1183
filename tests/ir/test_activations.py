"""Activations that become part of a product's call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends import eager
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph, Node
from jitpy.ir.passes.activations import fold_activations
from jitpy.ir.passes.cleanup import remove_dead_code
from jitpy.ir.verify import verify
from tests.graph_tools import spec_of

CALL = "aten._addmm_activation.default"


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


def graph_of(build: Callable[..., list[Node]], *inputs: torch.Tensor) -> Graph:
    """`build(b, *nodes)` gives the outputs."""
    graph = Graph()
    nodes = [graph.add_input(spec_of(one)) for one in inputs]
    graph.outputs = build(Builder(graph), *nodes)
    return graph


def layer(activation: str, **options: str) -> Callable[..., list[Node]]:
    """A linear layer with an activation behind it."""
    def build(b: Builder, *operands: Node) -> list[Node]:
        return [b.call(f"aten.{activation}.default", b.call("aten.linear.default", *operands), **options)]

    return build


def added(b: Builder, x: Node, w: Node, bias: Node) -> list[Node]:
    product = b.call("aten.addmm.default", bias, x, b.call("aten.t.default", w))
    return [b.call("aten.mul.Tensor", b.call("aten.relu.default", product), 2)]


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize("shape", [(32, 24), (2, 16, 24)])
@pytest.mark.parametrize("build", [layer("relu"), layer("gelu", approximate="tanh"), added],
                         ids=["relu", "gelu", "addmm"])
def test_one_call(build: Callable[..., list[Node]], shape: tuple[int, ...]) -> None:
    if build is added and len(shape) == 3:
        pytest.skip("addmm takes matrices")
    inputs = [normal(*shape), normal(40, 24), normal(40)]
    expected = eager.compile_graph(graph_of(build, *inputs), {})(*inputs)
    graph = graph_of(build, *inputs)
    assert fold_activations(graph, "cpu")
    remove_dead_code(graph)
    verify(graph)
    assert names(graph).count(CALL) == 1 and not {"aten.relu.default", "aten.gelu.default"} & set(names(graph))
    for one, other in zip(eager.compile_graph(graph, {})(*inputs), expected, strict=True):
        assert one.shape == other.shape and one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def sum_with(op: str) -> Callable[..., list[Node]]:
    """`x @ w.t() + bias`, by some op, and a relu behind it."""
    def build(b: Builder, x: Node, w: Node, bias: Node) -> list[Node]:
        product = b.call(op, x, w if "linear" in op else b.call("aten.t.default", w))
        return [b.call("aten.relu.default", b.call("aten.add.Tensor", bias, product))]

    return build


@pytest.mark.parametrize("op", ["mm", "matmul", "linear"])
@pytest.mark.parametrize("activation", [True, False])
def test_a_vector_that_is_added(op: str, activation: bool) -> None:
    """It is the bias of the library's call, by which an activation becomes part of it, too."""
    inputs = [normal(*((2, 16, 24) if op != "mm" else (32, 24))), normal(40, 24), normal(40)]
    graph = graph_of(sum_with(f"aten.{op}.default"), *inputs)
    if not activation:
        (relu,) = graph.outputs
        graph.outputs = [relu.args[0]]
        graph.nodes.remove(relu)
    expected = eager.compile_graph(graph, {})(*inputs)
    assert fold_activations(graph, "cpu")
    remove_dead_code(graph)
    verify(graph)
    assert names(graph).count(CALL if activation else "aten.linear.default") == 1
    assert "aten.add.Tensor" not in names(graph)
    torch.testing.assert_close(eager.compile_graph(graph, {})(*inputs), expected, rtol=2e-2, atol=4e-2)


def test_large_products_keep_gelu() -> None:
    shapes = ((1 << 14, 1 << 12), (1 << 12, 1 << 12), (1 << 12,))
    inputs = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    assert not fold_activations(graph_of(layer("gelu", approximate="tanh"), *inputs), "meta")
    assert fold_activations(graph_of(layer("relu"), *inputs), "meta")


def test_relu_rounds_alike() -> None:
    """Rounded and cut off at zero, in either order."""
    x = normal(1000, dtype=torch.float32)
    assert torch.equal(F.relu(x.bfloat16()), F.relu(x).bfloat16())
