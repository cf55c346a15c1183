"""Typed flags. Each has an environment variable and works as a context manager.

    jitpy.config.recompile_limit                     # read
    jitpy.config.recompile_limit = 16                # set for the process
    with jitpy.config.patch(recompile_limit=16): ... # set for a block (this thread)

`JITPY_RECOMPILE_LIMIT=16` in the environment sets the default. Unknown names are errors that list the known ones.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag's name, type, default and what it is for."""

    name: str
    type: type
    default: Any
    doc: str

    @property
    def variable(self) -> str:
        return f"JITPY_{self.name.upper()}"

    def parse(self, text: str) -> Any:
        if self.type is bool:
            if text.lower() in ("1", "true", "yes", "on"):
                return True
            if text.lower() in ("", "0", "false", "no", "off"):
                return False
            raise ValueError(f"{self.variable}={text!r}: expected 0 or 1")
        try:
            return self.type(text)
        except ValueError as error:
            raise ValueError(f"{self.variable}={text!r}: expected {self.type.__name__}") from error


FLAGS = {
    flag.name: flag
    for flag in (
        Flag("enabled", bool, True, "0 makes every jitted function run as plain Python, in all threads"),
        Flag("raise_errors", bool, False, "raise internal errors in place of falling back to eager (or JITPY_RAISE=1)"),
        Flag("recompile_limit", int, 8, "compiled variants per function and instance before it runs eager"),
        Flag("review_after", int, 64,
             "calls without a new variant after which a function is left to Python if its graph breaks cost more than "
             "its graphs save; 0: never"),
        Flag("dynamic", str, "auto", "sizes: 'auto' (symbolic once they change), 'always', 'never'"),
        Flag("cache_dir", str, "", "folder for compiled artefacts; empty: the user's cache folder"),
        Flag("native_dir", str, "", "folder for jitpy's own native modules; empty: the cache folder"),
        Flag("disk_cache", bool, True, "keep compiled kernels on disk"),
        Flag("cxx", str, "", "C++ compiler; empty: $CXX, then g++, clang++, c++"),
        Flag("simd", str, "auto", "'auto', 'avx512', 'avx2' or 'scalar'"),
        Flag("threads_grain", int, 32768, "elements of work per thread below which a kernel stays on one thread"),
        Flag("triton_on_cpu", bool, False, "run CPU graphs in Triton's interpreter: slow, for tests"),
        Flag("fusion", bool, True, "fuse loop nests into one kernel"),
        Flag("freezing", bool, False, "compile inference for the values of parameters, until one changes"),
        Flag("native", bool, True, "use the native guards, dispatch and runtime where they can be built"),
        Flag("hook", str, "auto", "frame hook: 'auto', 'native', 'monitoring' or 'none'"),
        Flag("inline_depth", int, 200, "how deep calls are inlined"),
        Flag("unroll_limit", int, 100000, "traced instructions per frame before the graph is broken"),
        Flag("activation_memory_budget", float, 1.0,
             "part of the memory that gradients usually keep: 1.0 is fastest, 0.0 computes everything again"),
        Flag("pool_bytes", int, 1 << 30, "bytes of freed output and scratch memory kept for reuse"),
        Flag("compile_workers", int, 0, "processes that compile GPU kernels; 0: one a core"),
        Flag("sanitize", str, "", "sanitizers to build native code with: 'address,undefined' (make sanitize)"),
        Flag("debug", bool, False, "keep every stage's text in a debug folder"),
    )
}


if TYPE_CHECKING:  # what a type checker sees where the module object answers
    enabled: bool
    raise_errors: bool
    recompile_limit: int
    review_after: int
    dynamic: str
    cache_dir: str
    native_dir: str
    sanitize: str
    disk_cache: bool
    cxx: str
    simd: str
    threads_grain: int
    triton_on_cpu: bool
    fusion: bool
    freezing: bool
    native: bool
    hook: str
    inline_depth: int
    unroll_limit: int
    activation_memory_budget: float
    pool_bytes: int
    compile_workers: int
    debug: bool


class Config(types.ModuleType):
    """The module object: attribute reads and writes are flag reads and writes."""

    def __getattr__(self, name: str) -> Any:
        if name in FLAGS:
            local = getattr(_local, "overrides", None)
            if local and name in local:
                return local[name]
            return _values[name]
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(_unknown(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FLAGS:
            _values[name] = _check(name, value)
            _tell((name,))
        elif name.startswith("__"):
            super().__setattr__(name, value)
        else:
            raise AttributeError(_unknown(name))


def patch(**flags: Any) -> contextlib.AbstractContextManager[None]:
    """Set flags for a `with` block, in this thread. Unknown names raise AttributeError at once."""
    checked = {name: _check(name, value) for name, value in flags.items()}
    return _patched(checked)


@contextlib.contextmanager
def _patched(checked: dict[str, Any]) -> Iterator[None]:
    before = getattr(_local, "overrides", None)
    _local.overrides = {**(before or {}), **checked}
    _tell(checked)
    try:
        yield
    finally:
        _local.overrides = before
        _tell(checked)


def on_change(name: str, callback: Callable[[Any], object]) -> None:
    """Call `callback(value)` when a flag is set or patched, in any thread, and when a patch ends."""
    _callbacks.setdefault(name, []).append(callback)


def _tell(names: Iterable[str]) -> None:
    for name in names:
        for callback in _callbacks.get(name, ()):
            callback(getattr(sys.modules[__name__], name))


def as_dict() -> dict[str, Any]:
    """Every flag's present value."""
    module = sys.modules[__name__]
    return {name: getattr(module, name) for name in FLAGS}


def _unknown(name: str) -> str:
    return f"jitpy.config has no flag {name!r}; the flags are: {', '.join(sorted(FLAGS))}"


def _check(name: str, value: Any) -> Any:
    flag = FLAGS.get(name)
    if flag is None:
        raise AttributeError(_unknown(name))
    if flag.type is not bool and isinstance(value, bool) or not isinstance(value, flag.type):
        raise TypeError(f"jitpy.config.{name} takes {flag.type.__name__}, not {type(value).__name__} {value!r}")
    return value


def _from_environment(flag: Flag) -> Any:
    text = os.environ.get(flag.variable)
    if text is None and flag.name == "raise_errors":
        text = os.environ.get("JITPY_RAISE")
    return flag.default if text is None else flag.parse(text)


_callbacks: dict[str, list[Callable[[Any], object]]] = {}
_values = {flag.name: _from_environment(flag) for flag in FLAGS.values()}
_local = threading.local()
sys.modules[__name__].__class__ = Config
