"""Marks that programs set for the tracer: functions that stay out of graphs or go into them whole, breaks, and marks
on sizes.

All of it works without tracing as well, and imports nothing heavy.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .runtime import beside_dynamo
from .runtime.dispatch import set_compiling

F = TypeVar("F", bound=Callable[..., Any])

#: functions that are called as plain Python, between two graphs
DISABLED: weakref.WeakSet[Any] = weakref.WeakSet()
#: functions that become one node of the graph
ALLOWED: weakref.WeakSet[Any] = weakref.WeakSet()
#: jitted function -> the plain one below it: jit inside jit is inlined
ORIGINALS: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()


def original_of(obj: Any) -> Callable[..., Any] | None:
    """The plain function below a jitted one; None for anything else."""
    if type(obj).__hash__ is not object.__hash__:  # not made by jitpy; a hash of the program's own may do anything
        return None
    try:
        return ORIGINALS.get(obj)
    except TypeError:  # cannot be referenced weakly
        return None


def disabled_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs `fn`, and all that it calls, as plain Python."""
    plain = original_of(fn) or fn

    @functools.wraps(plain)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        before = set_compiling(True)
        try:
            return plain(*args, **kwargs)
        finally:
            set_compiling(before)

    DISABLED.add(disabled)
    return beside_dynamo.keep_out(disabled)


def allow_in_graph(fn: F) -> F:
    """Mark a function of tensors to be put into graphs as one node, unseen; returns it.

    Its results must depend on its arguments alone, and it must not change them. TypeError for a non-callable.
    """
    if not callable(fn):
        raise TypeError(f"jitpy.allow_in_graph takes a callable, not {type(fn).__name__}")
    if fn not in ALLOWED:
        ALLOWED.add(fn)
        beside_dynamo.new_mark()
    return fn


def graph_break(msg: str = "") -> None:
    """End the graph here, and begin another one behind; `msg` shows in reports. Does nothing in plain Python."""


def is_compiling() -> bool:
    """True in code that is being traced by jitpy, False in code that runs."""
    return False


def mark_dynamic(tensor: torch.Tensor, dim: int | tuple[int, ...] | list[int], min: int | None = None,
                 max: int | None = None) -> None:
    """Make sizes of this tensor symbolic from the first compilation on.

    dim: axis or axes, from the end where negative. min, max: bounds (inclusive) that the sizes will keep to: another
    size compiles anew. A call of a program that works for one value of such a size only raises `SpecializationError`
    (a ValueError) that says why. Sizes 0 and 1 stay constants.
    TypeError for another object than a tensor, IndexError for an axis that it lacks, ValueError for bounds that its
    present size does not keep to.
    """
    for one in _axes(tensor, dim, "mark_dynamic"):
        size = tensor.shape[one]
        for bound in (min, max):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
                raise TypeError(f"bounds of a size are ints, not {type(bound).__name__}")
        if (min is not None and size < min) or (max is not None and size > max):
            raise ValueError(f"size {size} of axis {one} is not within min={min}, max={max}")
        _mark(tensor, one, (min, max))


def mark_static(tensor: torch.Tensor, dim: int | tuple[int, ...] | list[int] | None = None) -> None:
    """Keep sizes of this tensor constants of the compiled code: each new size compiles anew. dim: None for all axes.

    TypeError for another object than a tensor, IndexError for an axis that it lacks.
    """
    for one in _axes(tensor, tuple(range(tensor.ndim)) if dim is None else dim, "mark_static"):
        _mark(tensor, one, "static")


def _axes(tensor: Any, dim: Any, what: str) -> list[int]:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"jitpy.{what} takes a tensor, not {type(tensor).__name__}")
    axes = list(dim) if isinstance(dim, (tuple, list)) else [dim]
    for one in axes:
        if isinstance(one, bool) or not isinstance(one, int):
            raise TypeError(f"an axis is an int, not {type(one).__name__}")
        if not -tensor.ndim <= one < tensor.ndim:
            raise IndexError(f"axis {one} of a tensor with {tensor.ndim} axes")
    return [one % tensor.ndim for one in axes]


def _mark(tensor: torch.Tensor, dim: int, mark: Any) -> None:
    marks: dict[int, Any] | None = getattr(tensor, "_jitpy_dims", None)
    if marks is None:
        marks = tensor._jitpy_dims = {}  # type: ignore[attr-defined]
    marks[dim] = mark
