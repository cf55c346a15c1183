"""`out_dtype(op, dtype, *args)`: an operator whose result has a dtype of its own. Products of int8 are exact."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.out_dtype import ALLOWABLE_OPS, out_dtype, out_dtype_fallback

from ....ir.ops.matmul import INT8_PRODUCT
from ...breaks import GraphBreak
from ...interpreter.callees import Args, Kwargs, builtin
from ...values import Interpreter, Value

_PRODUCT = torch.ops.aten.mm.default


@builtin(out_dtype)
def _out_dtype(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    op = args[0].opaque if args else None
    if op not in ALLOWABLE_OPS or len(args) < 2 or kwargs or \
            any(value.tensor is not None and value.tensor.spec.requires_grad for value in args):
        raise GraphBreak("higher_order", "out_dtype with arguments that it refuses")
    body = out_dtype_fallback
    if op is _PRODUCT and args[1].payload(interp) is torch.int32 and len(args) == 4:
        a, b = (value.tensor for value in args[2:])
        if a is not None and b is not None and a.spec.dtype is b.spec.dtype is torch.int8 and \
                a.spec.device.type == b.spec.device.type == "cuda":
            node = interp.builder.emit(INT8_PRODUCT, tuple(interp.builder.node(value.traced) for value in args[2:]))
            return interp.from_payload(interp.builder.results(node, node.spec))
        if all(_holds_bytes(interp, value) for value in args[2:]):
            body = _of_cast_bytes
    return interp.call(interp.context.const_object(body), args, kwargs)


def _holds_bytes(interp: Interpreter, value: Value) -> bool:
    """Whether a tensor is the float copy of one of int8."""
    if value.tensor is None or value.tensor.spec.dtype is not torch.float32:
        return False
    node = interp.builder.node(value.traced)
    return node.op is not None and node.op.is_copy and node.args[0].tensor.dtype is torch.int8


def _of_cast_bytes(op: Any, dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """float32 would round sums of more than 1024 products."""
    return op(a.double(), b.double()).to(torch.int64).to(dtype)
