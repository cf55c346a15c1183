"""Graph to callable by generated C++: lower, fuse, print, compile, plan. No graph is taken while no compiler works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitpy import config

from ...ir.graph import Graph
from ...ir.op import NotCovered
from ...runtime.compiler import CompilerError
from ...runtime.plan import Plan
from ..debug_folder import keep_stages
from ..stages import Stages
from ..target import warn_once
from .target import CppTarget


class CppGenerator:
    """The C++ backend for graphs on the CPU; see `Generator`."""

    begins_early = False

    def prepare(self, graph: Graph) -> None:
        """Nothing: the CPU has no passes of its own before gradients."""

    def begin(self, graph: Graph) -> Callable[[], Callable[..., tuple[Any, ...]]]:
        """Plan the graph and compile its kernels."""
        try:
            plan = plan_graph(graph)
        except CompilerError as error:
            if error.is_about_text and config.raise_errors:
                raise
            warn_once(f"graphs run with eager kernels: {error}", error.reason)
            raise NotCovered(str(error)) from error
        from ...runtime.executable import make_executable

        return lambda: make_executable(plan)


def plan_graph(graph: Graph) -> Plan:
    """The graph as a plan with compiled kernels. Raises CompilerError."""
    stages = Stages(graph, CppTarget())
    if config.debug:
        keep_stages(stages, "kernels.cpp")
    return stages.plan


__all__ = ["CppGenerator", "plan_graph"]
