"""Where rules are kept, and how an op finds its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.op import Op, OpRules, full_name

#: See the package's docstring.
Rule = Callable[..., Any]

RULES = OpRules()

#: Ops whose rules give gradients that must not be differentiated again.
ONCE: set[str] = set()

#: Ops whose rules are right for complex numbers as well; others conjugate nothing.
COMPLEX: set[str] = set()


def rule(*names: str, once: bool = False, complex: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of ops by name. `once`: it is made of ops without gradients, or keeps values whose part in a
    second derivative it leaves out; for gradients with a history torch's own way is recorded. `complex`: it is right
    for complex numbers; what is real gets the real part of its gradient."""

    def register(fn: Rule) -> Rule:
        RULES.of(*names)(fn)
        if once:
            ONCE.update(map(full_name, names))
        if complex:
            COMPLEX.update(map(full_name, names))
        return fn

    return register


def covers(op: Op) -> bool:
    """Whether an op has a rule of its own."""
    return op.name in RULES or op.vjp is not None


def rule_for(op: Op, create_graph: bool = False) -> Rule | None:
    """The rule of an op, if one was written; if `create_graph`, one whose gradients have derivatives."""
    if create_graph and op.name in ONCE:
        return None
    return RULES.get(op.name) or op.vjp
