"""`torch.Tensor(...)`: of sizes, of data or of another tensor, in the default dtype, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..breaks import GraphBreak
from ..calls import builtin, record
from ..values.base import ConstValue, ListValue, SymValue, TensorValue, TupleValue, Value, const

if TYPE_CHECKING:
    from ..executor import Executor


@builtin(torch.Tensor)
def _tensor(ex: Executor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    state = ex.recorder.state
    if not kwargs and state.device_of_factories in (None, torch.device("cpu")):
        if all(_is_size(arg) for arg in args):
            return record(ex, torch.empty, args or [const(0)], {})
        if len(args) == 1 and isinstance(args[0], TupleValue) and args[0].cls is torch.Size:
            return record(ex, torch.empty, args, {})
        if len(args) == 1 and isinstance(args[0], (ListValue, TupleValue)):
            return record(ex, torch.tensor, args, {"dtype": const(state.default_dtype)})
        if len(args) == 1 and isinstance(args[0], TensorValue):
            spec = args[0].traced.spec
            if spec.dtype == state.default_dtype and spec.device.type == "cpu":
                return record(ex, torch.ops.aten.alias.default, args, {})
    raise GraphBreak("unsupported_call", "torch.Tensor()")


def _is_size(value: Value) -> bool:
    return isinstance(value, SymValue) or isinstance(value, ConstValue) and type(value.value) is int
