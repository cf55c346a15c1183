"""numpy's objects while tracing: arrays and scalars whose numbers are in tensors of the graph.

An array from outside enters the graph as the tensor that `torch.from_numpy` makes of it, in the same memory, and one
that leaves it is `tensor.numpy()`. A value that tracing knows only by identity (arrays of text, of objects, read-only
ones, scalars from outside) is a `PyValue`. """

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch

from ...capture.array_inputs import as_tensor, tensor_of
from ...capture.traced import Uncapturable
from ...guards.source import Source, slot
from ...values import IS_CAPTURED, TORCH_DTYPES, ArrayValue, TraceContext
from ...values.wrapping import wraps

if TORCH_DTYPES:
    import numpy as np

def errors_are_silent(numpy: Any) -> bool:
    """Guard predicate: floating-point errors (a division by zero, an overflow) stop no program. Captured code does not
    look for them. The answer is kept for as long as numpy's settings and the filters of warnings are the same."""
    global _last
    settings, (known, filters, answer) = _settings(numpy), _last
    if settings == known and filters == warnings.filters:
        return answer
    answer = _look_for_errors(numpy)
    _last = settings, list(warnings.filters), answer
    return answer


#: numpy's settings, the filters of warnings, and whether errors are silent with these
_last: tuple[Any, list[Any], bool] = (None, [], False)


def _settings(numpy: Any) -> Any:
    """Something equal for equal settings of `numpy.errstate`: the object that holds them, where it can be had."""
    return numpy.geterr() if _holder is None else _holder.get()


_holder: Any = None
with contextlib.suppress(ImportError):
    from numpy._core import umath

    _holder = getattr(umath, "_extobj_contextvar", None)


def _look_for_errors(numpy: Any) -> bool:
    if not set(numpy.geterr().values()) <= {"ignore", "warn"}:
        return False
    return not any(
        action == "error" and issubclass(RuntimeWarning, category)
        and (text is None or any(text.match(error) for error in _ERRORS))
        for action, text, category, *_ in warnings.filters
    )


_ERRORS = tuple(f"{error} encountered in" for error in ("divide by zero", "overflow", "underflow", "invalid value"))


@wraps(*([np.ndarray] if IS_CAPTURED else []))
def _wrap_array(context: TraceContext, obj: Any, cls: type, source: Source) -> ArrayValue | None:
    """The Value of an array from outside, or None where no tensor can stand for it."""
    if cls is not np.ndarray:
        return None
    tensor = as_tensor(obj)
    if tensor is None:
        return None
    try:
        traced = context.input_tensor(tensor, slot(source, tensor_of))
    except Uncapturable:
        return None
    return ArrayValue(traced, np.ndarray, source)


def to_array(tensor: torch.Tensor) -> Any:
    """The array that compiled code makes of its tensor."""
    return tensor.numpy()


def to_scalar(tensor: torch.Tensor) -> Any:
    """The scalar that compiled code makes of its tensor."""
    return tensor.numpy()[()]


def evaluate_strictly(function: Any, numbers: list[Any]) -> Any:
    """A function of scalars; NotImplemented where numpy would warn of the result."""
    with np.errstate(all="raise"):
        try:
            return function(*numbers)
        except FloatingPointError:
            return NotImplemented
