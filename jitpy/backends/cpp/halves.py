"""16-bit floats that lie side by side. Compilers convert them lane by lane, with the arithmetic of the scalar
conversions: what a loop over lanes reads and writes in order is converted by blocks instead, ahead of it and behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...schedule.expr import Expr, index_expressions
from ...schedule.index import Axis, Index
from ...schedule.loops import Store
from ...schedule.values import Value

#: How the prelude's functions call them.
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}
#: ... and floats of 8 bits, which are converted one by one.
SMALL = {**NAMES, torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
#: Lanes of a block, where the loop has no blocks of its own.
BLOCK = 32
#: Elements that the prelude converts at once: blocks are multiples of it.
UNIT = 16


def in_order(value: Value, index: Index, axis: Axis, names: dict[Expr, str]) -> bool:
    """Whether the elements are 16-bit floats, each behind the last one's along `axis`, at a place known ahead."""
    return (
        value.dtype in NAMES
        and index.coefficient(axis) == 1
        and all(expr in names for expr in index_expressions(index))
    )


def loads_in_order(exprs: Iterable[Expr], axis: Axis, names: dict[Expr, str]) -> list[Expr]:
    """The loads that can be converted ahead of a loop along `axis`; `names` holds what is computed in front of it."""
    return [e for e in exprs if e.op == "load" and not e.args and in_order(e.attr[0], e.attr[1], axis, names)]


def stores_in_order(stores: Iterable[Store], axis: Axis, names: dict[Expr, str]) -> list[Store]:
    """The stores that can be converted behind a loop along `axis`."""
    return [s for s in stores if in_order(s.value, s.index, axis, names)]


def widening(dtype: torch.dtype) -> str:
    """The function of the prelude that makes floats of 16-bit ones."""
    return f"widen_{NAMES[dtype]}"


def narrowing(dtype: torch.dtype, expr: Expr) -> str:
    """The function of the prelude that makes 16-bit floats of an expression's values, rounded already or not."""
    exact = dtype is torch.bfloat16 and is_exact(unrounded(expr, dtype), dtype)
    return "upper_halves" if exact else f"narrow_{NAMES[dtype]}"


def unrounded(expr: Expr, dtype: torch.dtype) -> Expr:
    """The expression to store in a 16-bit dtype, which rounds."""
    return expr.args[0] if expr.op == "round_to" and expr.attr is dtype else expr


#: Operations that pass on one of their operands, but for its sign.
_PASSING = frozenset(("neg", "abs", "relu", "maximum", "minimum", "where", "fmax", "fmin"))


def is_exact(expr: Expr, dtype: torch.dtype) -> bool:
    """Whether a 16-bit dtype holds the values: what was loaded in it or rounded to it, and choices of such."""
    pending, seen = [expr], {expr}
    while pending:
        one = pending.pop()
        if one.op == "load" and one.attr[0].dtype is dtype or one.op == "round_to" and one.attr is dtype:
            continue
        if one.dtype is not torch.float32:
            return False
        if one.op == "const":
            if torch.tensor(one.attr, dtype=torch.float64).to(dtype).item() != one.attr:
                return False
        elif one.op in _PASSING:
            operands = one.args[1:] if one.op == "where" else one.args
            pending.extend(operand for operand in operands if operand not in seen)
            seen.update(operands)
        else:
            return False
    return True
