"""Graphs as `torch.fx.GraphModule`s."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.fx
from hypothesis import given, settings
from hypothesis import strategies as st

from jitpy.ir import Graph, Loc, Mutation, Op, ScalarSpec, TensorSpec, contiguous_spec
from jitpy.ir.builder import Builder
from jitpy.ir.fx import to_fx
from jitpy.ir.interpret import interpret
from jitpy.ir.sizes import floordiv, mod
from tests.ir.random_graphs import clones, random_graph, same_bits, sharing

F32 = contiguous_spec(torch.float32, (2, 3))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_random_graphs_compute_the_same(seed: int, grad: bool, dynamic: bool) -> None:
    graph, inputs = random_graph(seed, grad=grad, dynamic=dynamic)
    mine, theirs = clones(inputs), clones(inputs)
    expected = list(interpret(graph, mine))
    found = graph.to_fx()(*theirs)
    assert isinstance(found, tuple)
    for a, b in zip(expected + mine, [*found, *theirs], strict=True):
        assert same_bits(a, b), str(graph)
    assert sharing(expected + mine) == sharing([*found, *theirs])


def test_structure() -> None:
    graph = Graph("block")
    x = graph.add_input(F32, "x")
    b = Builder(graph, loc=Loc("model.py", 3, "f"))
    parts = b.call("aten.split.Tensor", b.call("aten.add.Tensor", x, 2), 1)
    weight = torch.ones(2, 3)
    out = b.call("aten.mul.Tensor", b.getitem(parts, 1), b.constant(weight))
    graph.outputs, graph.mutations = [out], [Mutation(0, b.call("aten.neg.default", x))]
    example = torch.zeros(2, 3)
    module = to_fx(graph, [example])
    assert type(module).__name__ == "block"
    nodes = list(module.graph.nodes)
    assert [n.op for n in nodes] == ["placeholder", *["call_function"] * 3, "get_attr", *["call_function"] * 3,
                                     "output"]
    assert nodes[0].name == "x" and nodes[0].meta["val"] is example
    assert nodes[1].target is torch.ops.aten.add.Tensor and "model.py" in nodes[1].stack_trace
    assert nodes[-2].target is torch.ops.aten.copy_.default
    assert dict(module.named_buffers())["_constant"] is weight
    with pytest.raises(ValueError, match="takes 1 inputs"):
        to_fx(graph, [])


def test_sizes_are_computed_from_the_inputs() -> None:
    graph = Graph()
    n = graph.sizes.new_symbol(6, "x", 0)
    k = graph.sizes.new_symbol(2, "k")
    stride = graph.sizes.new_symbol(3, "x", 0)
    x = graph.add_input(TensorSpec(torch.float32, (n, 3), (stride, 1)), "x")
    graph.add_input(ScalarSpec(int, k), "k")
    b = Builder(graph)
    sizes = [floordiv(n, 2), mod(n, 4) + k, n * n - 1, stride]
    full = [b.call("aten.full.default", [size], 1.0, spec=contiguous_spec(torch.float32, (size,))) for size in sizes]
    graph.outputs = [*full, x]
    module = graph.to_fx()
    for rows, extra in ((6, 2), (9, 5)):
        found = module(torch.zeros(rows, 3), extra)
        assert [len(t) for t in found[:4]] == [rows // 2, rows % 4 + extra, rows * rows - 1, 3]
    lost = graph.sizes.new_symbol(6, "y", 0)
    b.call("aten.full.default", [lost], 1.0, spec=contiguous_spec(torch.float32, (lost,)))
    with pytest.raises(ValueError, match="carries the size s3"):
        graph.to_fx()


def test_grad_modes_are_switched_where_they_matter() -> None:
    def build(requires_grad: bool) -> Graph:
        graph = Graph()
        x = graph.add_input(F32.with_(requires_grad=requires_grad), "x")
        y = Builder(graph, grad_enabled=False).call("aten.exp.default", x)
        graph.outputs = [Builder(graph).call("aten.mul.Tensor", x, y)]
        return graph

    def switches(graph: Graph, **kwargs: bool) -> list[bool]:
        module = to_fx(graph, **kwargs)
        return [n.args[0] for n in module.graph.nodes if n.target is torch._C._set_grad_enabled]

    assert switches(build(False)) == []
    assert switches(build(True)) == [False, True]
    assert switches(build(True), grad_enabled=False) == [True, False]
    x = torch.randn(2, 3, requires_grad=True)
    out, = build(True).to_fx()(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
    with torch.no_grad():
        out, = build(True).to_fx()(x)
        assert not torch.is_grad_enabled()
    assert out.requires_grad


def test_inputs_swap() -> None:
    graph = Graph()
    x, y = graph.add_input(F32, "x"), graph.add_input(F32, "y")
    graph.mutations = [Mutation(0, y), Mutation(1, x)]
    a, b = torch.zeros(2, 3), torch.ones(2, 3)
    assert graph.to_fx()(a, b) == ()
    assert a.sum() == 6 and b.sum() == 0


def test_host_scalars() -> None:
    graph = Graph()
    x = graph.add_input(F32, "x")
    b = Builder(graph)
    item = b.call("aten.item.default", b.call("aten.sum.default", x), spec=ScalarSpec(float))
    double = b.call(Op("py.mul", lambda a, c: a * c, kind="host"), item, 2, spec=ScalarSpec(float))
    graph.outputs = [double, b.call("aten.add.Tensor", x, double)]
    found = graph.to_fx()(torch.ones(2, 3))
    assert found[0] == 12.0 and torch.equal(found[1], torch.full((2, 3), 13.0))


class Adds:
    """A callable that has no name."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.number


def test_targets_that_no_module_holds() -> None:
    graph = Graph()
    x = graph.add_input(F32, "x")
    b = Builder(graph)
    functions = [Adds(1), Adds(2), lambda x: x * 3, eval("lambda x: x * 4")]
    graph.outputs = [b.call(Op("py.<lambda>", function), x, spec=F32) for function in functions]
    value = torch.randn(2, 3)
    for found, function in zip(graph.to_fx()(value), functions, strict=True):
        assert torch.equal(found, function(value))


def test_names_of_builtins() -> None:
    """Numbers are called `float` in graphs: the second one is not the first one."""
    graph = Graph()
    names = ["float", "int", "float", "round", "self", "float_1"]
    graph.outputs = [graph.add_input(ScalarSpec(float), name) for name in names]
    assert graph.to_fx()(*range(6)) == tuple(range(6))


def test_the_compiler_packages_of_torch_are_not_imported() -> None:
    code = """
import sys, torch
from jitpy.ir import Graph, contiguous_spec
from jitpy.ir.builder import Builder
from jitpy.ir.passes import run_passes
from jitpy.backends.registry import get_backend, list_backends
before = set(sys.modules)
graph = Graph()
x = graph.add_input(contiguous_spec(torch.float32, (2, 3)), "x")
graph.outputs = [Builder(graph).call("aten.exp.default", x)]
run_passes(graph)
graph.to_fx()(torch.ones(2, 3))
get_backend("eager")
get_backend(lambda module, inputs: module)(graph, {})(torch.ones(2, 3))
names = {m.split(".")[1] for m in set(sys.modules) if m.startswith("torch._")}
print(sorted(names & {"_dynamo", "_inductor"}))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
