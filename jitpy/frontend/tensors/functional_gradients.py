"""`torch.autograd.functional`: torch's own Python is traced, whose backward passes are captured (`backward.py`).

Two things break the graph, at the call of the function: `vectorize=True`, which maps the engine over a batch of
gradients, and more backward passes than `MAX_PASSES`: there is one for each number that is differentiated, and each is
recorded on its own.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

import torch.autograd.functional as functional

from ..breaks import GraphBreak, Restart
from ..calls import builtin, inline_library
from ..values.base import ConstValue, Value

if TYPE_CHECKING:
    from ..executor import Executor

#: Backward passes that one graph holds for these functions.
MAX_PASSES = 64


def _refuse_batches(function: types.FunctionType) -> None:
    parameters = list(inspect.signature(function).parameters)
    place = parameters.index("vectorize")

    @builtin(function)
    def handler(ex: Executor, args: list[Value], kwargs: dict[str, Value]) -> Any:
        flag = args[place] if len(args) > place else kwargs.get("vectorize")
        if flag is not None and not (isinstance(flag, ConstValue) and flag.value is False):
            what = f"{function.__name__}(vectorize=True): it maps the autograd engine over a batch"
            raise GraphBreak("autograd", f"{what}; torch.func.{_EQUALS[function]} is captured")
        return inline_library(ex, function, args, kwargs)


_EQUALS = {functional.jacobian: "jacrev", functional.hessian: "hessian"}
for _function in _EQUALS:
    _refuse_batches(_function)


@builtin(functional._autograd_grad)
def _count(ex: Executor, args: list[Value], kwargs: dict[str, Value]) -> Any:
    history = ex.recorder.history
    history.functional_passes += 1
    if history.functional_passes > MAX_PASSES:
        step = ex.library_caller()
        assert step is not None
        what = f"one for each of more than {MAX_PASSES} numbers; torch.func.jacrev is captured"
        raise Restart(step, GraphBreak("autograd", what))
    return inline_library(ex, functional._autograd_grad, args, kwargs)
