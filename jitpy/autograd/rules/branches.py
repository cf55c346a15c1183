"""Branches that are chosen when the graph runs (`torch.cond`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...ir.autograd_function import NAME as AUTOGRAD_FUNCTION
from ...ir.builder import Builder
from ...ir.graph import Graph, Node
from ...ir.interpret import interpret, own_memory
from ...ir.op import NotCovered, Op
from ...ir.passes.cleanup import remove_dead_code
from ...ir.spec import TensorSpec, contiguous_spec
from ...ir.specialize import specialize
from ..pullback import Pullback
from .registry import rule


@dataclass(slots=True)
class _Pulled:
    """Runs the gradients of the branch that was taken; what the other one reads gets zeros."""

    true: Graph
    false: Graph
    wanted: tuple[tuple[bool, ...], tuple[bool, ...]]

    def __call__(self, predicate: torch.Tensor, true: Sequence[Any], false: Sequence[Any],
                 grads: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        is_true = bool(predicate)
        taken, captures = (self.true, true) if is_true else (self.false, false)
        found = interpret(taken, (*captures, *grads), grad=False)
        found = own_memory(tuple(grad.contiguous() for grad in found), (*captures, *grads))
        others = (false if is_true else true, self.wanted[is_true])
        zeros = tuple(torch.zeros(t.shape, dtype=t.dtype, device=t.device)
                      for t, wanted in zip(*others, strict=True) if wanted)
        return (*found, *zeros) if is_true else (*zeros, *found)


@rule("ir.cond", once=True)
def _cond(p: Pullback, *values: Any) -> tuple[Any, ...]:
    assert isinstance(p.node.spec, tuple)
    count = len(p.node.spec)
    grads, (predicate, true, false) = values[:count], values[count:]
    branches: Any = p.node.op.target
    if p.create_graph or p.node.op.is_random:
        raise NotCovered("a branch with random numbers, or its second derivatives")
    wanted = tuple(map(p.needs, true)), tuple(map(p.needs, false))
    defined = [grad is not None for grad in grads]
    target = _Pulled(_pulled(branches.true, defined, wanted[0]), _pulled(branches.false, defined, wanted[1]), wanted)
    specs = tuple(contiguous_spec(n.tensor.dtype, n.tensor.shape, n.tensor.device)
                  for n, take in zip((*true, *false), (*wanted[0], *wanted[1]), strict=True) if take)
    op = Op("ir.cond_backward", target, infer=lambda env, *args, **kwargs: specs,
            aliasing=lambda *args, **kwargs: "copy", is_recordable=True)
    back = p.call(op, predicate, true, false, tuple(grad for grad in grads if grad is not None), spec=specs)
    numbers = iter(range(len(specs)))
    parts = [[p.getitem(back, next(numbers)) if take else None for take in mask] for mask in wanted]
    return None, *parts


def _pulled(graph: Graph, defined: Sequence[bool], wanted: Sequence[bool]) -> Graph:
    """A branch that takes gradients of its results behind its captures, and returns those of captures."""
    from ..reverse import vjp

    if any(node.op.name == AUTOGRAD_FUNCTION for node in graph.nodes):
        raise NotCovered("an autograd function in a branch")
    made = specialize(graph, {})
    sources = [node for node, take in zip(made.inputs, wanted, strict=True) if take]
    cotangents: list[Node | None] = [made.add_input(_plain(node.tensor), "grad") if there else None
                                     for node, there in zip(made.outputs, defined, strict=True)]
    found = vjp(made, made.outputs, cotangents, sources)
    b = Builder(made, grad_enabled=False)
    made.outputs = [b.call("aten.zeros_like.default", source) if grad is None else grad
                    for source, grad in zip(sources, found, strict=True)]
    remove_dead_code(made)
    return made


def _plain(spec: TensorSpec) -> TensorSpec:
    return contiguous_spec(spec.dtype, spec.shape, spec.device)
