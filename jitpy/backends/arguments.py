"""Values inside the arguments of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.trees import tree_leaves
from ..schedule.values import Value, strided


@dataclass(frozen=True, eq=False, slots=True)
class Argument:
    """A value inside the arguments of a call."""

    value: Any


def visit(arguments: Any, fn: Any) -> None:
    """Call `fn` on every Value inside call arguments."""
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, Argument):
            visit(leaf.value, fn)
        elif isinstance(leaf, Value):
            fn(leaf)


def flat(values: list[Any]) -> list[Any]:
    return list(tree_leaves(values))


__all__ = ["Argument", "flat", "strided", "visit"]
