"""The passes keep every bit, the sharing of memory, the mutations and the gradients."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import jitpy
from jitpy import logs
from jitpy.ir import Graph, Mutation, Node, TensorSpec, contiguous_spec
from jitpy.ir.builder import Builder
from jitpy.ir.interpret import interpret
from jitpy.ir.passes import P, Rules, register_pass, rule, run_passes
from jitpy.ir.passes.pipeline import STAGES, STEP_NAMES, registered_names
from jitpy.ir.specialize import specialize
from tests.ir.random_graphs import clones, random_graph, same_bits, sharing

F32 = contiguous_spec(torch.float32, (2, 3))


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def one_input(spec: TensorSpec = F32) -> tuple[Graph, Node, Builder]:
    graph = Graph()
    x = graph.add_input(spec, "x")
    return graph, x, Builder(graph)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_random_graphs_stay_the_same(seed: int, grad: bool, dynamic: bool) -> None:
    # a copy-back may spoil what autograd saved, in eager as well
    graph, inputs = random_graph(seed, grad=grad, dynamic=dynamic, mutate=not grad)
    text = str(graph)
    before_inputs, after_inputs = clones(inputs), clones(inputs)
    before = list(interpret(specialize(graph, {}), before_inputs))
    run_passes(graph)
    after = list(interpret(graph, after_inputs))
    for a, b in zip(before + before_inputs, after + after_inputs, strict=True):
        assert same_bits(a, b), f"{text}\n{graph}\n{a}\n{b}"
    assert sharing(before + before_inputs) == sharing(after + after_inputs), f"{text}\n{graph}"
    if grad:
        _compare_gradients(before, before_inputs, after, after_inputs, text)


def _compare_gradients(before: list[torch.Tensor], xs: list[torch.Tensor], after: list[torch.Tensor],
                       ys: list[torch.Tensor], text: str) -> None:
    found = []
    for outputs, inputs in ((before, xs), (after, ys)):
        outputs = [out for out in outputs if out.requires_grad]
        wanted = [x for x in inputs if x.requires_grad]
        if not outputs or not wanted:
            return
        weights = [torch.full_like(out, 0.5) for out in outputs]
        found.append(torch.autograd.grad(outputs, wanted, weights, allow_unused=True))
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None), text
        if a is not None:
            torch.testing.assert_close(a, b, equal_nan=True, msg=text)


def test_outputs_keep_their_own_memory() -> None:
    graph, x, b = one_input()
    copy, product, view = (b.call("aten.clone.default", x), b.call("aten.mul.Tensor", x, 1),
                           b.call("aten.view.default", x, [2, 3]))
    graph.outputs = [copy, product, view]
    run_passes(graph)
    value = torch.randn(2, 3)
    outputs = interpret(graph, [value])
    assert [out.data_ptr() == value.data_ptr() for out in outputs] == [False, False, True]
    assert outputs[0].data_ptr() != outputs[1].data_ptr()
    assert outputs[2] is not value


def test_a_saved_tensor_is_not_merged_with_an_output() -> None:
    graph, x, b = one_input(F32.with_(requires_grad=True))
    out = b.call("aten.exp.default", x)
    saved = b.call("aten.exp.default", x)
    graph.outputs = [out, b.call("aten.mul.Tensor", saved, 2)]
    run_passes(graph)
    value = torch.randn(2, 3, requires_grad=True)
    first, second = interpret(graph, [value])
    first.detach().add_(1)  # eager's second result does not know of this write
    second.sum().backward()
    torch.testing.assert_close(value.grad, 2 * value.detach().exp())


def test_autograd_does_not_save_what_the_caller_writes_to() -> None:
    graph = Graph()
    x, w = graph.add_input(F32, "x"), graph.add_input(F32.with_(requires_grad=True), "w")
    b = Builder(graph)
    graph.outputs = [b.call("aten.mul.Tensor", b.call("aten.clone.default", x), w)]
    graph.mutations = [Mutation(0, b.call("aten.add.Tensor", x, 1))]
    run_passes(graph)
    a, c = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
    interpret(graph, [a, c])[0].sum().backward()
    assert torch.equal(c.grad, torch.ones(2, 3)) and torch.equal(a, torch.full((2, 3), 2.0))


def test_dead_code_keeps_what_eager_would_show() -> None:
    graph = Graph()
    x = graph.add_input(F32, "x")
    index = graph.add_input(contiguous_spec(torch.int64, (2,)), "index")
    b = Builder(graph)
    b.call("aten.index_select.default", x, 0, index)
    b.call("aten.div.Tensor_mode", index, index, rounding_mode="floor")
    b.call("aten.div.Tensor_mode", index, 2, rounding_mode="floor")
    graph.outputs = [b.call("aten.neg.default", x)]
    run_passes(graph)
    assert names(graph) == ["aten.index_select.default", "aten.div.Tensor_mode", "aten.neg.default"]
    with pytest.raises(IndexError):
        interpret(graph, [torch.ones(2, 3), torch.tensor([0, 7])])


def test_constants_are_folded_but_not_into_outputs() -> None:
    graph, x, b = one_input()
    steps = b.call("aten.arange.default", 3)
    mask = b.call("aten.mul.Tensor", b.call("aten.add.Tensor", steps, 1), 2)
    graph.outputs = [b.call("aten.add.Tensor", x, mask), b.call("aten.mul.Tensor", steps, 3)]
    run_passes(graph)
    assert names(graph) == ["aten.arange.default", "ir.constant", "aten.add.Tensor", "aten.mul.Tensor"]
    value = torch.ones(2, 3)
    first = interpret(graph, [value])
    first[1].add_(1)
    assert torch.equal(interpret(graph, [value])[1], torch.tensor([0, 3, 6]))
    assert torch.equal(first[0], value + torch.tensor([2, 4, 6]))


def test_a_rewrite_does_not_depend_on_the_sizes_of_this_call() -> None:
    graph = Graph()
    n = graph.sizes.new_symbol(2, None, 0)
    x = graph.add_input(contiguous_spec(torch.float32, (n, 3)), "x")
    y = graph.add_input(F32, "y")
    copy = Builder(graph).call("aten.copy.default", x, y, spec=x.tensor)
    graph.outputs = [Builder(graph).call("aten.exp.default", copy)]
    run_passes(graph)
    assert graph.sizes.relations == [] and names(graph) == ["aten.copy.default", "aten.exp.default"]


def test_two_inputs_may_swap() -> None:
    graph = Graph()
    x, y = graph.add_input(F32, "x"), graph.add_input(F32, "y")
    b = Builder(graph)
    graph.mutations = [Mutation(0, b.call("aten.clone.default", y)), Mutation(1, b.call("aten.clone.default", x))]
    run_passes(graph)
    a, c = torch.zeros(2, 3), torch.ones(2, 3)
    interpret(graph, [a, c])
    assert torch.equal(a, torch.ones(2, 3)) and torch.equal(c, torch.zeros(2, 3))


# -- users' own passes

def test_a_users_rule_runs_until_it_is_unregistered() -> None:
    log_of_2 = rule(P.log(P.exp(P.any("x"))), lambda b, x: x, "log(exp(x))")
    handle = register_pass(Rules(log_of_2), name="undo exp", before="share_subexpressions")

    def build() -> Graph:
        graph, x, b = one_input()
        graph.outputs = [b.call("aten.neg.default", b.call("aten.log.default", b.call("aten.exp.default", x)))]
        return run_passes(graph)

    assert "undo exp" in registered_names()
    assert names(build()) == ["aten.neg.default"]
    handle.unregister()
    handle.unregister()
    assert names(build()) == ["aten.exp.default", "aten.log.default", "aten.neg.default"]


def test_a_users_rule_builds_nodes() -> None:
    rules = Rules(rule(P.exp(P.add(P.any("x"), P.any("y"))),
                       lambda b, x, y: b.call("aten.mul.Tensor", *(b.call("aten.exp.default", v) for v in (x, y)))))
    graph = Graph()
    x, y = graph.add_input(F32, "x"), graph.add_input(F32, "y")
    b = Builder(graph)
    graph.outputs = [b.call("aten.exp.default", b.call("aten.add.Tensor", x, y))]
    run_passes(graph, [rules])
    assert names(graph) == ["aten.exp.default", "aten.exp.default", "aten.mul.Tensor"]


def test_a_users_function_runs_at_its_place() -> None:
    seen: list[list[str]] = []
    with register_pass(lambda graph: seen.append(names(graph)), before="simplify", name="before"), \
            register_pass(lambda graph: seen.append(names(graph)), after="simplify", name="after"):
        graph, x, b = one_input()
        graph.outputs = [b.call("aten.exp.default", b.call("aten.mul.Tensor", x, 1))]
        run_passes(graph)
    assert seen[0] == ["aten.mul.Tensor", "aten.exp.default"] and "aten.exp.default" in seen[1]
    assert not registered_names()


def test_a_registered_pass_reaches_jitted_functions() -> None:
    undo = Rules(rule(P.log(P.exp(P.any("x"))), lambda b, x: x))
    seen: list[list[str]] = []
    x = torch.randn(4)
    with register_pass(undo, name="undo"), \
            register_pass(lambda graph: seen.append(names(graph)), after="remove_dead_code"):
        jitted = jitpy.jit(lambda x: x.exp().log() + 1, backend="eager", fullgraph=True)
        assert torch.equal(jitted(x), x + 1)
    assert seen == [["aten.add.Tensor"]]


def test_the_page_of_passes_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("pass_table", Path(__file__).parents[2] / "tools" / "pass_table.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tool.PAGE.read_text()
    assert page == tool.renewed(page), "run tools/pass_table.py"


def test_every_pass_of_the_list_can_be_imported() -> None:
    assert all(callable(one.run) for passes in STAGES.values() for one in passes)


def test_wrong_registrations_name_the_choices() -> None:
    with pytest.raises(TypeError, match="Rules"):
        register_pass(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="simplify"):
        register_pass(lambda graph: None, before="nothing")
    with pytest.raises(ValueError, match="not both"):
        register_pass(lambda graph: None, before="simplify", after="simplify")
    with pytest.raises(ValueError, match="exists"):
        register_pass(lambda graph: None, name=STEP_NAMES[0])
    with pytest.raises(TypeError, match="pattern"):
        rule(P.any("x"), lambda b, x: x)


def test_a_rule_that_changes_the_shape_is_an_error() -> None:
    graph, x, b = one_input()
    graph.outputs = [b.call("aten.exp.default", x)]
    with pytest.raises(ValueError, match="flatten it"):
        run_passes(graph, [Rules(rule(P.exp(P.any("x")), lambda b, x: b.call("aten.reshape.default", x, [-1]),
                                      "flatten it"))])


def test_patterns() -> None:
    graph, x, b = one_input()
    y = b.call("aten.add.Tensor", x, 2)
    scaled = b.call("aten.add.Tensor", x, 2, alpha=3)
    bound: dict[str, object] = {}
    assert P.add(2, P.any("x")).match(y, bound) and bound == {"x": x}
    assert P.add(P.any("x"), 2.0).match(y, {})
    assert not P.add(P.any("x"), 3).match(y, {})
    assert not P.add(P.any("x"), 2).match(scaled, {})
    assert P.add(P.any("x"), 2, ...).match(scaled, {})
    assert P.add(P.any("x"), 2, alpha=P.any("a")).match(scaled, bound := {}) and bound["a"] == 3
    assert not P.op("aten.add.Scalar", ...).match(y, {})
    assert not P.add(P.any("x"), P.any("x")).match(y, {})
    assert P.mul(P.any("x"), P.any("x")).match(b.call("aten.mul.Tensor", x, x), {})
    assert not P.mul(P.any("x"), 0.0).match(b.call("aten.mul.Tensor", x, -0.0), {})


def test_passes_are_logged() -> None:
    lines: list[str] = []
    sink = logs.set_sink(lines.append)
    logs.enable("graph")
    try:
        graph, x, b = one_input()
        graph.outputs = [b.call("aten.exp.default", b.call("aten.mul.Tensor", x, 1))]
        run_passes(graph)
    finally:
        logs.disable("graph")
        logs.set_sink(sink)
    text = "\n".join(lines)
    assert "after simplify" in text and "x * 1" in text and "after fold_constants" not in text
