"""`torch.Tensor(...)`, `torch.FloatTensor(...)` and their like: of sizes, of data, an array or another tensor, in the
default dtype or that of their name, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...breaks import GraphBreak
from ...interpreter.callees import builtin
from ...polyfills.autograd import variable
from ...values import FALSE, NULL, Value, const

if TYPE_CHECKING:
    from ...values import Interpreter


def _constructor(cls: Any, fixed: torch.dtype | None) -> Any:
    """`torch.Tensor` or one of its like, whose dtype is `fixed`."""

    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        state = interp.builder.state
        dtype = fixed or state.default_dtype
        if not kwargs and state.device_of_factories in (None, torch.device("cpu")):
            if all(arg.expr is not None or type(arg.literal) is int for arg in args):
                return interp.record(torch.empty, args or [const(0)], {"dtype": const(dtype)})
            if len(args) == 1:
                found = _of_data(interp, args[0], dtype)
                if found is not None:
                    return found
        raise GraphBreak("unsupported_call", f"torch.{cls.__name__}()")

    return handler


def _of_data(interp: Interpreter, data: Value, dtype: torch.dtype) -> Value | None:
    if data.base in (list, tuple):
        return interp.record(torch.empty if data.cls is torch.Size else torch.tensor, [data], {"dtype": const(dtype)})
    if data.tensor is not None and data.tensor.spec.dtype == dtype and data.tensor.spec.device.type == "cpu":
        return interp.record(torch.ops.aten.alias.default, [data], {})
    if data.is_array and not data.is_scalar:
        from ..arrays.array_operations import tensor_from_data

        return tensor_from_data(interp, data, dtype)
    return None


for _cls, _dtype in ((torch.Tensor, None), *((getattr(torch, name), dtype) for name, dtype in {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "ByteTensor": torch.uint8, "CharTensor": torch.int8, "ShortTensor": torch.int16,
    "IntTensor": torch.int32, "LongTensor": torch.int64, "BoolTensor": torch.bool,
}.items())):
    builtin(_cls)(_constructor(_cls, _dtype))


@builtin(torch.autograd.Variable)
def _make_variable(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """`Variable(data)`, which is a tensor of the same memory with a history of its own."""
    given = {**dict(zip(("data", "requires_grad"), args, strict=False)), **kwargs}
    data, requires_grad = given.get("data", NULL), given.get("requires_grad", FALSE)
    if len(args) > 2 or given.keys() - {"data", "requires_grad"} or data.tensor is None or \
            type(requires_grad.literal) is not bool or \
            requires_grad.value and not data.traced.dtype.is_floating_point:
        raise GraphBreak("unsupported_call", "Variable()")
    return interp.call(interp.context.const_object(variable), [], given)
