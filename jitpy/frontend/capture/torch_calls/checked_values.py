"""Calls that torch refuses for some values of a tensor: the graph looks at the values as eager does, and a call for
which it fails runs as plain Python, for eager's own error."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ....ir.algebra import sympy
from .. import derived_calls
from ..computed_sizes import as_sizes, require_truth
from ..traced import GraphBuilder, TracedScalar, TracedTensor
from .scalars import item

_aten = torch.ops.aten


def require_all(builder: GraphBuilder, condition: TracedTensor, reason: str) -> None:
    """Have the graph fail where an element of a boolean tensor is False.

    A failed assertion on a GPU would end every later call there, so that a number decides on the host."""
    whole = builder.record(_aten.all.default, (condition,), {})
    if condition.spec.device.type == "cpu":
        builder.record(_aten._assert_async.default, (whole,), {})
        return
    truth = item(builder, whole)
    if type(truth) is TracedScalar:
        require_truth(builder, truth, True, reason)


def one_hot(builder: GraphBuilder, *args: Any, **kwargs: Any) -> Any:
    """`one_hot(input, num_classes=-1)`. torch itself compares with all classes while it is traced, without eager's
    look at whether there are that many."""
    given = dict(zip(("input", "num_classes"), args, strict=False)) | kwargs
    classes, count = given.get("input"), as_sizes(builder, given.get("num_classes", -1))
    usable = len(args) < 3 and given.keys() <= {"input", "num_classes"} and isinstance(count, (int, sympy.Expr))
    usable = usable and type(classes) is TracedTensor and classes.dtype is torch.int64 and count not in (0, False, True)
    if not usable or count == -1 and builder.sizes.equal(classes.spec.numel, 0, "one_hot of nothing"):
        return derived_calls.run(builder, torch.nn.functional.one_hot, args, kwargs)
    inside = builder.record(_aten.ge.Scalar, (classes, 0), {})
    if count == -1:
        largest = item(builder, builder.record(_aten.max.default, (classes,), {}))
        count = as_sizes(builder, builder.scalar_op(operator.add, largest, 1))
    else:
        below = builder.record(_aten.lt.Scalar, (classes, count), {})
        inside = builder.record(_aten.logical_and.default, (inside, below), {})
    # on GPUs eager's own look is such an assertion
    builder.record(_aten._assert_async.default, (builder.record(_aten.all.default, (inside,), {}),), {})
    if type(count) is not int:
        builder.sizes.require(sympy.Gt(count, 0), "one_hot of so many classes")
    numbers = builder.record(_aten.arange.default, (count,), {"dtype": torch.int64, "device": classes.spec.device})
    hits = builder.record(_aten.eq.Tensor, (builder.record(_aten.unsqueeze.default, (classes, -1), {}), numbers), {})
    # eager's result is row-major, whatever the classes are
    form = {"dtype": torch.int64, "memory_format": torch.contiguous_format}
    return builder.record(_aten._to_copy.default, (hits,), form)


_OneHot = torch.ops.aten.one_hot

checked_functions: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.one_hot: one_hot, _OneHot: one_hot, _OneHot.default: one_hot,
}
