"""The modes of `jit` for plans of a GPU."""

from __future__ import annotations

from typing import Any

import torch

from jitpy import logs

from ..executable import Executable, PythonExecutable, make_executable
from ..plan import CallStep, LaunchStep, Plan, Step
from . import graphs
from .autotune import AutotunedExecutable


def gpu_executable(plan: Plan, mode: str, chain: graphs.Chain | None = None) -> Any:
    """The plan as a callable, by the mode: "default" launches kernels one by one; "reduce-overhead" replays CUDA graphs
    where it can; "max-autotune" measures kernels first, and then does the same. `chain`: the plans of the same graph.

    Raises KernelCompileError."""
    chain = chain or graphs.Chain()
    tunable = any(isinstance(step, LaunchStep) and step.candidates for step in plan.steps)
    if mode == "max-autotune" and tunable and not any(map(_has_effects, plan.steps)):
        return AutotunedExecutable(plan, lambda tuned, run: graphed(tuned, run, chain))
    run = make_executable(plan)
    return run if mode == "default" else graphed(plan, run, chain)


def _has_effects(step: Step) -> bool:
    """Whether a step may not run once more while kernels are measured."""
    function = step.function if isinstance(step, CallStep) else None
    return isinstance(function, torch._ops.OpOverload) and not function._schema.returns


def graphed(plan: Plan, run: Executable, chain: graphs.Chain) -> Any:
    """The executable with CUDA graphs, or as it is where the plan cannot be recorded."""
    reason = graphs.unfit(plan) or ("the native runtime is missing" if isinstance(run, PythonExecutable) else "")
    if not reason and not chain.records(plan):
        reason = "it launches so little that a replay would take longer"
    if reason:
        logs.log("fusion", f"runs without a CUDA graph: {reason}")
        return run
    return graphs.GraphedExecutable(plan, run, make_executable)
