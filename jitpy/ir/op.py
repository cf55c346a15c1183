"""What jitpy knows of one operator. The table itself is in `jitpy/ir/ops/`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .spec import Spec


@dataclass(slots=True, eq=False)
class Op:
    """One operator, with every facet that jitpy has of it; a facet that is None is derived from torch.

    name        `aten.add.Tensor`, or `ir.*` / `py.*` for jitpy's own
    target      the eager call, with the same positional and keyword arguments as the node
    infer       shape rule `(env: SizeEnv, *args, **kwargs) -> Spec`, node arguments given as their Specs;
                raises `NotCovered` for arguments it does not handle
    scalar      pointwise body `(e, *operands) -> expression`, `e` a `ScalarBuilder` of the schedule
    kind        'pointwise' | 'reduction' | 'view' | 'factory' | 'matmul' | 'host' | 'other': what the scheduler may do
    facets      any further facts by name (reduction combine, index map, decomposition, vjp, ...)
    """

    name: str
    target: Callable[..., Any]
    kind: str = "other"
    infer: Callable[..., Spec] | None = None
    scalar: Callable[..., Any] | None = None
    decompose: Callable[..., Any] | None = None
    is_view: bool = False
    is_random: bool = False
    is_pure: bool = True
    facets: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name


class NotCovered(Exception):
    """A hand-written facet does not handle these arguments: use the one derived from torch."""
