"""The arguments of `jitpy.jit`, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import config
from .backends.registry import get_backend, is_known

#: on the CPU the modes other than `default` do what `default` does
MODES = ("default", "reduce-overhead", "max-autotune")

#: the flags of `jitpy.config` that can be set for one jitted function, as `options={...}`
OPTIONS = ("debug", "disk_cache", "dynamic", "freezing", "fusion", "inline_depth", "raise_errors", "recompile_limit",
           "simd", "threads_grain", "unroll_limit")


@dataclass(frozen=True, slots=True)
class Options:
    """How one function is compiled. `check` makes it from user input."""

    backend: str | Callable[..., Any] = "codegen"
    mode: str = "default"
    fullgraph: bool = False
    dynamic: bool | None = None
    options: dict[str, Any] = field(default_factory=dict)


def check(backend: Any, mode: Any, fullgraph: Any, dynamic: Any, options: Any) -> Options:
    """The options as one object. TypeError and ValueError say what is allowed."""
    if not is_known(backend):
        get_backend(backend)  # raises, unless it is a callable or an installed package's
    if not isinstance(mode, str):
        raise TypeError(f"mode is a string, not {type(mode).__name__}; the modes are: {', '.join(MODES)}")
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; the modes are: {', '.join(MODES)}")
    if not isinstance(fullgraph, bool):
        raise TypeError(f"fullgraph is True or False, not {fullgraph!r}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise TypeError(f"dynamic is True, False or None (sizes become symbolic once they change), not {dynamic!r}")
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"options is a dict or None, not {type(options).__name__}")
    for name in options or {}:
        if name not in OPTIONS:
            raise ValueError(f"unknown option {name!r}; the options are: {', '.join(OPTIONS)}")
    checked = dict(options or {})
    config.patch(**checked)  # raises TypeError for a value of the wrong type
    return Options(backend, mode, fullgraph, dynamic, checked)
