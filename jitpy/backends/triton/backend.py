"""Graph to callable by generated Triton kernels: lower, fuse, print, plan. No graph on a GPU is taken without Triton or
a driver."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import torch

from jitpy import config, logs

from ...ir.graph import Graph
from ...ir.op import NotCovered
from ...ir.passes.pipeline import run_stage
from ...runtime.plan import LaunchStep, Plan
from ...schedule.equal_sizes import write_equal_sizes_alike
from ..debug_folder import keep_stages
from ..stages import Stages
from ..target import device_of, warn_once
from .rows import ByRows
from .target import TritonTarget


class TritonGenerator:
    """The Triton backend for one device; see `Generator`. `options` are those of `jit`."""

    begins_early = True

    def __init__(self, device: torch.device, options: dict[str, Any]) -> None:
        from ...runtime.gpu.graphs import Chain

        self.device = device
        self.mode = options.get("mode", "default")
        self.chain = Chain()

    def prepare(self, graph: Graph) -> None:
        """The passes of GPUs that come before gradients."""
        reason = unsupported(self.device)
        if reason:
            warn_once(f"graphs on {self.device} run with eager kernels: {reason}")
            raise NotCovered(reason)
        write_equal_sizes_alike(graph)
        run_stage(graph, "device", "triton", blocks=_blocks(self.device))

    def begin(self, graph: Graph) -> Callable[[], Callable[..., tuple[Any, ...]]]:
        """Plan the graph; its kernels begin to compile."""
        return self._begin(graph)

    def _begin(self, graph: Graph, again: bool = False) -> Callable[[], Callable[..., tuple[Any, ...]]]:
        """`again`: for other numbers of rows."""
        from ...runtime.executable import make_executable
        from ...runtime.gpu.compile import KernelCompileError
        from ...runtime.gpu.load import submit_kernels
        from ...runtime.gpu.modes import gpu_executable

        tune = self.mode == "max-autotune"
        with _refusals(graph):
            stages = _stages(graph, tune, rewritten=again)
            plan, choice = stages.plan, stages.planner.low.products
            interpreted = plan.device.type == "cpu"
            pending: Any = None if interpreted else submit_kernels(plan)

        def finish() -> Callable[..., tuple[Any, ...]]:
            nonlocal pending
            with _refusals(graph):
                try:
                    return make_executable(plan) if interpreted else gpu_executable(plan, self.mode, self.chain)
                except KernelCompileError as error:
                    if not has_products(plan):
                        raise
                    logs.log("output_code", f"{graph.name}: its products are the library's: {error.reason}")
                    return gpu_executable(plan_graph(graph, tune, "none", rewritten=True), self.mode, self.chain)
                finally:
                    pending = None  # until now it has kept what was compiled

        if choice is None or not choice.changing or again:
            return finish
        return lambda: ByRows(graph, tuple(choice.changing), lambda: self._begin(graph, again=True)(), finish())


@contextlib.contextmanager
def _refusals(graph: Graph) -> Iterator[None]:
    """Where kernels that do not compile leave the graph to eager kernels."""
    from ...runtime.gpu.compile import KernelCompileError

    try:
        yield
    except KernelCompileError as error:
        warn_once(f"a graph runs with eager kernels: {error.reason}")
        logs.log("output_code", f"{graph.name}: {error}")
        raise NotCovered(str(error)) from error


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


def has_products(plan: Plan) -> bool:
    """Whether some kernel computes a matrix product."""
    return plan.notes is not None and any(kernel.style == "product" for kernel in plan.notes.kernels)


def plan_graph(graph: Graph, tune: bool = False, products: str | None = None, rewritten: bool = False) -> Plan:
    """The graph as a plan of launches; with `tune`, launches have candidates. `products`: see `TritonTarget`.
    `rewritten`: the graph has been planned before, or is part of one that has."""
    return _stages(graph, tune, products, rewritten).plan


def _stages(graph: Graph, tune: bool = False, products: str | None = None, rewritten: bool = False) -> Stages:
    target = TritonTarget(device_of(graph) or torch.device("cpu"), tune, products)
    stages = Stages(graph, target, rewritten, blocks=_blocks(target.device))
    if config.debug:
        keep_stages(stages, "kernels.py", _assembly(stages.plan))
    return stages


def _assembly(plan: Plan) -> dict[str, str]:
    """The assembly of the plan's kernels by file name; nothing where the graph's device is no NVIDIA GPU."""
    if plan.device.type != "cuda" or torch.version.hip is not None:
        return {}
    from ...runtime.gpu.compile import Target, compile_kernels

    major, minor = torch.cuda.get_device_capability(plan.device)
    kernels = list({step.kernel: None for step in plan.steps if isinstance(step, LaunchStep)})
    return {f"{number}_{binary.kernel.name}.ptx": binary.assembly
            for number, binary in enumerate(compile_kernels(kernels, Target("cuda", 10 * major + minor)))}


__all__ = ["TritonGenerator", "plan_graph"]
