"""Gradients of gradients, against torch's autograd, on torch's OpInfo samples in float64, call by call of ATen.

A part of the samples by default; all of them with JITPY_TEST_ALL=1.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from jitpy.autograd.reverse import vjp
from jitpy.ir import Graph, Node, NotCovered, TensorSpec, ops
from jitpy.ir.builder import Builder
from jitpy.ir.interpret import interpret
from jitpy.ir.sizes import SizeCheckFailed
from tests.autograd.test_rules import leaves_of
from tests.ir.op_samples import spec_of
from tests.ir.test_ops_samples import Survey

ALL = bool(os.environ.get("JITPY_TEST_ALL"))


class Twice(Survey):
    """Compares the second derivatives of each call."""

    def __init__(self, per_overload: int) -> None:
        super().__init__(check, per_overload)
        #: ops whose second derivatives were compared, and those for which there is no graph, with the reason
        self.compared: set[str] = set()
        self.refused: dict[str, str] = {}


def like(tensors: list[torch.Tensor], seed: int, requires_grad: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(t.shape, dtype=t.dtype, generator=generator).requires_grad_(requires_grad) for t in tensors]


def with_grad(tensors: Any) -> list[torch.Tensor]:
    return [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]


def eager(func: Any, args: Any, kwargs: Any, wrt: list[torch.Tensor]) -> Any:
    """Gradients, their gradients, and what both were asked with."""
    with torch.enable_grad():
        results = with_grad(tree_leaves(func(*args, **kwargs)))
        first = like(results, 1, requires_grad=True)
        grads = torch.autograd.grad(results, wrt, first, create_graph=True, allow_unused=True)
        outputs = with_grad(grads)
        second = like(outputs, 2)
        return grads, first, second, torch.autograd.grad(outputs, [*wrt, *first], second, allow_unused=True)


def check(survey: Twice, func: Any, specs: Any, kwspecs: Any, result: Any, inputs: Any) -> None:
    op = ops.get(func)
    results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    args, kwargs = leaves_of(*inputs)
    real = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if any(t.layout is not torch.strided or t.is_complex() for t in (*results, *real)) or op.is_random:
        return
    if not any(t.requires_grad for t in results):
        return
    wrt = [t for t in real if t.requires_grad]
    error = None
    try:
        want, first, second, want_second = eager(func, args, kwargs, wrt)
    except RuntimeError as raised:
        error = raised
        first = like([t for t in results if t.requires_grad], 1)
    graph = Graph()
    nodes = {id(t): graph.add_input(spec_of(t)) for t in real}
    b = Builder(graph)
    given_args, given_kwargs = tree_map(lambda v: nodes[id(v)] if isinstance(v, torch.Tensor) else v, (args, kwargs))
    try:
        call = b.call(op, *given_args, **given_kwargs)
        parts = [b.getitem(call, k) for k in range(len(call.spec))] if isinstance(call.spec, tuple) else [call]
        outputs = [n for n in parts if isinstance(n.spec, TensorSpec) and n.spec.requires_grad]
        cotangents = [graph.add_input(spec_of(t.detach().requires_grad_())) for t in first]
        inputs_wrt: list[Node] = [nodes[id(t)] for t in wrt]
        grads = vjp(graph, outputs, cotangents, inputs_wrt, create_graph=True)
        differentiable = [g for g in grads if g is not None and g.tensor.requires_grad]
        if error is None:
            got = [None if g is None else g.tensor.requires_grad for g in grads]
            expected = [None if g is None else g.requires_grad for g in want]
            assert got == expected, f"gradients with a history: {got} where eager has {expected}"
        again = vjp(graph, differentiable, [graph.add_input(g.tensor.with_(requires_grad=False))
                                            for g in differentiable], [*inputs_wrt, *cotangents])
    except NotCovered as reason:
        survey.refused[op.name] = str(reason)
        return
    if error is not None:
        assert not any(g is not None for g in again), f"gradients where eager raises: {error}"
        return
    graph.outputs = [*(g for g in grads if g is not None), *(g for g in again if g is not None)]
    try:
        found = iter(interpret(graph, [*real, *first, *second]))
    except SizeCheckFailed:
        return  # a size that data decide is not the usual one: compiled code leaves such a call to eager
    for node, grad in zip(grads, want, strict=True):
        if node is not None:
            torch.testing.assert_close(next(found), grad, rtol=1e-9, atol=1e-9, equal_nan=True)
    for node, grad in zip(again, want_second, strict=True):
        value = None if node is None else next(found)
        if value is None or grad is None:
            # an undefined gradient is zero, which eager may compute with rounding
            assert all(g is None or bool((g.abs() < 1e-12).all()) for g in (value, grad)), f"{value}, eager has {grad}"
        else:
            torch.testing.assert_close(value, grad, rtol=1e-8, atol=1e-8, equal_nan=True)
    survey.compared.add(op.name)


def test_second_derivatives_equal_torchs() -> None:
    survey = Twice(200 if ALL else 6)
    survey.run(torch.float64, 1000 if ALL else 4)
    assert len(survey.compared) >= 200
    assert len(survey.refused) <= 60
