"""From a graph whose results need gradients to a callable with a node in torch's autograd graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import logs
from ..ir.graph import Graph
from ..ir.op import NotCovered
from ..ir.spec import ScalarSpec, Spec, TensorSpec
from .joint import Halves, Joint, backward_half, differentiate, split
from .partition import choose_saved
from .variants import select

Compiled = Callable[..., tuple[Any, ...]]
#: A backend's compilation of a graph.
Compile = Callable[[Graph], Compiled]
Backward = Callable[..., Sequence[torch.Tensor | None]]


def compile_differentiable(graph: Graph, compile: Compile, compile_eager: Compile) -> Compiled:
    """Make a graph callable whose results need gradients: `compiled(*inputs) -> tuple`.

    compile        for graphs in which nothing requires grad
    compile_eager  for graphs that run op by op under torch's autograd, for derivatives of derivatives

    The forward half is compiled now, a backward half when it first runs. Raises NotCovered where the graph has to run
    under torch's own autograd.
    """
    from ..runtime.autograd_node import NodeSpec, make_differentiable

    started = time.perf_counter()
    joint = differentiate(graph)
    halves = split(joint, choose_saved(joint))
    backward = BackwardHalf(joint, halves, compile, compile_eager)
    logs.log("timing", lambda: f"{graph.name}: differentiated in {time.perf_counter() - started:.3f} s")
    logs.log("graph", lambda: f"forward half:\n{halves.forward}\nbackward half:\n{halves.backward}")
    return make_differentiable(compile(halves.forward), NodeSpec(
        n_inputs=joint.n_inputs,
        n_outputs=joint.n_outputs,
        saved=halves.saved,
        grad_outputs=joint.grad_outputs,
        grad_inputs=joint.grad_inputs,
        backward=backward.plain,
        double=backward.differentiable,
        hidden=backward.hidden,
    ))


class BackwardHalf:
    """A backward half, in the variants that passes ask for."""

    def __init__(self, joint: Joint, halves: Halves, compile: Compile, compile_eager: Compile) -> None:
        self.compile = compile
        self.compile_eager = compile_eager
        self.joint = joint
        self.n_saved = len(halves.saved)
        self.n_outputs = len(joint.grad_outputs)
        self.graph = halves.backward
        self.names = [node.name for node in halves.values]
        extras = [node for (kind, _), node in zip(halves.saved, halves.values, strict=True) if kind == "extra"]
        #: the extras with a history, as positions among the extras and by name
        self.hidden = tuple(k for k, node in enumerate(extras) if node.name in joint.with_history)
        self.hidden_names = [extras[k].name for k in self.hidden]
        #: whether second derivatives can tell where each extra came from
        self.traceable = all(node.name in joint.forward_names for node in extras)
        self._full: Graph | None = None

    def plain(self, defined: int, wanted: int) -> Backward:
        """See NodeSpec.backward."""
        graph, present = select(self._half(defined), self.n_saved, defined, wanted)
        run = self.compile(graph) if graph.outputs else _nothing
        return Variant(run, self.n_saved, [row_strides(node.tensor) for node in graph.inputs[self.n_saved:]], present)

    def differentiable(self, defined: int, wanted: int) -> Backward:
        """See NodeSpec.double."""
        if not self.traceable:
            raise RuntimeError("jitpy: second derivatives of this graph are not available")
        graph, present = select(self._half(defined), self.n_saved, defined, wanted)
        for node in graph.all_nodes():
            node.spec = _requiring_grad(node.spec)
            node.grad_enabled = True
        return Variant(self.compile_eager(graph) if graph.outputs else _nothing, self.n_saved, [], present)

    def _half(self, defined: int) -> Graph:
        """The backward half that takes gradients of intermediates as well, where one is defined."""
        if not defined >> self.n_outputs:
            return self.graph
        if self._full is None:
            full = differentiate(self.joint.source, self.hidden_names)
            named = {node.name: node for node in full.graph.all_nodes()}
            half = backward_half(full, [named[name] for name in self.names])
            places = {k: output for k, output in zip(full.grad_inputs, half.outputs, strict=True)}
            if set(places) != set(self.joint.grad_inputs):
                raise NotCovered("an input that only second derivatives reach")
            self._full = half
        return self._full


def _nothing(*values: Any) -> tuple[Any, ...]:
    return ()


def _requiring_grad(spec: Spec) -> Spec:
    if isinstance(spec, tuple):
        return tuple(map(_requiring_grad, spec))
    if isinstance(spec, TensorSpec) and spec.dtype.is_floating_point:
        return spec.with_(requires_grad=True)
    assert spec is None or isinstance(spec, (TensorSpec, ScalarSpec))
    return spec


def row_strides(spec: TensorSpec) -> tuple[int, ...] | None:
    """The strides that a gradient must have; None: row-major. Raises NotCovered for others that are symbolic."""
    if spec.is_contiguous():
        return None
    if not spec.is_static:
        raise NotCovered("symbolic strides of a gradient")
    return spec.stride  # type: ignore[return-value]


class Variant:
    """A compiled backward half as the node calls it: gradients come in any layout, and some results do not exist."""

    __slots__ = ("complete", "layouts", "n_saved", "present", "run")

    def __init__(self, run: Compiled, n_saved: int, layouts: list[tuple[int, ...] | None], present: list[bool]) -> None:
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
