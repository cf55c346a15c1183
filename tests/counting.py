"""How often something was compiled, and what of it is alive."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import types
from collections.abc import Iterator

import torch

from jitpy import logs
from jitpy.engine import all_engines
from jitpy.frontend.bytecode.code import _views as code_views
from jitpy.ir import Graph
from jitpy.runtime.guards import GuardFunction


def variants() -> int:
    """Compiled variants of everything alive, since the last `jitpy.reset()`."""
    return sum(len(engine.variants) for engine in all_engines())


@contextlib.contextmanager
def fallbacks(log: str = "fallbacks") -> Iterator[list[str]]:
    """Why graphs failed in the block, so that plain Python ran: a program that does not raise pays for both. Sizes that
    depend on data and are not what was assumed do not count. `log="backends"`: what backends refused instead."""
    found: list[str] = []

    def note(text: str) -> None:
        if f"[jitpy {log}]" not in text:
            before(text)
        elif "SizeCheckFailed" not in text:
            found.append(text)

    before = logs.set_sink(note)
    logs.enable(log)
    try:
        yield found
    finally:
        logs.disable(log)
        logs.set_sink(before)


def living() -> dict[str, int]:
    """How many objects of each kind are alive. Code objects: those that something alive refers to."""
    gc.collect()
    objects = gc.get_objects()
    found = {id(r): r for obj in objects for r in gc.get_referents(obj) if type(r) is types.CodeType}
    codes = list(found.values())
    for code in codes:  # grows while it runs
        for const in code.co_consts:
            if type(const) is types.CodeType and id(const) not in found:
                found[id(const)] = const
                codes.append(const)

    def count(kind: type) -> int:
        return sum(issubclass(type(obj), kind) for obj in objects)

    return {"tensors": count(torch.Tensor), "functions": count(types.FunctionType), "code objects": len(codes),
            "engines": len(all_engines()), "variants": variants(), "graphs": count(Graph),
            "guards": count(GuardFunction) + sum(type(obj).__name__ == "Guard" for obj in objects),
            "decoded": len(code_views)}


def resident() -> float:
    """Memory of the process in MB, without what the allocator keeps for later."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
