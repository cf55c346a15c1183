"""Every rule of the verifier finds its breach, and says where."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
import torch

from jitpy.ir import CONSTANT, GETITEM, INPUT, Graph, Loc, Mutation, Node, ScalarSpec, contiguous_spec
from jitpy.ir import ops as table
from jitpy.ir.builder import Builder
from jitpy.ir.verify import RULES, VerifyError, verify
from tests.ir.random_graphs import random_graph

F32 = contiguous_spec(torch.float32, (2, 3))


def sample() -> Graph:
    graph = Graph()
    x = graph.add_input(F32, "x")
    b = Builder(graph, loc=Loc("model.py", 3, "f"))
    y = b.call("aten.exp.default", x)
    parts = b.call("aten.split.Tensor", y, 1)
    graph.outputs = [y, b.getitem(parts, 1), b.constant(torch.ones(1))]
    graph.mutations = [Mutation(0, y)]
    return graph


def test_good_graphs_pass() -> None:
    verify(sample(), specs=True)
    for seed in range(20):
        verify(random_graph(seed)[0], specs=True)


def breach(name: str) -> Callable[[Callable[[Graph], None]], Callable[[Graph], None]]:
    def register(change: Callable[[Graph], None]) -> Callable[[Graph], None]:
        BREACHES.append((name, change))
        return change
    return register


BREACHES: list[tuple[str, Callable[[Graph], None]]] = []


@breach("inputs are ir.input")
def _input_op(graph: Graph) -> None:
    graph.inputs.append(Node(table.get("aten.exp.default"), (), {}, F32, "y"))


@breach("inputs are ir.input")
def _input_among_nodes(graph: Graph) -> None:
    graph.nodes.append(Node(INPUT, (), {}, F32, "y"))


@breach("inputs are ir.input")
def _input_without_spec(graph: Graph) -> None:
    graph.inputs.append(Node(INPUT, (), {}, None, "y"))


@breach("definition before use")
def _order(graph: Graph) -> None:
    graph.nodes.reverse()


@breach("definition before use")
def _foreign_output(graph: Graph) -> None:
    graph.outputs.append(Node(INPUT, (), {}, F32, "other"))


@breach("definition before use")
def _twice(graph: Graph) -> None:
    graph.nodes.append(graph.nodes[0])


@breach("unique names")
def _names(graph: Graph) -> None:
    graph.nodes[0].name = "x"


@breach("kinds of arguments")
def _raw_tensor(graph: Graph) -> None:
    graph.nodes[0].args = (torch.ones(2),)


@breach("kinds of arguments")
def _set_argument(graph: Graph) -> None:
    graph.nodes[0].kwargs = {"x": [1, {2}]}


@breach("kinds of arguments")
def _whole_tuple(graph: Graph) -> None:
    graph.add(table.get("aten.exp.default"), (graph.nodes[1],), {}, F32)


@breach("kinds of arguments")
def _constant(graph: Graph) -> None:
    graph.add(CONSTANT, (3,), {}, F32)


@breach("getitem takes a part")
def _getitem_of_one(graph: Graph) -> None:
    graph.add(GETITEM, (graph.nodes[0], 0), {}, F32)


@breach("getitem takes a part")
def _getitem_out_of_range(graph: Graph) -> None:
    graph.add(GETITEM, (graph.nodes[1], 2), {}, F32)


@breach("getitem takes a part")
def _getitem_spec(graph: Graph) -> None:
    graph.add(GETITEM, (graph.nodes[1], 0), {}, F32)


@breach("mutations fit")
def _mutation_target(graph: Graph) -> None:
    graph.mutations = [Mutation(1, graph.nodes[0])]


@breach("mutations fit")
def _mutation_twice(graph: Graph) -> None:
    graph.mutations *= 2


@breach("mutations fit")
def _mutation_shape(graph: Graph) -> None:
    graph.mutations = [Mutation(0, graph.outputs[1])]


@breach("mutations fit")
def _mutation_scalar(graph: Graph) -> None:
    graph.add_input(ScalarSpec(int), "n")
    graph.mutations = [Mutation(1, graph.nodes[0])]


@breach("symbols are known")
def _symbol(graph: Graph) -> None:
    graph.nodes[0].kwargs = {"n": [sympy.Symbol("s9") * 2]}


@breach("sizes are known where they are used")
def _untold_size(graph: Graph) -> None:
    graph.nodes[0].kwargs = {"n": [graph.sizes.new_unbacked(4) * 2]}


@breach("functional")
def _in_place(graph: Graph) -> None:
    graph.add(table.get("aten.add_.Tensor"), (graph.nodes[0], 1), {}, F32)


@breach("specs are well formed")
def _strides(graph: Graph) -> None:
    graph.nodes[0].spec = F32.with_(stride=(1,))


@breach("specs are well formed")
def _sympy_integer(graph: Graph) -> None:
    graph.nodes[0].spec = F32.with_(shape=(sympy.Integer(2), 3))


@breach("specs are well formed")
def _grad(graph: Graph) -> None:
    graph.nodes[0].grad_enabled = False
    graph.nodes[0].spec = F32.with_(requires_grad=True)


@breach("specs as inferred")
def _wrong_spec(graph: Graph) -> None:
    graph.nodes[0].spec = contiguous_spec(torch.float32, (3, 2))
    graph.mutations = []


@pytest.mark.parametrize(("name", "change"), BREACHES, ids=[f"{n}-{c.__name__}" for n, c in BREACHES])
def test_breaches_are_found(name: str, change: Callable[[Graph], None]) -> None:
    graph = sample()
    change(graph)
    with pytest.raises(VerifyError, match=f"after some_pass breaks rule '{name}'"):
        verify(graph, after="some_pass", specs=True)


def test_every_rule_has_a_breach() -> None:
    assert {rule.name for rule in RULES} <= {name for name, _ in BREACHES}


def test_the_error_names_node_and_place() -> None:
    graph = sample()
    graph.nodes[0].args = (torch.ones(2),)
    with pytest.raises(VerifyError, match=r"at exp = aten.exp.default \(model.py:3 in f\): argument of type Tensor"):
        verify(graph)
