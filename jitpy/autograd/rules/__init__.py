"""Gradient rules, by op.

    @rule("aten.mul.Tensor")
    def _mul(p: Pullback, g: Node, x, y):
        return p.mul(g, y) if p.needs(x) else None, p.mul(g, x) if p.needs(y) else None

A rule gets the gradient of the node's result (of each result, or None where that one has none, for ops with several)
and the node's arguments, positional as far as the schema allows. It returns gradients for the leading arguments, None
where there is none or where it is not needed; for a list of tensors a list. Each is then summed to its argument's shape
and cast to its dtype. Formulas read what eager's formulas keep (`x` or the result, `p.node`), so that what a program
may change in place between the passes is what it may change in eager mode. NotCovered leaves the op to the derived
rule.
"""

from __future__ import annotations

from . import attention, branches, fourier, indexing, losses, matmul, nn, pointwise, recurrent, reductions, views  # noqa: F401
from .registry import COMPLEX, Rule, covers, rule, rule_for

__all__ = ["COMPLEX", "Rule", "covers", "rule", "rule_for"]
