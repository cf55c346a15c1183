"""`torch.autograd.functional`: torch's own Python is traced, whose backward passes are captured (`backward.py`).

Two things break the graph, at the call of the function: forward mode, and more backward passes than `MAX_PASSES`:
without `vectorize=True` there is one for each number that is differentiated, and each is recorded on its own.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

import torch.autograd.functional as functional

from ...breaks import GraphBreak, RestartAnalysis
from ...interpreter.callees import builtin
from ...interpreter.calls import inline_library
from ...values import Value

if TYPE_CHECKING:
    from ...values import Interpreter

#: Backward passes that one graph holds for these functions.
MAX_PASSES = 64


def _refuse_forward_mode(function: types.FunctionType, name: str, equal: str) -> None:
    parameters = list(inspect.signature(function).parameters)
    place = parameters.index(name)

    @builtin(function)
    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        strategy = args[place] if len(args) > place else kwargs.get(name)
        if strategy is not None and strategy.literal != "reverse-mode":
            raise GraphBreak("autograd", f"{function.__name__}({name}=...); torch.func.{equal} is captured")
        return inline_library(interp, function, args, kwargs)


_refuse_forward_mode(functional.jacobian, "strategy", "jacfwd")
_refuse_forward_mode(functional.hessian, "outer_jacobian_strategy", "hessian")


@builtin(functional._autograd_grad)
def _count(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    history = interp.builder.history
    history.functional_passes += 1
    if history.functional_passes > MAX_PASSES:
        step = interp.library_caller()
        assert step is not None
        what = f"one for each of more than {MAX_PASSES} numbers; torch.func.jacrev is captured"
        raise RestartAnalysis(step, GraphBreak("autograd", what))
    return inline_library(interp, functional._autograd_grad, args, kwargs)
