"""`torch.autograd.Function` in a graph.

The nodes of `forward` are in the graph like everything else, recorded without gradients. One node then says that its
results have a history of their own: it passes them on, and its gradients are the user's, as a graph that was traced
from `backward`. Run op by op the node is a Function of torch's, whose backward pass runs that graph; where the graph
around it is differentiated, that graph becomes part of it, and the node gives way to what it passes on (`lower`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .alias import needs_grad, plain
from .graph import CONSTANT, GETITEM, INPUT, Graph, Node, map_nodes
from .interpret import interpret
from .linear import is_linear
from .op import NotCovered, Op
from .spec import Spec, TensorSpec

NAME = "ir.autograd_function"


@dataclass(eq=False)
class CustomGradient:
    """The node's call: `(results, inputs, kept) -> the results with a history`.

    name           of the user's class
    backward       takes the gradients of the results, then `kept`; returns gradients. It was traced for gradients in
                   row-major order: they are brought into it where `is_ordered`
    places         for each of the inputs which output of `backward` is its gradient, None where it has none
    kept_results   for each of `kept` which of the results it is, None for others
    materialize    whether an undefined gradient counts as zeros
    once           whether a derivative of the gradients is an error
    multiple       whether there are several results, as a tuple
    is_view        whether the result shares memory with something that is seen elsewhere
    """

    name: str
    backward: Graph
    places: tuple[int | None, ...]
    kept_results: tuple[int | None, ...]
    materialize: bool
    once: bool
    multiple: bool
    is_view: bool
    _function: Any = field(default=None)

    @functools.cached_property
    def is_ordered(self) -> bool:
        """Whether `backward` may depend on how its arguments lie in memory: a reshape that was a view while tracing,
        an operator that may have been given a `contiguous()` tensor."""
        return any(node.op is not GETITEM and (not node.op.name.startswith("aten.") or node.op.asks_for_layout)
                   for node in self.backward.nodes)

    def op(self, spec: Spec) -> Op:
        """The op of the one node that runs this. Its results are new tensors (`passes_on`: in the memory of `results`).
        """
        kind = "view" if self.is_view else "copy"
        return Op(NAME, self, infer=lambda env, *args, **kwargs: spec, is_view=self.is_view,
                  aliasing=lambda *args, **kwargs: kind, vjp=self.pull, passes_on=True)

    def __call__(self, results: tuple[Any, ...], inputs: tuple[Any, ...], kept: tuple[Any, ...]) -> Any:
        if self._function is None:
            base = _AppliedOnce if self.once else _Applied
            self._function = type(self.name, (base,), {})
        made = self._function.apply(self, results, kept, *inputs)
        return made if self.multiple else made[0]

    def pull(self, p: Any, *values: Any) -> tuple[Any, ...]:
        """The gradient rule: the nodes of `backward`, put where they are needed.

        Eager calls `backward` once with all that arrives. So does a captured pass; a compiled graph that is
        differentiated twice would call it with parts, whose results add up only where it is linear: else NotCovered.
        """
        n_grads = len(self.backward.inputs) - len(self.kept_results)
        if self.once and p.create_graph:
            raise NotCovered(f"the backward of {self.name} is differentiable only once")
        if p.in_parts and not is_linear(self.backward, n_grads):
            raise NotCovered(f"the backward of {self.name} is not known to be linear in the gradients")
        *grads, _, inputs, kept = values
        specs = p.node.spec if self.multiple else (p.node.spec,)
        given = [p.zeros(spec) if grad is None else grad for grad, spec in zip(grads, specs, strict=True)]
        if len(given) > 1:
            together = p.call(TOGETHER, *given)
            given = [p.getitem(together, index) for index in range(len(given))]
        if self.is_ordered:
            given = [grad if _same_layout(grad.spec, own.spec) else
                     p.call("aten.clone.default", grad, memory_format=torch.contiguous_format)
                     for grad, own in zip(given, self.backward.inputs, strict=False)]
        kept = [value if k is None else p.part(k) if self.multiple else p.node
                for k, value in zip(self.kept_results, kept, strict=True)]
        found = _put(p, self.backward, [*given, *kept])
        return None, [None if k is None or not p.needs(value) else found[k]
                      for k, value in zip(self.places, inputs, strict=True)], None


class _Applied(torch.autograd.Function):
    """`apply(custom, results, kept, *inputs) -> results`."""

    @staticmethod
    def forward(ctx: Any, custom: CustomGradient, results: tuple[Any, ...], kept: tuple[Any, ...],
                *inputs: Any) -> tuple[Any, ...]:
        # other nodes may read the same tensors: those that get a history are new objects
        if custom.is_view:
            made = tuple(r if any(r is value for value in inputs) else r.view_as(r) for r in results)
        else:
            made = tuple(r.data for r in results)
        values = [value if k is None else made[k] for k, value in zip(custom.kept_results, kept, strict=True)]
        ctx.custom = custom
        ctx.numbers = [None if isinstance(value, torch.Tensor) else value for value in values]
        ctx.save_for_backward(*(value for value in values if isinstance(value, torch.Tensor)))
        ctx.set_materialize_grads(custom.materialize)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        custom: CustomGradient = ctx.custom
        saved = iter(ctx.saved_tensors if None in ctx.numbers else ())
        kept = [next(saved) if number is None else number for number in ctx.numbers]
        if custom.is_ordered:
            grads = tuple(None if grad is None else grad.contiguous() for grad in grads)
        found = interpret(custom.backward, (*grads, *kept), torch.is_grad_enabled())
        return None, None, None, *(None if k is None else found[k] for k in custom.places)


class _AppliedOnce(_Applied):
    backward = staticmethod(once_differentiable(_Applied.backward))  # type: ignore[assignment]


#: Gradients of several results. Where some of them are undefined but not all, `backward` gets zeros in their place, and
#: its own results are defined: they depend on all of these together.
TOGETHER = Op("ir.together", lambda *values: values, infer=lambda env, *specs: tuple(specs),
              aliasing=lambda *args, **kwargs: "view")


def _put(p: Any, graph: Graph, values: list[Node]) -> list[Node]:
    """The nodes of a graph made again on other values; returns its outputs. Where gradients get a history, what ran
    under no_grad still has none."""
    mapping: dict[Node, Node] = dict(zip(graph.inputs, values, strict=True))
    as_traced = not p.create_graph and all(_same_layout(own.spec, value.spec) for own, value in mapping.items())
    for node in graph.nodes:
        args = map_nodes(node.args, mapping.__getitem__)
        kwargs = {key: map_nodes(value, mapping.__getitem__) for key, value in node.kwargs.items()}
        spec = node.spec if as_traced or node.op is CONSTANT else None
        p.grad_enabled = p.create_graph and node.grad_enabled
        if node.op is GETITEM:
            mapping[node] = p.getitem(*args)
        else:
            mapping[node] = p.call(node.op, *args, spec=None if spec is None else plain(spec), name=node.name,
                                   **kwargs)
    p.grad_enabled = p.create_graph
    return [mapping[node] for node in graph.outputs]


def _same_layout(a: Spec, b: Spec) -> bool:
    return not isinstance(a, TensorSpec) or isinstance(b, TensorSpec) and (a.shape, a.stride) == (b.shape, b.stride)


def lower(graph: Graph, all_of_them: bool = True, together: bool = True) -> None:
    """Let what functions pass on take their place, in a graph whose gradients are known; of some of them (those that
    have no history) where not `all_of_them`. Results of theirs in the same memory stay apart. `together`: no gradient
    is undefined any more."""
    from . import ops

    chosen = {node for node in graph.nodes if node.op.name == NAME and (all_of_them or not needs_grad(node.spec))
              or together and node.op is TOGETHER}
    if not chosen:
        return
    taken = {*graph.inputs, *graph.outputs, *(mutation.value for mutation in graph.mutations)}
    replaced: dict[Node, Node] = {}
    nodes: list[Node] = []

    def stands_for(node: Node, function: Node, index: int) -> Node:
        if function.op is TOGETHER:
            return function.args[index]
        value = function.args[0][index]
        if not function.op.is_view and value not in taken and value.op not in (INPUT, CONSTANT):
            taken.add(value)
            return value
        op = ops.get("aten.alias.default" if function.op.is_view else "aten.clone.default")
        copy = Node(op, (value,), {}, node.spec, graph.unique_name("result"), node.loc, node.grad_enabled)
        nodes.append(copy)
        return copy

    for node in graph.nodes:
        node.replace_inputs(lambda n: replaced.get(n, n))
        if node in chosen:
            if not isinstance(node.spec, tuple):
                replaced[node] = stands_for(node, node, 0)
        elif node.op is GETITEM and node.args[0] in chosen:
            replaced[node] = stands_for(node, node.args[0], node.args[1])
        else:
            nodes.append(node)
    graph.nodes[:] = nodes
    graph.replace_results(replaced)


__all__ = ["NAME", "TOGETHER", "CustomGradient", "lower"]
