"""Every gradient rule against torch's autograd, on torch's OpInfo samples in float64, call by call of ATen.

A part of the samples by default; all of them with JITPY_TEST_ALL=1.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from jitpy.autograd.reverse import vjp
from jitpy.autograd.rules.registry import RULES
from jitpy.ir import Graph, Node, NotCovered, TensorSpec, ops
from jitpy.ir.builder import Builder
from jitpy.ir.interpret import interpret
from tests.ir.op_samples import spec_of
from tests.ir.test_ops_samples import Survey

ALL = bool(os.environ.get("JITPY_TEST_ALL"))

#: Rules of ops that no OpInfo sample calls with gradients, or that are random: tested elsewhere.
ELSEWHERE = {
    "aten.bernoulli.p", "aten.bernoulli.default", "aten.bernoulli.Tensor", "aten.native_dropout.default",
}


class Gradients(Survey):
    """Compares the gradients of each call."""

    def __init__(self, per_overload: int) -> None:
        super().__init__(check, per_overload)
        self.reached: set[str] = set()
        self.refused: dict[str, str] = {}


def leaves_of(args: Any, kwargs: Any) -> Any:
    """The arguments with tensors of their own, leaves where they require grad."""
    return tree_map(lambda t: t.detach().clone().requires_grad_(t.requires_grad)
                    if isinstance(t, torch.Tensor) else t, (args, kwargs))


def check(survey: Gradients, func: Any, specs: Any, kwspecs: Any, result: Any, inputs: Any) -> None:
    op = ops.get(func)
    results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    if any(t.layout is not torch.strided for t in results):
        return
    if not any(t.requires_grad for t in results) or op.is_random or any(t.is_complex() for t in results):
        return
    args, kwargs = leaves_of(*inputs)
    real = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if any(t.is_complex() for t in real):
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        cotangents = [torch.randn_like(t) if t.requires_grad else None for t in results]
    try:
        want_values, want = eager(func, args, kwargs, real, cotangents)
    except RuntimeError:
        return  # eager has no gradient here either
    graph = Graph()
    try:
        wrt = differentiate(graph, op, args, kwargs, real, cotangents)
    except NotCovered as reason:
        survey.refused[op.name] = str(reason)
        return
    finally:
        survey.reached.update(node.op.name for node in graph.nodes if node.grad_enabled)
    found = interpret(graph, [*real, *(c for c in cotangents if c is not None)])
    count = len(want_values)
    for got, value in zip(found[:count], want_values, strict=True):
        torch.testing.assert_close(got, value, rtol=0, atol=0, equal_nan=True)
    rest = iter(found[count:])
    for tensor, grad, there in zip([t for t in real if t.requires_grad], want, wrt, strict=True):
        got = next(rest) if there else None
        if got is None or grad is None:
            # an undefined gradient and one of zeros are the same to an accumulation
            assert all(g is None or not g.count_nonzero() for g in (got, grad)), f"{got} where eager has {grad}"
            continue
        assert got.dtype == tensor.dtype and got.shape == tensor.shape
        torch.testing.assert_close(got, grad, rtol=1e-9, atol=1e-9, equal_nan=True)


def eager(func: Any, args: Any, kwargs: Any, real: list[torch.Tensor], cotangents: list[Any]) -> Any:
    with torch.enable_grad():
        results = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, torch.Tensor)]
    pairs = [(t, c) for t, c in zip(results, cotangents, strict=True) if c is not None]
    wrt = [t for t in real if t.requires_grad]
    grads = torch.autograd.grad([t for t, _ in pairs], wrt, [c for _, c in pairs], allow_unused=True)
    return [t.detach() for t in results], grads


def differentiate(graph: Graph, op: Any, args: Any, kwargs: Any, real: list[torch.Tensor],
                  cotangents: list[Any]) -> list[bool]:
    """Fill the graph with the call and its gradients; says for each tensor that requires grad whether it has one."""
    nodes = {id(t): graph.add_input(spec_of(t)) for t in real}
    b = Builder(graph)
    args, kwargs = tree_map(lambda v: nodes[id(v)] if isinstance(v, torch.Tensor) else v, (args, kwargs))
    call = b.call(op, *args, **kwargs)
    outputs = [b.getitem(call, k) for k in range(len(call.spec))] if isinstance(call.spec, tuple) else [call]
    outputs = [node for node in outputs if isinstance(node.spec, TensorSpec)]
    given = [(node, graph.add_input(spec_of(c))) for node, c in zip(outputs, cotangents, strict=True) if c is not None]
    wrt: list[Node] = [nodes[id(t)] for t in real if t.requires_grad]
    grads = vjp(graph, [node for node, _ in given], [c for _, c in given], wrt)
    graph.outputs = [*outputs, *(g for g in grads if g is not None)]
    return [g is not None for g in grads]


def test_rules_equal_torchs_autograd() -> None:
    survey = Gradients(400 if ALL else 12)
    survey.run(torch.float64, 1000 if ALL else 6)
    missing = set(RULES) - survey.reached - ELSEWHERE
    print("not reached:", sorted(missing))
    print("refused:", *sorted(survey.refused.items()), sep="\n  ")
    assert len(survey.reached & set(RULES)) >= 0.75 * len(RULES)
    assert len(survey.refused) <= 25


X, Y = (torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) + 0.5 for k in (1, 2))
MASK = torch.tensor([True, False, True, True])
IDS = torch.tensor([[0, 2, 1, 0]])

#: Calls whose overloads the samples do not show: torch replaces names that mean the same before they can be seen.
CALLS: dict[str, Any] = {
    **{f"aten.{name}.default": (X * 0.5,) for name in (
        "absolute", "arccos", "arcsin", "arcsinh", "arctan", "arctanh", "contiguous", "fix", "negative", "zero",
        "lift_fresh")},
    "aten.arccosh.default": (X + 1,),
    **{f"aten.{name}": (X, Y) for name in (
        "arctan2.default", "divide.Tensor", "multiply.Tensor", "subtract.Tensor", "to.other", "type_as.default")},
    **{f"aten.{name}.Scalar": (X, 0.7) for name in ("divide", "fmod", "multiply", "rsub", "subtract", "true_divide")},
    "aten.pow.Scalar": (1.5, X),
    "aten._softmax.default": (X, 1, False),
    "aten.clamp.default": (X, 0.7, 1.2),
    "aten.clip.default": (X, 0.7, None),
    "aten.clamp_max.default": (X, 1.0),
    "aten.clamp_min.default": (X, 1.0),
    "aten.concat.default": ([X, Y], 1),
    "aten.concatenate.default": ([X, Y], 0),
    "aten.fill.Tensor": (X, torch.tensor(0.5, dtype=torch.float64)),
    "aten.masked_fill.Tensor": (X, MASK, torch.tensor(0.5, dtype=torch.float64)),
    "aten.moveaxis.int": (X, 0, 1),
    "aten.movedim.intlist": (X, [0, 1], [1, 0]),
    "aten.swapaxes.default": (X, 0, 1),
    "aten.swapdims.default": (X, 0, 1),
    "aten.scatter.value": (X, 0, IDS, 0.5),
    "aten.split.sizes": (X, [1, 3], 1),
    "aten.where.ScalarOther": (MASK, X, 0.5),
    "aten.where.ScalarSelf": (MASK, 0.5, X),
    "aten._to_copy.default": (X,),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_no_sample_makes(name: str) -> None:
    survey = Gradients(1)
    args = tree_map(lambda t: t.clone().requires_grad_(t.is_floating_point()) if isinstance(t, torch.Tensor) else t,
                    CALLS[name])
    op = ops.get(name)
    with torch.enable_grad():
        result = op.target(*args)
    check(survey, op.target, None, {}, result, (args, {}))
    assert not survey.refused and name in survey.reached


def test_batch_norm_while_training() -> None:
    """The form that the frontend records: running statistics come back as results without gradients."""
    x = torch.rand(4, 3, 5, dtype=torch.float64)
    args = (x.requires_grad_(), torch.rand(3, dtype=torch.float64).requires_grad_(),
            torch.rand(3, dtype=torch.float64).requires_grad_(), torch.zeros(3, dtype=torch.float64),
            torch.ones(3, dtype=torch.float64), True, 0.1, 1e-5)
    graph = Graph()
    nodes = [graph.add_input(spec_of(a)) if isinstance(a, torch.Tensor) else a for a in args]
    b = Builder(graph)
    out = b.getitem(b.call("aten._native_batch_norm_legit_functional.default", *nodes), 0)
    cotangent = torch.rand_like(x)
    grads = vjp(graph, [out], [graph.add_input(spec_of(cotangent))], nodes[:3])
    graph.outputs = [g for g in grads if g is not None]
    found = interpret(graph, [*(a for a in args if isinstance(a, torch.Tensor)), cotangent])
    plain = torch.nn.functional.batch_norm(x, None, None, args[1], args[2], True, 0.1, 1e-5)
    for got, want in zip(found, torch.autograd.grad(plain, args[:3], cotangent), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", sorted(RULES))
def test_rules_are_of_ops(name: str) -> None:
    assert ops.get(name).name == name
