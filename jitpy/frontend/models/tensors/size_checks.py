"""`torch._check` and its relatives: what a program says of numbers that the graph computes becomes facts about sizes.

The graph checks them when it runs; a call that fails one runs as plain Python, which raises the program's own error.
Importing this module registers the functions.
"""

from __future__ import annotations

from typing import Any

import torch

from ....ir.algebra import sympy
from ...breaks import GraphBreak
from ...capture.computed_sizes import require_truth, size_of
from ...capture.torch_calls.checked_values import require_all
from ...interpreter.callees import builtin
from ...values import NULL, ConstValue, Interpreter, Value

_NONE = ConstValue(None)


def _require(interp: Interpreter, condition: Value, what: str) -> Value:
    if condition.scalar is not None and condition.cls is bool:
        with interp.recording(what):
            holds = require_truth(interp.builder, condition.traced, True, f"{what} at {interp.loc()}")
    elif type(condition.literal) is bool:
        holds = condition.value
    else:
        raise GraphBreak("unsupported_call", f"{what} of {condition.describe()}")
    if not holds:
        raise GraphBreak("exception", what, tail=True)
    return _NONE


def _check(name: str) -> Any:
    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        condition = args[0] if args else kwargs.get("cond")
        if condition is None or len(args) + len(kwargs) > 2:
            raise GraphBreak("unsupported_call", name)
        return _require(interp, condition, name)

    return handler


for _name in ("_check", "_check_index", "_check_value", "_check_type", "_check_not_implemented"):
    if hasattr(torch, _name):
        builtin(getattr(torch, _name))(_check(f"torch.{_name}"))


def _check_all(function: Any, position: int) -> None:
    """A check that all elements of a tensor, the argument number `position`, are True."""
    what = f"torch.{function.__name__}"

    @builtin(function)
    def check(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        condition = args[position] if len(args) > position else kwargs.get("cond", NULL)
        if condition.tensor is None or condition.traced.dtype is not torch.bool:
            raise GraphBreak("unsupported_call", f"{what} of no tensor of truth values")
        if len(args) + len(kwargs) not in (position + 1, position + 2):
            raise GraphBreak("unsupported_call", what)
        with interp.recording(what):
            require_all(interp.builder, condition.traced, f"{what} at {interp.loc()}")
        return _NONE


_check_all(torch._check_tensor_all, 0)
_check_all(torch._check_tensor_all_with, 1)


@builtin(torch._check_is_size)
def _check_is_size(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    what = "torch._check_is_size"
    if len(args) not in (1, 2) or set(kwargs) - {"message", "max"}:
        raise GraphBreak("unsupported_call", what)
    number = args[0]
    limit = kwargs["max"].payload(interp) if "max" in kwargs else None
    if number.scalar is not None and number.cls is int:
        with interp.recording(what):
            size = size_of(interp.builder, number.traced)
    elif number.expr is not None or type(number.literal) is int:
        size = number.payload(interp)
    else:
        raise GraphBreak("unsupported_call", f"{what} of {number.describe()}")
    relations: list[Any] = [sympy.Ge(size, 0)]
    if limit is not None:
        relations.append(sympy.Le(size, limit))
    if not all(interp.context.sizes.require(relation, f"{what} at {interp.loc()}") for relation in relations):
        raise GraphBreak("exception", what, tail=True)
    return _NONE
