"""Tensors as text: `str(x)`, `f"{x}"`. Compiled code makes the text behind the graph, of what the tensor held then."""

from __future__ import annotations

import torch

from ...breaks import GraphBreak
from ...interpreter.callees import builtin
from ...values import Interpreter, TextValue, Value, type_name
from .builtin_functions import to_str
from .host_effects import freeze

_SHOW = torch._tensor_str._str


@builtin(_SHOW)
def _text_of_tensor(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The function that `Tensor.__repr__` calls."""
    tensor, contents = args[0], kwargs.get("tensor_contents")
    plain = contents is None or contents.literal is None
    if len(args) > 1 or not plain or tensor.tensor is None or tensor.cls is not torch.Tensor:
        raise GraphBreak("skipped", "_str: it formats tensors")
    if tensor.traced.hides_history:
        raise GraphBreak("unsupported_value", "the text of a view that was made under no_grad: it requires grad")
    return TextValue("tensor(0.)", None, _SHOW, (freeze(interp, tensor),))


@builtin(object.__format__)
def _format_object(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value, spec = args
    if type(spec.literal) is not str:
        raise GraphBreak("unsupported_call", "object.__format__")
    if spec.value:
        raise interp.throw(TypeError, f"unsupported format string passed to {type_name(value.cls)}.__format__")
    return interp.finish_sync(to_str(interp, value))
