"""Products of sizes that tensor cores cannot read in whole pieces: padded where it pays, and never another result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitpy.backends import eager
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph
from jitpy.ir.passes import alignment
from jitpy.ir.passes.cleanup import remove_dead_code
from jitpy.ir.spec import contiguous_spec
from jitpy.ir.verify import verify
from tests.graph_tools import spec_of, trace

BF16 = torch.bfloat16


def normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


def cached(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A layer and its gradients, which share what is padded."""
    rows = x @ weight.to(BF16).t()
    grad = rows.float().softmax(-1).to(BF16)
    return (grad @ weight.to(BF16)).float(), (grad.t() @ x).float()


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "columns": (lambda x, w: x @ w, (normal(16, 24), normal(24, 21))),
    "turned weight": (lambda x, w: x @ w.t(), (normal(16, 24), normal(21, 24))),
    "terms": (lambda x, w: x @ w.t(), (normal(16, 21), normal(24, 21))),
    "terms and columns": (lambda x, w: x @ w, (normal(16, 19), normal(19, 21))),
    "rows": (lambda x, y: x.t() @ y, (normal(40, 21), normal(40, 24))),
    "all": (lambda x, w: x.t() @ w.t(), (normal(19, 13), normal(21, 19))),
    "bias": (lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5, alpha=2), (normal(16, 24), normal(21, 24), normal(21))),
    "batches": (lambda x, y: torch.bmm(x, y.mT), (normal(3, 16, 21), normal(3, 19, 21))),
    "half": (lambda x, w: x @ w, (normal(16, 24, dtype=torch.float16), normal(24, 21, dtype=torch.float16))),
    "shared": (cached, (normal(16, 24), normal(21, 24, dtype=torch.float32))),
}


def composite(op: str, *inputs: torch.Tensor) -> Graph:
    """One op as the user called it."""
    graph = Graph()
    nodes = [graph.add_input(spec_of(one)) for one in inputs]
    graph.outputs = [Builder(graph).call(op, *nodes)]
    return graph


GRAPHS: dict[str, tuple[Callable[[], Graph], tuple[torch.Tensor, ...]]] = {
    **{name: (lambda fn=fn, inputs=inputs: trace(fn, inputs), inputs) for name, (fn, inputs) in CASES.items()},
    **{f"{op} {len(inputs[0].shape)}": (lambda op=op, inputs=inputs: composite(f"aten.{op}.default", *inputs), inputs)
       for op, inputs in (("linear", (normal(2, 8, 24), normal(21, 24), normal(21))),
                          ("linear", (normal(8, 21), normal(24, 21))),
                          ("matmul", (normal(2, 8, 21), normal(21, 24))), ("matmul", (normal(8, 24), normal(24, 21))))},
}


@pytest.mark.parametrize("name", GRAPHS)
def test_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs = GRAPHS[name]
    monkeypatch.setattr(alignment, "_KERNEL", -1e9)  # always worth it
    graph = make()
    expected = eager.compile_graph(make(), {})(*inputs)
    assert alignment.align_products(graph)
    remove_dead_code(graph)
    verify(graph)
    for node in graph.nodes:
        if node.op.kind == "matmul":
            specs = [n.tensor for n in (*node.input_nodes(), node) if n.tensor.ndim > 1]
            assert all(min(n for n in spec.stride if n > 1) % 8 == 0 for spec in specs)
    found = eager.compile_graph(graph, {})(*inputs)
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_parts_are_padded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_KERNEL", -1e9)
    fn, inputs = CASES["shared"]
    graph = trace(fn, inputs)
    alignment.align_products(graph)
    assert sum("pad" in node.op.name for node in graph.nodes) <= 3


def products(rows: int, terms: int, columns: int, dtype: torch.dtype = BF16, wanted: bool = False) -> int:
    """How many products of a conversion of a weight are padded."""
    x, weight = torch.empty(rows, terms, dtype=dtype), torch.empty(columns, terms)
    graph = trace(lambda x, w: x @ w.to(dtype).t() if wanted else (x @ w.to(dtype).t()).float().exp(), (x, weight))
    return len(alignment.align_products(graph))


def test_it_pays() -> None:
    assert products(4096, 64, 5025) == products(4096, 64, 5025, torch.float16) == 1
    assert products(4096, 64, 5032) == 0, "aligned already"
    assert products(64, 64, 51) == 0, "smaller than a launch"
    assert products(4096, 8, 5025, wanted=True) == 0, "the copy of the result costs more"
    assert products(4096, 64, 5025, torch.float32) == 0, "float32 kernels have no such needs"


def test_sizes_known_at_run_time_stay() -> None:
    x, weight = torch.empty(4096, 64, dtype=BF16), torch.empty(64, 5025, dtype=BF16)
    graph = trace(lambda x, w: (x @ w).float().exp(), (x, weight))
    columns = graph.sizes.new_symbol(5025, "weight", 1)
    graph.inputs[1].spec = contiguous_spec(BF16, (64, columns), x.device)
    for node in graph.nodes:
        node.spec = contiguous_spec(node.tensor.dtype, (4096, columns), x.device)
    assert not alignment.align_products(graph)


def test_rows_may_be_known_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_KERNEL", -1e9)
    rows = torch.empty(16, 24, dtype=BF16)
    graph = Graph()
    size = graph.sizes.new_symbol(16, "x", 0)
    x = graph.add_input(contiguous_spec(BF16, (size, 24), rows.device), "x")
    weight = graph.add_input(contiguous_spec(BF16, (21, 24), rows.device), "weight")
    builder = Builder(graph)
    graph.outputs = [builder.call("aten.mm.default", x, builder.call("aten.t.default", weight))]
    assert alignment.align_products(graph)
    verify(graph)
    (product,) = [node for node in graph.nodes if node.op.kind == "matmul"]
    assert product.tensor.shape == (size, 24) and graph.outputs[0].tensor.shape == (size, 21)


@pytest.mark.parametrize("bias", [False, True])
def test_weights_are_laid_by_rows_where_columns_of_both_factors_lie_side_by_side(bias: bool) -> None:
    """Also those of a linear layer of swapped rows, whose call stays whole where that would not pay."""
    def graph_of(images: int) -> tuple[Graph, tuple[torch.Tensor, ...]]:
        inputs = normal(images, 196, 256), normal(384, 196), *([normal(384)] if bias else [])
        if not bias:
            return trace(lambda x, w: torch.bmm(x.mT, w.t().expand(images, 196, 384)), inputs), inputs
        graph = Graph()
        x, *others = (graph.add_input(spec_of(one)) for one in inputs)
        b = Builder(graph)
        graph.outputs = [b.call("aten.linear.default", b.call("aten.transpose.int", x, 1, 2), *others)]
        return graph, inputs

    graph, inputs = graph_of(16)
    assert len(alignment.align_products(graph)) == 1
    verify(graph)
    product = next(node for node in graph.nodes if node.op.name == "aten.bmm.default")
    assert product.args[1].tensor.stride == (0, 384, 1)
    (found,) = eager.compile_graph(graph, {})(*inputs)
    torch.testing.assert_close(found, eager.compile_graph(graph_of(16)[0], {})(*inputs)[0], rtol=2e-2, atol=0.2)
    assert not alignment.align_products(graph_of(2)[0])
