"""Graph to callable by generated Triton kernels: lower, fuse, print, plan.

Graphs that this backend does not take go to the eager backend; so does every graph on a GPU without Triton or a driver.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jitpy import config, logs

from ...ir.graph import Graph
from ...ir.op import NotCovered
from ...ir.passes.pipeline import run_stage
from ...runtime.plan import LaunchStep, Plan
from ..debug_folder import keep_stages
from ..stages import Stages
from .target import TritonTarget

if TYPE_CHECKING:
    from ...runtime.gpu.graphs import Chain

_warned: set[str] = set()


def compile_graph(graph: Graph, options: dict[str, Any] | None = None) -> Callable[..., tuple[Any, ...]]:
    """Make `graph`, all of whose tensors are on one device, callable: `compiled(*inputs) -> tuple`."""
    from ...runtime.gpu.graphs import Chain
    from ..codegen import device_of, left_to_eager, with_gradients

    device = device_of(graph)
    assert device is not None
    reason = unsupported(device)
    if reason:
        _warn(f"graphs on {device} run with eager kernels: {reason}")
        return left_to_eager(graph, reason)
    run_stage(graph, "device", "triton", blocks=_blocks(device))
    chosen, chain = options or {}, Chain()
    return with_gradients(graph, lambda half: _begin(half, chosen, chain)(), lambda half: _begin(half, chosen, chain))


def _begin(graph: Graph, options: dict[str, Any], chain: Chain) -> Callable[[], Callable[..., tuple[Any, ...]]]:
    """Plan a graph without gradients, whose kernels begin to compile; what is returned waits for them."""
    from ...runtime.executable import make_executable
    from ...runtime.gpu.compile import KernelCompileError
    from ...runtime.gpu.load import submit_kernels
    from ...runtime.gpu.modes import gpu_executable
    from ..codegen import left_to_eager

    mode = options.get("mode", "default")

    def planned(products: str | None = None, rewritten: bool = False) -> Plan:
        return plan_graph(graph, tune=mode == "max-autotune", products=products, rewritten=rewritten)

    def by_the_library(error: KernelCompileError) -> Callable[..., tuple[Any, ...]]:
        logs.log("output_code", f"{graph.name}: its products are the library's: {error.reason}")
        try:
            return gpu_executable(planned("none", rewritten=True), mode, chain)
        except KernelCompileError as other:
            return by_eager_kernels(other)

    def by_eager_kernels(error: Exception) -> Callable[..., tuple[Any, ...]]:
        if isinstance(error, KernelCompileError):
            _warn(f"a graph runs with eager kernels: {error.reason}")
            logs.log("output_code", f"{graph.name}: {error}")
        return left_to_eager(graph, error)  # or sizes that depend on data, in a form that no kernel takes

    try:
        plan = planned()
        interpreted = plan.device.type == "cpu"
        pending: Any = None if interpreted else submit_kernels(plan)
    except (KernelCompileError, NotCovered) as error:
        reason = error
        return lambda: by_eager_kernels(reason)

    def finish() -> Callable[..., tuple[Any, ...]]:
        nonlocal pending
        try:
            return make_executable(plan) if interpreted else gpu_executable(plan, mode, chain)
        except KernelCompileError as error:
            return by_the_library(error) if has_products(plan) else by_eager_kernels(error)
        finally:
            pending = None  # until now it has kept what was compiled

    return finish


def _blocks(device: torch.device) -> int:
    """How many blocks of threads a GPU holds; 0 where kernels cannot draw random numbers."""
    from ...runtime.gpu.philox import blocks_of

    return blocks_of(device) if device.type == "cuda" else 0


def unsupported(device: torch.device) -> str:
    """Why kernels cannot run on a device; '' where they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cpu":
        return ""
    if not torch.cuda.is_available():
        return "there is no usable CUDA driver"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return f"{torch.cuda.get_device_name(device)} is older than Triton's kernels need"
    return ""


def _warn(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(f"jitpy: {text}", RuntimeWarning, stacklevel=3)


def has_products(plan: Plan) -> bool:
    """Whether some kernel computes a matrix product."""
    return plan.notes is not None and any(kernel.style == "product" for kernel in plan.notes.kernels)


def plan_graph(graph: Graph, tune: bool = False, products: str | None = None, rewritten: bool = False) -> Plan:
    """The graph as a plan of launches; with `tune`, launches have candidates. `products`: see `TritonTarget`.
    `rewritten`: the graph has been planned before, or is part of one that has."""
    from ..codegen import device_of

    target = TritonTarget(device_of(graph) or torch.device("cpu"), tune, products)
    stages = Stages(graph, target, rewritten, blocks=_blocks(target.device))
    if config.debug:
        keep_stages(stages, "kernels.py", _assembly(stages.plan))
    return stages.plan


def _assembly(plan: Plan) -> dict[str, str]:
    """The assembly of the plan's kernels by file name; nothing where the graph's device is no NVIDIA GPU."""
    if plan.device.type != "cuda" or torch.version.hip is not None:
        return {}
    from ...runtime.gpu.compile import Target, compile_kernels

    major, minor = torch.cuda.get_device_capability(plan.device)
    kernels = list({step.kernel: None for step in plan.steps if isinstance(step, LaunchStep)})
    return {f"{number}_{binary.kernel.name}.ptx": binary.assembly
            for number, binary in enumerate(compile_kernels(kernels, Target("cuda", 10 * major + minor)))}



__all__ = ["compile_graph", "plan_graph"]
