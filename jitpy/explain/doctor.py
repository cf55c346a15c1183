"""`python -m jitpy doctor`: what is on this machine, and what jitpy can use of it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
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
    from ..runtime import compiler

    try:
        found = compiler.require_compiler()
    except compiler.CompilerError as error:
        yield Finding("C++ compiler", str(error), False, "without a compiler every kernel is torch's own")
        return
    yield Finding("C++ compiler", f"{' '.join(found.command)}: {found.version}", True)


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
    yield Finding("Triton", importlib.metadata.version("triton"), True)


def _gpu() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        yield Finding("GPU", "none" if built else "none (torch is the CPU build)")
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        memory = f"{found.total_memory / 2**30:.0f} GiB"
        yield Finding(f"GPU {index}", f"{found.name}, sm_{found.major}{found.minor}, {memory}", True)


def _cache() -> Iterator[Finding]:
    from .. import config
    from ..runtime import cache

    folder = cache.folder()
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()] if folder.exists() else []
    text = f"{folder}: {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB"
    if not config.disk_cache:
        yield Finding("Cache folder", f"turned off (JITPY_DISK_CACHE=0); this process uses {folder}")
        return
    with config.patch(disk_cache=False):
        usable = folder != cache.folder()
    yield Finding("Cache folder", text, usable, "" if usable else "the user's cache folder cannot be written to; set "
                  "JITPY_CACHE_DIR to one that can, or nothing is kept between runs")


def _native() -> Iterator[Finding]:
    from ..runtime import native_build

    for name, table in native_build.MODULES.items():
        title = f"Native {name}"
        if not native_build.is_built(name):
            yield Finding(title, f"the {table.title} is not built yet", None, "`python -m jitpy build` builds it now")
            continue
        try:
            module = native_build.load_native(name)
        except native_build.NativeUnavailable as error:
            yield Finding(title, error.reason, False, "pure Python is used in its place")
            continue
        yield Finding(title, f"built: {module.__file__}", True)


def _hook() -> Iterator[Finding]:
    from ..frontend import hook
    from ..runtime import native_build

    if not native_build.is_built("hook"):
        yield Finding("Frame hook", "decided when the native part is built")
        return
    name, reason = hook.provider_name(), hook.why_not_native()
    yield Finding("Frame hook", name + (f" (not native: {reason})" if reason else ""), name == "native",
                  "frames after a graph break run as plain Python" if name == "none" else "")


#: The report's parts, in order.
CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python, _torch, _compiler, _simd, _triton, _gpu, _cache, _native, _hook
)


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


def build() -> int:
    """Build the native modules now, each with a progress line. The exit status: 0 also where pure Python must do."""
    from ..runtime import native_build

    for name in native_build.MODULES:
        try:
            native_build.load_native(name)
        except native_build.NativeUnavailable as error:
            print(f"jitpy: pure Python in place of the native {name}: {error.reason}", file=sys.stderr)
    return 0
