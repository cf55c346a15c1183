"""What the frame hook costs, in nanoseconds per call of a small Python function.

    python benchmarks/hook_overhead.py [--calls 1000000]

Per provider that runs here: the function with no hook; with the hook active and the function skipped; with the function
looked up and run as it is; with the function replaced by one with the same body. The lookup is a Python dispatcher; for
the native provider also a C function, as in the native runtime. `enter and leave` is one outermost pair. The hook turns
off the interpreter's inlining of Python calls, which is part of what `skipped` costs.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import sysconfig
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

from jitpy.frontend import hook
from jitpy.runtime import compiler, native_build

LOOKUP = """
#include "hook_api.h"
static PyObject *find(PyObject *dispatcher, PyObject *function, PyObject *const *parameters, Py_ssize_t count) {
    return Py_NewRef(dispatcher);
}
__attribute__((visibility("default"))) void use(JitpyHookApi *api, int on) { api->set_lookup(on ? find : NULL); }
"""


def use_native_lookup(on: bool) -> None:
    """Let a C function find the replacement: the dispatcher object itself."""
    flags = ("-O2", f"-I{sysconfig.get_path('include')}", f"-I{native_build.NATIVE_FOLDER}")
    library = ctypes.PyDLL(str(compiler.compile_text_cached(LOOKUP, flags, language="c")))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    library.use.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.use(pointer(hook.native_api(), b"jitpy_hook_api"), on)


def make(name: str) -> FunctionType:
    """A function `name(a, b)` with code of its own."""
    namespace: dict[str, Any] = {}
    exec(f"def {name}(a, b):\n    return a", namespace)
    return namespace[name]


def nanoseconds(function: Callable[[int, int], int], calls: int) -> float:
    """The best of five rounds, less the empty loop."""
    steps = range(calls // 5)

    def loop() -> float:
        started = time.perf_counter_ns()
        for _ in steps:
            function(1, 2)
        return (time.perf_counter_ns() - started) / len(steps)

    def empty() -> float:
        started = time.perf_counter_ns()
        for _ in steps:
            pass
        return (time.perf_counter_ns() - started) / len(steps)

    hook.skip_code(loop.__code__)
    return min(loop() for _ in range(5)) - min(empty() for _ in range(5))


def measure(provider: str, calls: int) -> dict[str, float]:
    """Nanoseconds per call for each state of the hook."""
    hook.select(provider)
    plain, skipped, refused, replaced, replacement = (
        make(name) for name in ("plain", "skipped", "refused", "replaced", "replacement")
    )
    dispatchers = {
        refused.__code__: lambda _function, _parameters: None,
        replaced.__code__: lambda _function, _parameters: replacement,
    }
    hook.skip_code(replacement.__code__)
    former = hook.set_eval_frame(lambda _function, code: dispatchers.get(code))
    results = {"no hook": nanoseconds(plain, calls)}
    hook.enter()
    try:
        for name, function in (("skipped", skipped), ("run as it is", refused), ("replaced", replaced)):
            function(1, 2)  # the handler is asked
            results[name] = nanoseconds(function, calls)
    finally:
        hook.leave()
    if provider == "native":
        results["replaced, C lookup"] = measure_native_lookup(calls)
    pairs = max(calls // 100, 1)
    started = time.perf_counter_ns()
    for _ in range(pairs):
        hook.enter()
        hook.leave()
    results["enter and leave"] = (time.perf_counter_ns() - started) / pairs
    hook.set_eval_frame(former)
    return results


def measure_native_lookup(calls: int) -> float:
    function, replacement = make("function"), make("replacement")
    hook.skip_code(replacement.__code__)
    hook.set_eval_frame(lambda _function, code: replacement if code is function.__code__ else None)
    use_native_lookup(True)
    hook.enter()
    try:
        function(1, 2)
        return nanoseconds(function, calls)
    finally:
        hook.leave()
        use_native_lookup(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    calls = parser.parse_args().calls
    providers = ["native"] + (["monitoring"] if hasattr(sys, "monitoring") else [])
    print(f"CPython {sys.version.split()[0]}, nanoseconds per call")
    for provider in providers:
        results = measure(provider, calls)
        print(f"{provider:>12}: " + "   ".join(f"{name} {value:.0f}" for name, value in results.items()))


if __name__ == "__main__":
    main()
