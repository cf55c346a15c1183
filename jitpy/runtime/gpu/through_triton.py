"""Kernels run by Triton itself: in its interpreter (`TRITON_INTERPRET=1`, or `config.triton_on_cpu`), or on a GPU by
its own launcher.

This is what a plan means where the native runtime is missing, and how kernels are tested without a GPU.
"""

from __future__ import annotations

import functools
import importlib
import linecache
import os
from collections.abc import Sequence
from typing import Any

import torch

from jitpy import config

from . import interpreter
from .kernel import GpuKernel

#: what pointers of the signature point to
POINTEES = {
    "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "i1": torch.bool,
    "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
}
def interpreted() -> bool:
    """Does Triton run kernels in its interpreter, on the CPU?"""
    return config.triton_on_cpu or os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def launch(kernel: GpuKernel, grid: Sequence[int], arguments: Sequence[Any]) -> None:
    """Run a kernel: `arguments` are tensors and numbers for `kernel.parameters`.

    Raises what Triton raises where the kernel does not compile, RuntimeError for CPU tensors outside the interpreter.
    """
    if 0 in grid:
        return
    on_cpu = any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in arguments)
    if on_cpu and not interpreted():
        raise RuntimeError(f"kernel {kernel.name} runs on CPU tensors in Triton's interpreter only "
                           "(TRITON_INTERPRET=1)")
    if on_cpu:
        arguments = [value if isinstance(value, torch.Tensor) else interpreter.number(value, kind)
                     for value, (_, kind) in zip(arguments, kernel.parameters, strict=True)]
    named = dict(zip((name for name, _ in kernel.parameters), arguments, strict=True))
    extra: dict[str, Any] = {}
    if not on_cpu:
        extra = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages,
                 "enable_fp_fusion": kernel.fp_fusion, "maxnreg": kernel.max_registers, "debug": kernel.checks,
                 "sanitize_overflow": False}
    if kernel.cluster > 1 and not on_cpu:
        raise RuntimeError(f"kernel {kernel.name}: Triton's launcher makes no clusters of programs")
    function = load(kernel.source, kernel.name, on_cpu)
    if kernel.cluster > 1:
        interpreter.run_in_turns(function, tuple(grid), named, kernel.source.count("    hand_over()\n"))
    else:
        function[tuple(grid)](**named, **dict(kernel.constexprs), **extra)


@functools.lru_cache(maxsize=1024)
def load(source: str, name: str, interpreted: bool) -> Any:
    """The function `name` of a module with this text; `interpreted` is part of what it depends on.

    Triton reads a kernel's source back from its function, so the text is made known to `linecache`."""
    triton = importlib.import_module("triton")  # raises ImportError here rather than inside the text
    file = f"<jitpy kernel {name} {abs(hash(source)):x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": f"jitpy_kernel_{name}", "__file__": file}
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = interpreted
        exec(compile(source, file, "exec"), namespace)
    if interpreted:
        interpreter.install()
        if "libdevice" in namespace:
            namespace["libdevice"] = interpreter.MathLibrary()
    if "MACHINE" in namespace:
        machine = "interpreter" if interpreted else "cuda" if torch.version.hip is None else "hip"
        namespace["MACHINE"] = triton.language.constexpr(machine)
    return namespace[name]
