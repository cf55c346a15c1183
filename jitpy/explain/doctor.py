"""`python -m jitpy doctor`: what is on this machine, and what jitpy can use of it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `ok` is None for plain information, False for something that costs the user speed."""

    name: str
    text: str
    ok: bool | None = None
    hint: str = ""


def _python() -> Iterator[Finding]:
    version = sys.version_info
    known = (3, 11) <= version[:2] <= (3, 14)
    yield Finding("Python", f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})", known,
                  "" if known else "frames are captured on CPython 3.11 to 3.14; elsewhere jitted functions run eager")


def _torch() -> Iterator[Finding]:
    import torch

    recent = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11)
    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads", recent,
                  "" if recent else "jitpy needs torch 2.11 or newer")


def _compiler() -> Iterator[Finding]:
    from .. import config

    names = [config.cxx] if config.cxx else [name for name in (os.environ.get("CXX"), "g++", "clang++", "c++") if name]
    for name in names:
        path = shutil.which(name.split()[0])
        if path is None:
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
        first = done.stdout.splitlines()[0] if done.stdout else f"exit status {done.returncode}"
        yield Finding("C++ compiler", f"{path}: {first}", done.returncode == 0)
        return
    yield Finding("C++ compiler", f"none of {', '.join(names)} found", False,
                  "install g++ (or set CXX): without one every kernel is torch's own")


def _simd() -> Iterator[Finding]:
    import torch

    from .. import config

    flags: set[str] = set()
    info = Path("/proc/cpuinfo")
    if info.exists():
        line = next((text for text in info.read_text().splitlines() if text.startswith(("flags", "Features"))), "")
        flags = set(line.partition(":")[2].split())
    wanted = ("avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_bf16", "asimd", "sve")
    present = [flag for flag in wanted if flag in flags]
    text = f"{' '.join(present) or 'scalar only'}; torch uses {torch.backends.cpu.get_cpu_capability()}"
    chosen = f"; jitpy.config.simd = {config.simd}"
    yield Finding("SIMD", text + chosen, bool(present) or None)


def _triton() -> Iterator[Finding]:
    if importlib.util.find_spec("triton") is None:
        yield Finding("Triton", "not installed (only GPUs need it)")
        return
    import importlib.metadata

    yield Finding("Triton", importlib.metadata.version("triton"), True)


def _gpu() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        yield Finding("GPU", "none" if built else "none (torch is the CPU build)")
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        yield Finding(f"GPU {index}", f"{found.name}, sm_{found.major}{found.minor}, {found.total_memory / 2**30:.0f} GiB", True)


#: The report's parts, in order.
CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (_python, _torch, _compiler, _simd, _triton, _gpu)


def findings() -> list[Finding]:
    """Everything there is to say; a check that fails says how it failed."""
    result: list[Finding] = []
    for check in CHECKS:
        try:
            result.extend(check())
        except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            result.append(Finding(check.__name__.strip("_"), f"{type(error).__name__}: {error}", False))
    return result


def report(found: list[Finding]) -> str:
    """The findings as aligned text, a mark before each: `+` good, `!` something to mend, blank for information."""
    width = max(len(item.name) for item in found)
    lines = []
    for item in found:
        mark = {True: "+", False: "!", None: " "}[item.ok]
        lines.append(f"{mark} {item.name:<{width}}  {item.text}")
        if item.hint:
            lines.append(f"  {'':<{width}}  -> {item.hint}")
    return "\n".join(lines)


def doctor() -> int:
    """Print the report. Returns the number of things that should be mended."""
    found = findings()
    print(report(found))
    return sum(item.ok is False for item in found)
