"""Graph to callable by generated C++: lower, fuse, print, compile, plan.

Graphs that this backend does not take (results that require grad, other devices) go to the eager backend; so does every
graph while no compiler works.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from jitpy import config

from ...ir.graph import Graph
from ...ir.op import NotCovered
from ...ir.spec import TensorSpec
from ...runtime.compiler import CompilerError
from ...runtime.plan import Plan
from ..debug_folder import keep_stages
from ..stages import Stages
from .target import CppTarget

_warned: set[str] = set()


def compile_graph(graph: Graph, options: dict[str, Any] | None = None) -> Callable[..., tuple[Any, ...]]:
    """Make `graph` callable: `compiled(*inputs) -> tuple`. `options` are not used."""
    from ..codegen import left_to_eager, with_gradients

    return with_gradients(graph, _compile) if on_cpu(graph) else left_to_eager(graph, "a tensor on another device")


def _compile(graph: Graph) -> Callable[..., tuple[Any, ...]]:
    """For graphs on the CPU without gradients."""
    from ..codegen import left_to_eager

    try:
        plan = plan_graph(graph)
    except CompilerError as error:
        if error.is_about_text and config.raise_errors:
            raise
        if error.reason not in _warned:
            _warned.add(error.reason)
            warnings.warn(f"jitpy: graphs run with eager kernels: {error}", RuntimeWarning, stacklevel=2)
        return left_to_eager(graph, error)
    except NotCovered as reason:  # sizes that depend on data, in a form that no kernel takes
        return left_to_eager(graph, reason)
    from ...runtime.executable import make_executable

    return make_executable(plan)


def on_cpu(graph: Graph) -> bool:
    """Whether every tensor of the graph is on the CPU."""
    for node in graph.all_nodes():
        for spec in node.spec if isinstance(node.spec, tuple) else (node.spec,):
            if isinstance(spec, TensorSpec) and spec.device.type != "cpu":
                return False
    return True


def plan_graph(graph: Graph) -> Plan:
    """The graph as a plan with compiled kernels. Raises CompilerError."""
    stages = Stages(graph, CppTarget())
    if config.debug:
        keep_stages(stages, "kernels.cpp")
    return stages.plan


__all__ = ["compile_graph", "plan_graph"]
