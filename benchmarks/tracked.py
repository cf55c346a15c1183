"""How many bytes this process has allocated, and had at most: every allocator of the process is seen.

`restart_tracked` starts the program again with a small library in front of the C library (`tracked.c`), which counts.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_VARIABLE = "JITPY_BENCH_TRACKED"


def restart_tracked() -> None:
    """Run this program with counting; returns at once if it does, or if there is no C compiler (or no glibc)."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if _VARIABLE in os.environ or compiler is None or not sys.platform.startswith("linux"):
        return
    library = Path(tempfile.mkdtemp(prefix="jitpy-bench-")) / "tracked.so"
    source = Path(__file__).with_name("tracked.c")
    done = subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=False)
    if done.returncode == 0:
        os.environ |= {_VARIABLE: str(library), "LD_PRELOAD": str(library)}
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@functools.cache
def _library() -> ctypes.CDLL | None:
    path = os.environ.get(_VARIABLE)
    if path is None:
        return None
    os.environ.pop("LD_PRELOAD", None)  # not for compilers that are started from here
    library = ctypes.CDLL(path)
    library.tracked_current.restype = library.tracked_peak.restype = ctypes.c_int64
    return library


def is_tracked() -> bool:
    """Whether bytes are counted in this process."""
    return _library() is not None


def restart_peak() -> int:
    """Bytes allocated now. The peak counts from here on."""
    library = _library()
    assert library is not None
    library.tracked_restart()
    return library.tracked_current()


def peak() -> int:
    """The most bytes that were allocated at a time since `restart_peak`."""
    library = _library()
    assert library is not None
    return library.tracked_peak()
