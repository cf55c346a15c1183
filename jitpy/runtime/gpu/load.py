"""From the kernels of a plan to functions that native code launches."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch

from jitpy.runtime.native_build import load_native

from .compile import Binary, KernelCompileError, Target, submit
from .kernel import GpuKernel

if TYPE_CHECKING:
    from ..plan import LaunchStep, Plan

_lock = threading.Lock()
_functions: weakref.WeakKeyDictionary[Binary, Any] = weakref.WeakKeyDictionary()


def target_of(device: torch.device) -> Target:
    """The device to compile for. Raises RuntimeError where torch has no such GPU."""
    if torch.version.hip is not None:
        properties = torch.cuda.get_device_properties(device)
        return Target("hip", properties.gcnArchName.split(":")[0], properties.warp_size)
    major, minor = torch.cuda.get_device_capability(device)
    return Target("cuda", major * 10 + minor)


def has_float8(device: torch.device) -> bool:
    """Whether the device has instructions that convert floats of 8 bits, or kernels are interpreted."""
    return device.type != "cuda" or \
        torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 9)


def has_clusters(device: torch.device) -> bool:
    """Whether programs of a kernel can wait for each other, some at a time: on NVIDIA's GPUs since Hopper."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


def _most_shared(device: torch.device) -> int:
    """Bytes of shared memory that a program may have."""
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 1 << 31)


def submit_kernels(plan: Plan) -> tuple[list[LaunchStep], list[Future[Binary]]]:
    """Start to compile what the plan launches and has not loaded: the steps, and what becomes of their kernels."""
    from ..plan import LaunchStep

    steps = [step for step in plan.steps if isinstance(step, LaunchStep) and step.functions is None]
    if not steps:
        return [], []
    target = target_of(plan.device)
    return steps, [_submitted(step.kernel, target) for step in steps]


def load_kernels(plan: Plan) -> None:
    """Compile what the plan launches, all kernels side by side, and load it on the plan's device.

    It is loaded now because a call may come while a CUDA graph is captured, when loading is not allowed. Raises
    KernelCompileError.
    """
    steps, pending = submit_kernels(plan)
    if not steps:
        return
    target = target_of(plan.device)
    most = _most_shared(plan.device)
    for step, one in zip(steps, pending, strict=True):
        binary = one.result()
        if binary.shared > most:
            raise KernelCompileError(f"{step.name} needs {binary.shared} bytes of shared memory, the GPU has {most}")
        function = function_of(binary)
        with torch.cuda.device(plan.device):
            function.load(plan.device.index)
        step.functions = function, _later(step.general or step.kernel.without_facts(), target)


def function_of(binary: Binary) -> Any:
    """The native GpuFunction of a binary: one for all plans that launch it, so that a device loads it once."""
    with _lock:
        found = _functions.get(binary)
        if found is None:
            found = load_native("runtime").GpuFunction(
                binary.code, binary.entry, binary.threads, binary.shared, binary.extra_parameters,
                binary.cluster, binary.overlaps)
            _functions[binary] = found
        return found


def _later(kernel: Any, target: Target) -> Callable[[], Any]:
    return functools.cache(lambda: function_of(_submitted(kernel, target).result()))


def _submitted(kernel: Any, target: Target) -> Future[Binary]:
    """A kernel of the program's compiles in another way than those of backends."""
    return submit(kernel, target) if isinstance(kernel, GpuKernel) else kernel.submit(target)
