"""Compiler flags by instruction set."""

from __future__ import annotations

import functools
import platform

from jitpy import config
from jitpy.runtime.compiler import sanitizer_flags

COMMON = (
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    # without errno GCC makes sin(atan(x)) and cos(atan(x)) of roots and comparisons, which lose a NaN
    "-fno-builtin-atan",
    "-fno-builtin-atanf",
    # sin and cos of one number would become one call, of which there are no vectors
    "-fno-builtin-sin",
    "-fno-builtin-sinf",
    "-fno-builtin-cos",
    "-fno-builtin-cosf",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    # results may lie where operands of another type did
    "-fno-strict-aliasing",
    "-fno-semantic-interposition",
    # vectors are made of floats' bits in arrays: GCC 12 lets such arrays of two blocks share their place, and mixes up
    # what is written to the one and read from the other
    "-fno-strict-aliasing",
    "-fstack-reuse=none",
    "-fno-exceptions",
    "-fno-rtti",
    "-w",
)

_SETS = {
    "avx512": (
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mprefer-vector-width=512",
    ),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "scalar": ("-fno-tree-vectorize",),
}


def compiler_flags(simd: str) -> tuple[str, ...]:
    """Flags for `config.simd`: 'auto', 'avx512', 'avx2' or 'scalar'. Raises ValueError for any other name."""
    # the thread sanitizer knows nothing of OpenMP's barriers
    sanitizers = () if config.sanitize == "thread" else sanitizer_flags()
    if simd == "auto":
        simd = best_simd()
        if simd == "native":
            return (*COMMON, "-fopenmp", "-march=native", *sanitizers)
    if simd not in _SETS:
        raise ValueError(f"simd={simd!r}: expected 'auto', 'avx512', 'avx2' or 'scalar'")
    # without vectors the simd pragmas are comments, the threads stay
    return (*COMMON, "-fopenmp", *_SETS[simd], *sanitizers)


@functools.cache
def best_simd() -> str:
    """The widest instruction set of this machine: 'avx512', 'avx2', 'native' (other architectures) or 'scalar'."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return "native"
    try:
        with open("/proc/cpuinfo") as file:
            words = next((line.split() for line in file if line.startswith("flags")), [])
    except OSError:
        return "scalar"
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(words):
        return "avx512"
    return "avx2" if {"avx2", "fma", "f16c"} <= set(words) else "scalar"
