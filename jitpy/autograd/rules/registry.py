"""Where rules are kept, and how an op finds its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.op import Op

#: See the package's docstring.
Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of ops by name."""

    def register(fn: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = fn
        return fn

    return register


def covers(op: Op) -> bool:
    """Whether an op has a rule of its own."""
    return op.name in RULES or "vjp" in op.facets


def rule_for(op: Op) -> Rule | None:
    """The rule of an op, if one was written."""
    return RULES.get(op.name) or op.facets.get("vjp")
