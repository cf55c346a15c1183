"""The default dtype where the program has set another one than it was when the frame started.

The rules of the op table, the passes and the compiled code go by the dtype of the start, which is under a guard. So a
call whose result depends on the default dtype is recorded in a form that names the dtype.
"""

from __future__ import annotations

from typing import Any

import torch

from jitpy.ir import Node, ScalarSpec, Spec, TensorSpec
from jitpy.ir import ops as table
from jitpy.ir.ops.promotion import is_differentiable
from jitpy.ir.trees import tree_leaves

from .traced import GraphBuilder, Uncapturable

_aten = torch.ops.aten
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def name_dtype(
    builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call in the form that does not depend on the default dtype."""
    values = list(tree_leaves((args, kwargs)))
    tensors = [v for v in values if type(v) is Node and type(v.spec) is TensorSpec]
    if any(type(v) is torch.dtype for v in values) or any(is_differentiable(t.tensor.dtype) for t in tensors):
        return args, kwargs
    if not isinstance(overload, torch._ops.OpOverload):
        if builder.op(overload).kind == "host" or builder.op(overload).is_random:
            return args, kwargs
        raise _refusal(overload)
    if spec is None:
        spec = table.infer(builder.op(overload), builder.sizes, args, kwargs, builder.state.grad_enabled)
    if builder.state.default_dtype.itemsize < 4 and type(spec) is TensorSpec and spec.dtype.is_complex:
        raise _refusal(overload)  # some ops have complex numbers of 32 bits then, some of 64
    result = _in_default(builder, spec.dtype) if type(spec) is TensorSpec else None
    if not tensors:
        if result is None or all(a.name != "dtype" for a in overload._schema.arguments):
            raise _refusal(overload)
        return args, {**kwargs, "dtype": result}
    if not any(map(_is_inexact_number, values)) and (result is None or not is_differentiable(result)):
        return args, kwargs
    promotes = result is not None and is_differentiable(result) or overload.overloadpacket.__name__ in _COMPARISONS
    is_simple = builder.op(overload).kind == "pointwise" and len(tensors) == sum(type(a) is Node for a in args)
    if not promotes or not is_simple or any(map(_is_inexact_number, kwargs.values())) or \
            overload.overloadpacket is _aten.where:
        raise _refusal(overload)
    return tuple([_converted(builder, a) for a in args]), kwargs


def _converted(builder: GraphBuilder, arg: Any) -> Any:
    if type(arg) is not Node or type(arg.spec) is not TensorSpec:
        return arg
    return builder.emit(_aten._to_copy.default, (arg,), {"dtype": builder.state.default_dtype})


def _refusal(overload: Any) -> Uncapturable:
    return Uncapturable("unsupported_op", f"{overload} in the default dtype that the program has set")


def _is_inexact_number(value: Any) -> bool:
    if type(value) is Node:
        return type(value.spec) is ScalarSpec and value.spec.kind is not int and value.spec.kind is not bool
    return type(value) in (float, complex)


def _in_default(builder: GraphBuilder, dtype: torch.dtype) -> torch.dtype:
    """The result of a dtype that a rule has found by the default dtype of the start, which is that of the process: it
    belongs to other threads, too, and stays as it is while tracing."""
    start, now = builder.state.initial["default_dtype"], builder.state.default_dtype
    if dtype is start:
        return now
    return now.to_complex() if dtype is start.to_complex() else dtype
