"""The backend "codegen": generated kernels, C++ or Triton by the device of the graph."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jitpy import config, logs

from ..ir.alias import any_needs_grad, needs_grad, shows_grad_input
from ..ir.graph import GETITEM, Graph, Node
from ..ir.op import NotCovered
from ..ir.spec import TensorSpec
from .target import Generator, device_of

if TYPE_CHECKING:
    from ..autograd.compile import Begin
    from ..autograd.cuts import Part

Compile = Callable[[Graph], Callable[..., tuple[Any, ...]]]


def compile_graph(graph: Graph, options: dict[str, Any] | None = None) -> Callable[..., tuple[Any, ...]]:
    """Make `graph` callable: `compiled(*inputs) -> tuple`. Graphs on several GPUs run with eager kernels."""
    if config.freezing:
        from .frozen import FrozenGraph, can_freeze

        if can_freeze(graph):
            return FrozenGraph(graph, lambda made: _compiled(made, options), options or {})
    return _compiled(graph, options)


def _compiled(graph: Graph, options: dict[str, Any] | None) -> Callable[..., tuple[Any, ...]]:
    device = device_of(graph)
    if device is None or device.type not in ("cpu", "cuda"):
        return left_to_eager(graph, "tensors on several devices" if device is None else f"tensors on {device}")
    generator: Generator
    if device.type == "cuda" or config.triton_on_cpu:
        from .triton.backend import TritonGenerator

        generator = TritonGenerator(device, options or {})
    else:
        from .cpp.backend import CppGenerator

        generator = CppGenerator()
    try:
        generator.prepare(graph)
    except NotCovered as reason:
        return left_to_eager(graph, reason)
    begin = functools.partial(_begin, generator)
    return with_gradients(graph, lambda half: begin(half)(), begin if generator.begins_early else None)


def _begin(generator: Generator, graph: Graph) -> Callable[[], Callable[..., tuple[Any, ...]]]:
    """Begin to compile a graph without gradients; what is returned waits for its kernels."""
    try:
        finish = generator.begin(graph)
    except NotCovered as refusal:
        reason = refusal
        return lambda: left_to_eager(graph, reason)

    def finished() -> Callable[..., tuple[Any, ...]]:
        try:
            return finish()
        except NotCovered as reason:
            return left_to_eager(graph, reason)

    return finished


def left_to_eager(graph: Graph, reason: object) -> Callable[..., tuple[Any, ...]]:
    """The graph as calls of eager kernels, under torch's autograd where it needs gradients; logged and reported."""
    from . import eager

    logs.log("fusion", graph.leave_to_eager(reason))
    return eager.compile_graph(graph, {})


def with_gradients(graph: Graph, compile: Compile, begin: Begin | None = None) -> Callable[..., tuple[Any, ...]]:
    """Compile a graph in halves where its results need gradients; `compile` is for graphs in which nothing does, and
    `begin` the same in two steps.

    A graph whose results are computed from each other is compiled in parts: see `autograd.cuts`.
    """
    if not any_needs_grad(graph.nodes) and not shows_grad_input(graph):
        return _with_odd_views(graph, compile)
    from ..autograd.cuts import cut

    try:
        parts = cut(graph)
    except NotCovered as reason:
        return left_to_eager(graph, reason)
    if not parts:
        return _differentiable(graph, compile, begin)[0]
    logs.log("fusion", lambda: f"{graph.name} runs in {len(parts)} parts: its results are computed from each other")
    return _joined(graph, parts, [_differentiable(part.graph, compile, begin) for part in parts])


def _differentiable(graph: Graph, compile: Compile, begin: Begin | None) -> tuple[Callable[..., tuple[Any, ...]], bool]:
    """A graph no results of which are computed from each other, and whether these have the strides of their specs:
    those of eager's kernels may have others."""
    if not any_needs_grad(graph.nodes) and not shows_grad_input(graph):
        return _with_odd_views(graph, compile), True
    from ..autograd import compile_differentiable
    from . import eager

    try:
        return compile_differentiable(graph, compile, lambda made: eager.compile_graph(made, {}), begin), True
    except NotCovered as reason:
        return left_to_eager(graph, reason), False


def _joined(graph: Graph, parts: list[Part], compiled: list[tuple[Callable[..., Any], bool]],
            ) -> Callable[..., tuple[Any, ...]]:
    """The compiled parts of a graph, and whether their results have the strides of their specs, as one callable."""
    from ..runtime.executable import make_executable
    from ..runtime.plan import CallStep, Plan, SlotRef, freed_early
    from .planner import with_stride
    from .size_table import SizeTable

    table = SizeTable(graph)
    slots = {node: k for k, node in enumerate(graph.inputs)}
    calls: list[CallStep] = []
    former: dict[Node, int] = {}
    numbers = itertools.count(len(slots))
    for node in [graph.inputs[mutation.input] for mutation in graph.mutations]:
        if any(node in part.reads for part in parts[:-1]):
            # earlier parts may keep it, and the last one writes to it
            former[node] = next(numbers)
            calls.append(CallStep(_copy, (SlotRef(slots[node]),), {}, (former[node],), grad=needs_grad(node.spec)))
    conform: dict[Node, int] = {}  # what later parts read in place of a result
    for part, (run, as_specs) in zip(parts, compiled, strict=True):
        places = {**slots, **conform} if part is parts[-1] else {**slots, **conform, **former}
        slots.update(zip(part.results, numbers, strict=False))
        calls.append(CallStep(run, tuple(SlotRef(places[node]) for node in part.reads), {},
                              tuple(slots[node] for node in part.results), multiple=True))
        for node in () if as_specs or part is parts[-1] else part.results:
            spec = node.spec
            if isinstance(spec, TensorSpec) and len(spec.stride) > 1:
                conform[node] = next(numbers)
                stride = tuple(map(table.ref, spec.stride))
                calls.append(CallStep(with_stride, (SlotRef(slots[node]), stride), {}, (conform[node],)))
    outputs = tuple(slots[node] for node in graph.outputs)
    steps = freed_early(calls, len(graph.inputs), outputs)
    table.finish()
    return make_executable(Plan(len(graph.inputs), next(numbers), outputs, steps, symbols=table.symbols,
                                n_sizes=len(table), size_function_py=table.python_function(),
                                size_entries=table.start_entries, n_symbols=table.n_symbols, autograd=True))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _with_odd_views(graph: Graph, compile: Compile) -> Callable[..., tuple[Any, ...]]:
    """A graph without gradients. Results that autograd would tell from plain strided views are made by torch itself."""
    if not any(node.op.is_view or node.op is GETITEM for node in graph.outputs):
        return compile(graph)
    from ..autograd.compile import compile_with_views
    from ..autograd.results import has_odd_views
    from . import eager

    try:
        if has_odd_views(graph):
            return compile_with_views(graph, compile, lambda made: eager.compile_graph(made, {}))
    except NotCovered as reason:
        logs.log("fusion", f"{graph.name}: results are plain views: {reason}")
    return compile(graph)
