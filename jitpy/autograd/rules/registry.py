"""Where rules are kept, and how an op finds its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.graph import Node
from ...ir.op import NotCovered, Op

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


def rule_for(node: Node) -> Rule:
    """The rule of a node's op. Raises NotCovered."""
    found = RULES.get(node.op.name) or node.op.facets.get("vjp")
    if found is None:
        raise NotCovered(f"no gradient rule for {node.op}")
    return found
