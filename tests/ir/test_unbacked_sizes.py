"""Sizes that exist only when a graph runs: what is answered, what is checked, and who tells them."""

from __future__ import annotations

import pytest
import sympy
import torch

from jitpy.ir import Graph, ScalarSpec, SizeEnv, SizeUnknown, TensorSpec, contiguous_spec
from jitpy.ir import ops as table
from jitpy.ir.interpret import interpret
from jitpy.ir.passes.cleanup import remove_dead_code, share_subexpressions
from jitpy.ir.sizes import SizeCheckFailed, c_text, floordiv, size_function
from jitpy.ir.verify import verify

F32 = torch.float32


def relations(env: SizeEnv) -> list[str]:
    return [str(relation) for relation, _ in env.run_time_checks()]


def test_questions_without_an_answer_are_not_guessed() -> None:
    env = SizeEnv()
    u = env.new_unbacked(64)
    for question in (sympy.Gt(u, 3), sympy.Eq(u, 64), sympy.Ne(u, 0), sympy.Lt(u, env.new_unbacked(5))):
        with pytest.raises(SizeUnknown):
            env.decide(question)
    with pytest.raises(SizeUnknown, match="range"):
        env.specialize(u, "range()")
    assert not env.relations and env.known(sympy.Gt(u, 3)) is None


def test_theorems_need_no_check() -> None:
    env = SizeEnv()
    n, u = env.new_symbol(6, "x", 0), env.new_unbacked(3, 0, 10)
    env.learn(sympy.Le(u, n))
    assert env.decide(sympy.Ge(u, 0)) and env.decide(sympy.Lt(u, 11)) and env.decide(sympy.Lt(u, n + 1))
    assert not env.decide(sympy.Eq(u, -1)) and env.require(sympy.Le(u, 10))
    assert not env.run_time_checks() and not env.entry_relations()


def test_the_usual_answers_are_checked_at_run_time() -> None:
    env = SizeEnv()
    n, u, v = env.new_symbol(6, "x", 0), env.new_unbacked(64), env.new_unbacked(64)
    assert not env.equal(u, 1) and not env.equal(0, v)
    assert env.equal(u, n), "sizes that must match do"
    assert relations(env) == ["Ne(u0, 1)", "Ne(0, u1)", "Eq(u0, s0)"]
    assert env.canonical(u) == n, "what data tells is written as what is known at entry"
    assert not env.entry_relations()


def test_required_facts_answer_later_questions() -> None:
    env = SizeEnv()
    u = env.new_unbacked(64, -100, 100)
    assert env.require(sympy.Ge(u, 0)) and env.require(sympy.Lt(u, 10))
    assert env.decide(sympy.Lt(u, 12)) and not env.decide(sympy.Lt(u, 0)) and env.bounds(u) == (0, 9)
    assert not env.require(sympy.Gt(u, 20)), "known to be false: nothing is recorded"
    assert relations(env) == ["u0 >= 0", "u0 < 10"]


def test_entry_sizes_are_never_told_by_data() -> None:
    env = SizeEnv()
    u, n = env.new_unbacked(64), env.new_symbol(6, "x", 0)
    assert env.equal(n, 2 * u)
    assert env.canonical(n) == n and not env.decide(sympy.Eq(n, 7))
    assert [str(relation) for relation, _ in env.entry_relations()] == [f"Ne({n}, 7)"]


def test_rollback_forgets_checks() -> None:
    env = SizeEnv()
    u = env.new_unbacked(64)
    mark = env.checkpoint()
    env.require(sympy.Lt(u, 10))
    env.learn(sympy.Gt(u, 2))
    env.rollback(mark)
    assert not env.run_time_checks() and env.bounds(u)[0] == 0
    with pytest.raises(SizeUnknown):
        env.decide(sympy.Lt(u, 10))


def test_generic_answers_record_nothing() -> None:
    env = SizeEnv()
    u = env.new_unbacked(64)
    with env.generic():
        assert env.known(sympy.Eq(u, 1)) is False and env.known(sympy.Eq(4 * u, 4)) is False
        assert env.known(sympy.Gt(u, 5)) is None
    assert env.known(sympy.Eq(u, 1)) is None and not env.relations


def selection() -> tuple[Graph, dict[str, object]]:
    """`m = x.nonzero(); n = k.item(); return zeros(n) + 1, m`"""
    graph = Graph()
    x = graph.add_input(contiguous_spec(F32, (4,)), "x")
    k = graph.add_input(contiguous_spec(torch.int64, ()), "k")
    m = graph.add(table.get("aten.nonzero.default"), (x,), {},
                  table.infer(table.get("aten.nonzero.default"), graph.sizes, (x,)))
    n = graph.sizes.new_unbacked(8, -5, 5)
    item = graph.add(table.get("aten.item.default"), (k,), {}, ScalarSpec(int, n))
    zeros = graph.add(table.get("aten.zeros.default"), ((n,),), {},
                      table.infer(table.get("aten.zeros.default"), graph.sizes, ((n,),)))
    graph.outputs = [zeros, m]
    return graph, {"m": m, "item": item, "zeros": zeros, "n": n}


def test_a_symbol_is_bound_by_the_first_node_that_has_it_bare() -> None:
    graph, named = selection()
    u = named["m"].spec.shape[0]  # type: ignore[attr-defined]
    assert graph.unbacked_bindings() == {u: (named["m"], 0), named["n"]: (named["item"], None)}
    verify(graph)


def test_dead_code_keeps_who_tells_sizes() -> None:
    graph, named = selection()
    remove_dead_code(graph)
    assert named["item"] in graph.nodes, "zeros has no operand, and needs its size"
    graph.outputs = [graph.inputs[0]]
    graph.sizes.require(sympy.Ge(named["n"], 1))  # type: ignore[arg-type]
    remove_dead_code(graph)
    assert graph.nodes == [named["item"]], "the check needs it"


def test_results_of_unknown_size_are_not_shared() -> None:
    graph = Graph()
    x = graph.add_input(contiguous_spec(F32, (4,)), "x")
    op = table.get("aten.nonzero.default")
    graph.outputs = [graph.add(op, (x,), {}, table.infer(op, graph.sizes, (x,))) for _ in range(2)]
    share_subexpressions(graph)
    assert len(graph.nodes) == 2 and len(graph.unbacked_bindings()) == 2


@pytest.mark.parametrize("count", [0, 1, 3])
def test_interpreter_binds_and_checks(count: int) -> None:
    graph, _ = selection()
    x = torch.tensor([1.0, 0.0, 2.0, 0.0])
    zeros, m = interpret(graph, [x, torch.tensor(count)])
    assert zeros.shape == (count,) and torch.equal(m, x.nonzero())
    for bad in (-1, 6):
        with pytest.raises((SizeCheckFailed, RuntimeError)):
            interpret(graph, [x, torch.tensor(bad)])


def test_rules_name_every_size_once() -> None:
    env = SizeEnv()
    n = env.new_symbol(6, "x", 0)
    x = contiguous_spec(F32, (n, 3))
    mask = contiguous_spec(torch.bool, (n,))
    spec = table.infer(table.get("aten.index.Tensor"), env, (x, [mask]))
    assert isinstance(spec, TensorSpec) and str(spec.shape) == "(u0, 3)"
    assert env.known(sympy.Le(spec.shape[0], n)) is True
    values, inverse, counts = table.infer(table.get("aten._unique2.default"), env, (x, True, True, True))
    assert values.shape == counts.shape == (sympy.Symbol("u1", integer=True, positive=True),)
    assert inverse.shape == (n, 3) and env.bounds(values.shape[0])[0] == 1


def test_division_by_a_size_of_zero_is_no_crash() -> None:
    env = SizeEnv()
    u = env.new_unbacked(8)
    expr = floordiv(12, u)
    assert size_function([expr], [u])((0,)) == [0] and size_function([expr], [u])((4,)) == [3]
    assert "== 0 ? 0 :" in c_text(expr, total=True) and "?" not in c_text(expr).split("/")[0]
