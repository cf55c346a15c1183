"""The stages that both code generators share: patterns, schedule, kernels, plan."""

from __future__ import annotations

import time
from typing import Any

from jitpy import logs

from ..ir.graph import Graph, LoweredPart
from ..ir.passes.pipeline import run_stage
from ..runtime.plan import ScheduleNotes
from .planner import Planner
from .target import Target


class Stages:
    """A graph's way to a plan; every stage is kept, for those who want to look at it.

    The graph is changed in place, unless it was `rewritten` before; `given` is what passes take. Raises CompilerError,
    and NotCovered for sizes that depend on data in a form that no kernel takes.
    """

    def __init__(self, graph: Graph, target: Target, rewritten: bool = False, **given: Any) -> None:
        started = time.perf_counter()
        self.graph = graph
        changes = [] if rewritten else run_stage(graph, "kernels", target.backend, **given)
        if changes:
            logs.log("graph", "\n".join(changes))
        self.planner = planner = Planner(graph, target)
        self.text = planner.text()
        taken = time.perf_counter() - started
        logs.log("timing", lambda: f"{graph.name}: scheduled and printed in {taken:.3f} s")
        logs.log("fusion", planner.report)
        if self.text:
            logs.log("output_code", self.text)
        self.plan = planner.plan()
        eager = {node.name: planner.low.reasons.get(node, "an eager operation") for node in planner.low.calls}
        self.plan.notes = ScheduleNotes(planner.kernels, eager, list(planner.refusals))
        named = {*eager, *(name for kernel in planner.kernels for name in kernel.nodes)}
        ops = {node.name: (str(node.op), node.loc) for node in graph.nodes if node.name in named}
        graph.lowered.append(LoweredPart(graph.name, self.plan.notes, ops=ops))
