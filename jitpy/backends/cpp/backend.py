"""Graph to callable by generated C++: lower, fuse, print, compile, plan.

Graphs that this backend does not take (results that require grad, other devices) go to the eager backend; so does every
graph while no compiler works.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from jitpy import logs

from ...ir.alias import any_needs_grad, shows_grad_input
from ...ir.graph import Graph
from ...ir.op import NotCovered
from ...ir.passes.attention import ATTENTION
from ...ir.passes.cleanup import remove_dead_code
from ...ir.passes.matmuls import LINEAR
from ...ir.passes.pattern import apply
from ...ir.spec import TensorSpec
from ...runtime.compiler import CompilerError
from ...runtime.plan import Plan, ScheduleNotes
from ..planner import Planner
from .target import CppTarget

_warned: set[str] = set()


def compile_graph(graph: Graph, options: dict[str, Any] | None = None) -> Callable[..., tuple[Any, ...]]:
    """Make `graph` callable: `compiled(*inputs) -> tuple`. `options` are not used. Never raises CompilerError."""
    from .. import eager
    from ..codegen import with_gradients

    return with_gradients(graph, _compile) if on_cpu(graph) else eager.compile_graph(graph, options or {})


def _compile(graph: Graph) -> Callable[..., tuple[Any, ...]]:
    """For graphs on the CPU without gradients."""
    from .. import eager

    try:
        plan = plan_graph(graph)
    except CompilerError as error:
        if error.reason not in _warned:
            _warned.add(error.reason)
            warnings.warn(f"jitpy: graphs run with eager kernels: {error}", RuntimeWarning, stacklevel=2)
        return eager.compile_graph(graph, {})
    except NotCovered as reason:  # sizes that depend on data, in a form that no kernel takes
        logs.log("fusion", f"{graph.name} runs with eager kernels: {reason}")
        return eager.compile_graph(graph, {})
    from ...runtime.executable import make_executable

    return make_executable(plan)


def accepts(graph: Graph) -> bool:
    """Whether the graph can be compiled as it is: everything on the CPU, nothing that autograd must see."""
    return on_cpu(graph) and not any_needs_grad(graph.nodes) and not shows_grad_input(graph)


def on_cpu(graph: Graph) -> bool:
    """Whether every tensor of the graph is on the CPU."""
    for node in graph.all_nodes():
        for spec in node.spec if isinstance(node.spec, tuple) else (node.spec,):
            if isinstance(spec, TensorSpec) and spec.device.type != "cpu":
                return False
    return True


def plan_graph(graph: Graph) -> Plan:
    """The graph as a plan with compiled kernels. Raises CompilerError."""
    started = time.perf_counter()
    fused = apply(graph, ATTENTION)
    fused += apply(graph, LINEAR)
    if fused:
        logs.log("graph", "\n".join(fused))
        remove_dead_code(graph)
    planner = Planner(graph, CppTarget())
    text = planner.text()
    printed = time.perf_counter()
    logs.log("timing", lambda: f"{graph.name}: scheduled and printed in {printed - started:.3f} s")
    logs.log("fusion", planner.report)
    if text:
        logs.log("output_code", text)
    plan = planner.plan()
    eager = {node.name: planner.low.reasons.get(node, "an eager operation") for node in planner.low.calls}
    plan.notes = ScheduleNotes(planner.kernels, eager, list(planner.refusals))
    return plan


__all__ = ["accepts", "compile_graph", "plan_graph", "torch"]
