"""What torch says about dtypes and numbers: a call is tried with small tensors in place of the program's."""

from __future__ import annotations

import functools
from typing import Any

import torch


def error_of(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> str | None:
    """The text of the error that an operator raises; None where it raises none, or one about something else.

    (dtype, shape) stands for a CPU tensor; other tuples stand for lists.
    Raises TypeError where something has no hash.
    """
    return _error_of(target, args, kwargs, _types((args, kwargs)))


def _types(value: Any) -> Any:
    """What tells arguments apart that are equal: 1, 1.0 and True."""
    return tuple(map(_types, value)) if isinstance(value, tuple) else type(value)


@functools.lru_cache(4096)
def _error_of(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], types: Any) -> str | None:
    try:
        is_random = torch.Tag.nondeterministic_seeded in target.tags
        with torch.no_grad(), torch._C.DisableTorchFunction(), torch._C._DisableAutocast(), \
                torch.random.fork_rng(devices=[], enabled=is_random):
            target(*map(_made, args), **{name: _made(value) for name, value in kwargs})
    except (RuntimeError, OverflowError) as error:
        return str(error)
    except (TypeError, ValueError, IndexError):
        return None
    return None


def _made(value: Any) -> Any:
    if isinstance(value, tuple):
        if len(value) == 2 and isinstance(value[0], torch.dtype):
            return torch.ones(value[1], dtype=value[0], device="cpu")
        return list(map(_made, value))
    return value
