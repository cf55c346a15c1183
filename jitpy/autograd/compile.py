"""From a graph whose results need gradients to a callable with a node in torch's autograd graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import logs
from ..ir.graph import GETITEM, Graph, Node
from ..ir.op import NotCovered
from ..ir.passes.cleanup import remove_dead_code
from ..ir.spec import TensorSpec
from .joint import Joint, differentiate, split
from .partition import choose_saved

#: A backend's compilation of a graph without gradients.
Compile = Callable[[Graph], Callable[..., tuple[Any, ...]]]


def compile_differentiable(graph: Graph, compile: Compile) -> Callable[..., tuple[Any, ...]]:
    """Make a graph callable whose results need gradients: `compiled(*inputs) -> tuple`.

    The forward half is compiled now, a backward half when it first runs. Raises NotCovered where the graph has to run
    under torch's own autograd.
    """
    from ..runtime.autograd_node import NodeSpec, make_differentiable

    started = time.perf_counter()
    joint = differentiate(graph)
    halves = split(joint, choose_saved(joint))
    logs.log("timing", lambda: f"{graph.name}: differentiated in {time.perf_counter() - started:.3f} s")
    logs.log("graph", lambda: f"forward half:\n{halves.forward}\nbackward half:\n{halves.backward}")
    backward = _Backward(halves.backward, len(halves.saved), compile)
    forward = compile(halves.forward)
    return make_differentiable(forward, NodeSpec(
        n_inputs=joint.n_inputs,
        n_outputs=joint.n_outputs,
        saved=halves.saved,
        grad_outputs=joint.grad_outputs,
        grad_inputs=joint.grad_inputs,
        backward=backward.variant,
        double=backward.differentiable,
        hidden=_hidden(joint, halves.saved),
    ))


class _Backward:
    """A backward half, in the variants that calls ask for."""

    def __init__(self, graph: Graph, n_saved: int, compile: Compile) -> None:
        self.graph = graph
        self.n_saved = n_saved
        self.compile = compile

    def variant(self, defined: int, wanted: int) -> Callable[..., Sequence[torch.Tensor | None]]:
        """See NodeSpec.backward."""
        graph, present = select(self.graph, self.n_saved, defined, wanted)
        run = self.compile(graph) if graph.outputs else _nothing
        layouts = [_layout(node) for node in graph.inputs[self.n_saved:]]
        return _Variant(run, self.n_saved, layouts, present)

    def differentiable(self, defined: int, wanted: int) -> Callable[..., Sequence[torch.Tensor | None]]:
        """See NodeSpec.double."""
        from ..ir.interpret import interpret

        graph, present = select(self.graph, self.n_saved, defined, wanted)
        for node in graph.nodes:
            node.grad_enabled = True
        return _Variant(lambda *values: interpret(graph, values), self.n_saved, [], present)


def _nothing(*values: Any) -> tuple[Any, ...]:
    return ()


def _layout(node: Node) -> tuple[int, ...] | None:
    """The strides that a gradient must have; None: row-major."""
    spec = node.tensor
    if spec.is_contiguous():
        return None
    if not spec.is_static:
        raise NotCovered("strides of a gradient")
    return spec.stride  # type: ignore[return-value]


class _Variant:
    """A compiled backward half as the node calls it: gradients come in any layout, and some results do not exist."""

    __slots__ = ("run", "n_saved", "layouts", "present", "complete")

    def __init__(self, run: Callable[..., tuple[Any, ...]], n_saved: int, layouts: list[tuple[int, ...] | None],
                 present: list[bool]) -> None:
        self.run = run
        self.n_saved = n_saved
        self.layouts = layouts
        self.present = present
        self.complete = all(present)

    def __call__(self, *values: Any) -> Sequence[torch.Tensor | None]:
        for position, layout in enumerate(self.layouts, self.n_saved):
            grad = values[position]
            if not grad.is_contiguous() if layout is None else grad.stride() != layout:
                values = (*values[:position], _laid_out(grad, layout), *values[position + 1:])
        results = self.run(*values)
        if self.complete:
            return results
        rest = iter(results)
        return [next(rest) if there else None for there in self.present]


def _laid_out(grad: torch.Tensor, layout: tuple[int, ...] | None) -> torch.Tensor:
    if layout is None:
        return grad.contiguous()
    return torch.empty_strided(grad.shape, layout, dtype=grad.dtype, device=grad.device).copy_(grad)


def _hidden(joint: Joint, saved: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Intermediates with a history, for second derivatives."""
    return ()


def select(graph: Graph, n_saved: int, defined: int, wanted: int) -> tuple[Graph, list[bool]]:
    """The backward half for the gradients that are defined, and those that are wanted.

    An undefined gradient stays undefined as far as it reaches alone; where it meets others it counts as zero. Also
    returns, for each wanted one, whether it is there at all.
    """
    from ..ir.specialize import specialize

    copy = specialize(graph, {})
    outputs = [node for k, node in enumerate(copy.outputs) if wanted >> k & 1]
    cotangents = copy.inputs[n_saved:]
    absent = {node for j, node in enumerate(cotangents) if not defined >> j & 1}
    if absent:
        _remove_absent(copy, set(cotangents), absent)
    copy.inputs = [node for node in copy.inputs if node not in absent or node not in cotangents]
    copy.outputs = [node for node in outputs if node not in absent]
    remove_dead_code(copy)
    return copy, [node not in absent for node in outputs]


def _remove_absent(graph: Graph, flowing: set[Node], absent: set[Node]) -> None:
    """Take undefined gradients out of a graph; `absent` becomes the set of all nodes that are undefined."""
    from ..ir.builder import Builder

    result: list[Node] = []
    replaced: dict[Node, Node] = {}
    for node in graph.nodes:
        node.replace_inputs(lambda n: replaced.get(n, n))
        sources = [n for n in node.input_nodes() if n in flowing]
        if not sources:
            result.append(node)
            continue
        flowing.add(node)
        missing = [n for n in sources if n in absent]
        if len(missing) == len(sources):
            absent.add(node)
            continue
        if missing and node.op.name == "aten.add.Tensor" and len(node.args) == 2 and not node.kwargs:
            rest = node.args[1] if node.args[0] in absent else node.args[0]
            if rest.spec == node.spec:
                replaced[node] = rest
                continue
        if missing:
            builder = Builder(graph, into=result, loc=node.loc, grad_enabled=False)
            zeros = {n: builder.call("aten.zeros_like.default", n) if False else _zeros(builder, n.spec) for n in missing}
            node.replace_inputs(lambda n, zeros=zeros: zeros.get(n, n))
        result.append(node)
    graph.nodes[:] = result
    for node, rest in list(replaced.items()):
        while rest in replaced:
            rest = replaced[rest]
        replaced[node] = rest
    graph.replace_results(replaced)


def _zeros(builder: Any, spec: Any) -> Node:
    if not isinstance(spec, TensorSpec):
        raise NotCovered("an undefined number")
    return builder.call("aten.full.default", list(spec.shape), 0, dtype=spec.dtype, device=spec.device)


__all__ = ["GETITEM", "compile_differentiable", "select"]
