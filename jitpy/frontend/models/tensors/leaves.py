"""`requires_grad_()` and `.requires_grad = ...`: histories that begin, or end, at a tensor while tracing.

A tensor from outside gets its flag when the graph has run, as all changes of objects do. In the graph, one that is told
not to require grad is seen through `detach()` from then on; one that is told to require grad is an assumption that no
history from it leaves the graph (`capture/speculation.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ....ir.ops.promotion import is_differentiable
from ...breaks import GraphBreak
from ...capture.inputs import is_leaf
from ...capture.traced import Uncapturable
from ...interpreter.callees import builtin
from ...interpreter.calls import recording_whole
from ...values import NULL, TensorValue, Value, const
from ...values.tensor import sets_attribute

if TYPE_CHECKING:
    from ...values import Interpreter


#: Eager's error for tensors that are no leaves, and, where the flag is False, besides.
_NO_LEAF = "you can only change requires_grad flags of leaf variables."
_DETACH = ("If you want to use a computed variable in a subgraph that doesn't require differentiation use "
           "var_no_grad = var.detach().")


@builtin(torch.Tensor._make_subclass)
def _make_subclass(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The function that `torch.nn.Parameter` makes itself with."""
    if kwargs or len(args) != 3 or args[1].tensor is None:
        raise GraphBreak("unsupported_call", "Tensor._make_subclass()")
    (cls, data, flag), builder = args, interp.builder
    if cls.opaque is not torch.nn.Parameter or type(flag.literal) is not bool:
        raise GraphBreak("unsupported_call", "Tensor._make_subclass() of a class other than torch.nn.Parameter")
    if flag.value and not is_differentiable(data.traced.dtype):
        raise GraphBreak("exception", "a parameter of integers that requires grad")
    with recording_whole(interp, "torch.nn.Parameter()"):
        return interp.from_payload(builder.parameters.make(data.traced, flag.value), torch.nn.Parameter)


@builtin(torch.Tensor.requires_grad_)
def _requires_grad_(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("self", "requires_grad"), args, strict=False)) | kwargs
    value, flag = given.pop("self", NULL), given.pop("requires_grad", const(True))
    if given or len(args) > 2 or value.tensor is None:
        raise GraphBreak("exception", "arguments of requires_grad_()")
    _set_requires_grad(interp, value, flag)
    return value


@sets_attribute("requires_grad")
def store_requires_grad(interp: Interpreter, value: TensorValue, flag: Value) -> None:
    """`value.requires_grad = flag`, which, unlike the method, is refused by all that is no leaf."""
    if not isinstance(flag.literal, bool):
        raise GraphBreak("unsupported_op", "requires_grad = ... with a flag that is not known while tracing")
    with interp.recording("requires_grad"):
        if interp.builder.attribute(value.traced,
                                    "requires_grad") and not interp.builder.attribute(value.traced, "is_leaf"):
            raise Uncapturable("exception", "the flag of what is no leaf")
    _set_requires_grad(interp, value, flag)


def _set_requires_grad(interp: Interpreter, value: TensorValue, flag: Value) -> None:
    if not isinstance(flag.literal, bool):
        raise GraphBreak("unsupported_op", "requires_grad_() with a flag that is not known while tracing")
    with interp.recording("requires_grad_()"):
        _turn(interp, value, flag.value)


def _turn(interp: Interpreter, value: TensorValue, flag: bool) -> None:
    builder, tensor = interp.builder, value.traced
    if value.overloads:
        raise Uncapturable("unsupported_op", f"requires_grad_() of a {value.cls.__name__}")
    if tensor.hides_history:
        raise Uncapturable("unsupported_op", "requires_grad_() of a view that was made under no_grad")
    if builder.attribute(tensor, "requires_grad") == flag:
        return
    if flag and not is_differentiable(tensor.dtype):
        raise Uncapturable("exception", "integers that are to require grad")
    if tensor in builder.parameters.data:
        builder.parameters.turn(tensor, flag)
        return
    if value.source is None or value.real is None:  # made here
        if not flag:
            raise Uncapturable("unsupported_op", "requires_grad_(False) on a tensor that was made inside")
        builder.speculation.begin(tensor)
        return
    if not builder.attribute(tensor, "is_leaf"):
        raise Uncapturable("unsupported_op", "requires_grad_(False) on a tensor that is no leaf")
    builder.guards.add(value.source, "python", is_leaf, "requires_grad was changed")
    if flag:
        builder.speculation.turn_on(tensor)
    else:
        builder.speculation.turn_off(tensor)
    value.flag = flag
    interp.context.touch(value)
