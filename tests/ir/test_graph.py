"""Graph, builder, printers, interpreter, specialisation."""

from __future__ import annotations

import pytest
import torch

from jitpy.ir import Graph, Loc, Mutation, ScalarSpec, TensorSpec, contiguous_spec
from jitpy.ir.builder import Builder
from jitpy.ir.interpret import interpret
from jitpy.ir.printer import to_dot, to_table, to_text
from jitpy.ir.specialize import specialize

F32 = contiguous_spec(torch.float32, (2, 3))
LOC = Loc("/home/user/model.py", 12, "forward")


def sample() -> Graph:
    graph = Graph("forward")
    n = graph.sizes.new_symbol(4, "x", 0)
    x = graph.add_input(contiguous_spec(torch.float32, (n, 3)), "x")
    y = graph.add_input(contiguous_spec(torch.float32, (n, 3)), "y", source="self.y")
    b = Builder(graph, loc=LOC)
    add = b.call("aten.add.Tensor", x, 1)
    parts = b.call("aten.split.Tensor", add, 2, -1)
    flat = b.call("aten.reshape.default", b.getitem(parts, 0), [n * 2])
    off = Builder(graph, grad_enabled=False).call("aten.mul.Tensor", y, float("inf"))
    graph.outputs = [flat, b.constant(torch.ones(2))]
    graph.mutations = [Mutation(1, off)]
    return graph


TEXT = """\
def forward(
    x,  # float32[s0, 3]
    y,  # float32[s0, 3]  self.y
):
    s0 = x.size(0)
    add = aten.add.Tensor(x, 1)  # float32[s0, 3]  model.py:12
    split = aten.split.Tensor(add, 2, -1)  # (float32[s0, 2] stride=[3, 1], float32[s0, 1] stride=[3, 1])  model.py:12
    split_1 = split[0]  # float32[s0, 2] stride=[3, 1]  model.py:12
    reshape = aten.reshape.default(split_1, [2*s0])  # float32[2*s0]  model.py:12
    torch.set_grad_enabled(False)
    mul = aten.mul.Tensor(y, float('inf'))  # float32[s0, 3]
    torch.set_grad_enabled(True)
    constant = ir.constant(<float32[2]>)  # float32[2]  model.py:12
    y.copy_(mul)
    return (reshape, constant)"""


def test_text() -> None:
    graph = sample()
    assert to_text(graph) == TEXT == str(graph)
    compile(TEXT.replace("<float32[2]>", "None"), "text", "exec")  # it reads as Python


def test_table_and_dot() -> None:
    graph = sample()
    table = to_table(graph)
    first_column = [line.split()[0] for line in table.splitlines()]
    assert first_column == ["name", "--------", "x", "y", "add", "split", "split_1", "reshape", "mul", "constant", "y",
                            "return"]
    assert "model.py:12" in table and "copy_" in table
    dot = to_dot(graph)
    assert dot.startswith('digraph "forward" {') and dot.endswith("}")
    assert '"x" -> "add";' in dot and "style=dashed" in dot and to_dot(sample()) == dot


def test_an_empty_graph_prints() -> None:
    assert to_text(Graph()) == "def graph():\n    return ()"


def test_names_are_unique_identifiers() -> None:
    graph = Graph()
    names = [graph.unique_name(hint) for hint in ("a", "a", "a_1", "a", "lambda", "self.weight", "3d", "", "a")]
    assert len(set(names)) == len(names) and all(name.isidentifier() for name in names)
    assert names[:2] == ["a", "a_1"]


def test_builder_inserts_before_a_node() -> None:
    graph = Graph()
    x = graph.add_input(F32.with_(requires_grad=True), "x")
    first = Builder(graph).call("aten.exp.default", x)
    last = Builder(graph, loc=LOC, grad_enabled=False).call("aten.neg.default", first)
    b = Builder(graph, before=last)
    one, two = b.call("aten.sin.default", first), b.call(torch.ops.aten.cos.default, first)
    assert graph.nodes == [first, one, two, last] and b.created == [one, two]
    assert one.loc == LOC and not one.grad_enabled and not one.tensor.requires_grad and first.tensor.requires_grad
    with pytest.raises(TypeError, match="nothing to index"):
        b.getitem(one, 0)


def test_builder_into_a_list() -> None:
    graph = Graph()
    x = graph.add_input(F32, "x")
    nodes: list[object] = []
    node = Builder(graph, into=nodes).call("aten.exp.default", x, spec=F32, name="e")  # type: ignore[arg-type]
    assert nodes == [node] and graph.nodes == [] and node.name == "e"


def test_replace_reaches_readers_outputs_and_mutations() -> None:
    graph = Graph()
    x, y = graph.add_input(F32, "x"), graph.add_input(F32, "y")
    a = Builder(graph, grad_enabled=False).call("aten.exp.default", x)
    c = Builder(graph).call("aten.neg.default", a)
    graph.outputs, graph.mutations = [a, c], [Mutation(0, a)]
    graph.replace({a: y})
    assert c.args == (y,) and graph.outputs == [y, c]
    assert graph.mutations[0].value is y and graph.mutations[0].runs_with_grad is False
    assert graph.users()[y] == [c] and graph.users()[a] == []


def test_symbols_are_read_from_inputs() -> None:
    graph = Graph()
    n, m, k = (graph.sizes.new_symbol(4, "x", i) for i in range(3))
    graph.add_input(TensorSpec(torch.float32, (n * 2, 3), (m, 1)), "x")
    graph.add_input(TensorSpec(torch.float32, (m, n), (n, 1)), "y")
    graph.add_input(ScalarSpec(int, k), "k")
    assert graph.symbol_bindings() == {m: (1, "size", 0), n: (1, "size", 1), k: (2, "value", None)}


def test_the_interpreter_runs_sizes_grad_modes_and_mutations() -> None:
    graph = sample()
    for rows in (4, 7):
        x, y = torch.randn(rows, 3, requires_grad=True), torch.ones(rows, 3)
        flat, constant = interpret(graph, [x, y])
        assert torch.equal(flat, (x + 1)[:, :2].reshape(-1)) and flat.requires_grad
        assert torch.equal(y, torch.full((rows, 3), float("inf"))) and constant.tolist() == [1, 1]
    assert torch.is_grad_enabled()
    with pytest.raises(TypeError, match="takes 2 inputs"):
        interpret(graph, [x])


def test_specialize_makes_a_static_copy() -> None:
    graph = sample()
    symbol = next(iter(graph.sizes.symbols))
    static = specialize(graph, {symbol: 5})
    assert str(graph) == TEXT
    assert static.inputs[0].tensor.shape == (5, 3) and "[10]" in str(static) and "s0" not in str(static)
    x, y = torch.randn(5, 3), torch.ones(5, 3)
    assert torch.equal(interpret(static, [x, y])[0], interpret(graph, [x, y])[0])
    with pytest.raises(KeyError):
        specialize(graph, {object(): 1})  # type: ignore[dict-item]
