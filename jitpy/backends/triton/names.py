"""Names of what a kernel computes: those of the graph's nodes, as far as repeated layers have them in common.

Kernels that do the same must have the same text, because equal ones are compiled once. So numbers go (`linear_7` is
`linear` in each layer), and of a parameter only the last word of its path counts (`weight`).
"""

from __future__ import annotations

import keyword
import re

from ...ir.graph import INPUT
from ...schedule.expr import Expr
from ...schedule.values import Stored
from .helpers import HELPERS

#: Names of programs' own: tiles and their axes, parameters, running values, and what is derived from those.
_OWN = re.compile(r"(x|y|z|r|s|lane_y|lane_s|p|n|in|out|at|acc|t|partial|pid|part|row|skew|start|count|here|carried|"
                  r"running|value|kept)(_?\d+)?(_(in|at|start|first|last|part))?")
_TAKEN = {"tl", "triton", "libdevice", "program", "range", "MACHINE"}


def stem_for(expr: Expr) -> str:
    """The name of an expression's value: after its node, else after what it does."""
    name = re.sub(r"_\d+(?=_|$)", "", expr.name).strip("_")
    if not name:
        return "t" if expr.op in ("load", "const", "index", "cast", "reduced") else usable(expr.op)
    if expr.op == "load" and isinstance(expr.attr[0], Stored) and expr.attr[0].node.op is INPUT:
        name = name.rsplit("_", 1)[-1]
    return usable(name[:24].rstrip("_"))


def usable(stem: str) -> str:
    """The stem as a name that means nothing else in a kernel's module."""
    taken = keyword.iskeyword(stem) or stem in _TAKEN or stem in HELPERS or _OWN.fullmatch(stem)
    return f"{stem}_value" if taken or not stem.isidentifier() else stem
