"""`out_dtype(op, dtype, *args)`: an operator whose result has a dtype of its own. Products of int8 are exact."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.out_dtype import ALLOWABLE_OPS, out_dtype, out_dtype_fallback

from ...breaks import GraphBreak
from ...interpreter.callees import Args, Kwargs, builtin
from ...values import Interpreter, Value

_PRODUCT = torch.ops.aten.mm.default
#: rows that `_int_mm` takes on a GPU, at least; its other sizes are multiples of 8
_ROWS = 17


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
            body = _on_gpu
        elif all(_holds_bytes(interp, value) for value in args[2:]):
            body = _of_cast_bytes
    return interp.call(interp.context.const_object(body), args, kwargs)


def _holds_bytes(interp: Interpreter, value: Value) -> bool:
    """Whether a tensor is the float copy of one of int8."""
    if value.tensor is None or value.tensor.spec.dtype is not torch.float32:
        return False
    node = interp.builder.node(value.traced)
    return node.op is not None and node.op.is_copy and node.args[0].tensor.dtype is torch.int8


def _on_gpu(op: Any, dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Sizes that the kernel refuses are filled up with zeros."""
    (rows, inner), columns = a.shape, b.shape[1]
    if rows < _ROWS or inner % 8 or columns % 8 or not inner or not columns:
        more = -inner % 8 or 8 * (not inner), -columns % 8 or 8 * (not columns)
        a = F.pad(a, (0, more[0], 0, max(_ROWS - rows, 0)))
        b = F.pad(b, (0, more[1], 0, more[0]))
    return torch._int_mm(a.contiguous(), b)[:rows, :columns]


def _of_cast_bytes(op: Any, dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """float32 would round sums of more than 1024 products."""
    return op(a.double(), b.double()).to(torch.int64).to(dtype)
