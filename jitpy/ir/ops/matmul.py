"""Matrix products. Results are fresh row-major tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..sizes import SizeEnv
from ..spec import TensorSpec, contiguous_spec, prod
from .layout import Shape, broadcast_shapes
from .table import Invalid, declare, define


def _same_kind(first: TensorSpec, *others: TensorSpec | None) -> TensorSpec:
    """The first operand, if all agree in dtype and device."""
    for other in others:
        if other is not None and (other.dtype is not first.dtype or other.device != first.device):
            raise Invalid("operands of several dtypes or devices")
    if first.dtype is torch.bool:
        raise Invalid("matrix product of bool")
    return first


def _fresh(x: TensorSpec, shape: Shape) -> TensorSpec:
    return contiguous_spec(x.dtype, shape, x.device)


def _mm(env: SizeEnv, a: TensorSpec, b: TensorSpec) -> TensorSpec:
    _same_kind(a, b)
    if len(a.shape) != 2 or len(b.shape) != 2 or not env.equal(a.shape[1], b.shape[0], "mm"):
        raise Invalid("mm shapes")
    return _fresh(a, (a.shape[0], b.shape[1]))


def _bmm(env: SizeEnv, a: TensorSpec, b: TensorSpec) -> TensorSpec:
    _same_kind(a, b)
    if len(a.shape) != 3 or len(b.shape) != 3:
        raise Invalid("bmm shapes")
    if not env.equal(a.shape[0], b.shape[0], "bmm") or not env.equal(a.shape[2], b.shape[1], "bmm"):
        raise Invalid("bmm shapes")
    return _fresh(a, (a.shape[0], a.shape[1], b.shape[2]))


def _added(env: SizeEnv, bias: TensorSpec, result: TensorSpec) -> TensorSpec:
    _same_kind(result, bias)
    if len(bias.shape) > len(result.shape) or broadcast_shapes(env, (bias.shape, result.shape)) != result.shape:
        raise Invalid("bias does not broadcast")
    return result


def _addmm(
    env: SizeEnv, bias: TensorSpec, a: TensorSpec, b: TensorSpec, *, beta: Any = 1, alpha: Any = 1
) -> TensorSpec:
    return _added(env, bias, _mm(env, a, b))


def _baddbmm(
    env: SizeEnv, bias: TensorSpec, a: TensorSpec, b: TensorSpec, *, beta: Any = 1, alpha: Any = 1
) -> TensorSpec:
    return _added(env, bias, _bmm(env, a, b))


def _linear(env: SizeEnv, x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None) -> TensorSpec:
    _same_kind(x, weight, bias)
    if not x.shape or len(weight.shape) != 2 or not env.equal(x.shape[-1], weight.shape[1], "linear"):
        raise Invalid("linear shapes")
    if bias is not None and (len(bias.shape) != 1 or not env.equal(bias.shape[0], weight.shape[0], "linear")):
        raise Invalid("linear bias")
    return _fresh(x, (*x.shape[:-1], weight.shape[0]))


def _matmul(env: SizeEnv, a: TensorSpec, b: TensorSpec) -> TensorSpec:
    _same_kind(a, b)
    if not a.shape or not b.shape:
        raise Invalid("matmul of a 0-dim tensor")
    inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if not env.equal(a.shape[-1], inner, "matmul"):
        raise Invalid("matmul shapes")
    batch: Shape = ()
    if len(a.shape) > 2 or len(b.shape) > 2:
        batch = broadcast_shapes(env, (a.shape[:-2], b.shape[:-2]))
    rows = (a.shape[-2],) if len(a.shape) > 1 else ()
    columns = (b.shape[-1],) if len(b.shape) > 1 else ()
    return _fresh(a, (*batch, *rows, *columns))


def _matmul_parts(b: Any, x: Any, y: Any) -> Any:
    """As mm or bmm between reshapes."""
    left, right = x.spec.shape, y.spec.shape
    result = _matmul(b.env, x.spec, y.spec).shape
    if len(left) == 1:
        x = b.call("aten.unsqueeze.default", x, 0)
    if len(right) == 1:
        y = b.call("aten.unsqueeze.default", y, 1)
    left, right = x.spec.shape, y.spec.shape
    if len(right) == 2:
        if len(left) > 2:
            x = b.call("aten.reshape.default", x, [prod(left[:-1]), left[-1]])
        product = b.call("aten.mm.default", x, y)
    else:
        batch = broadcast_shapes(b.env, (left[:-2], right[:-2]))
        product = b.call("aten.bmm.default", _batched(b, x, batch), _batched(b, y, batch))
    return product if product.spec.shape == result else b.call("aten.reshape.default", product, list(result))


def _batched(b: Any, x: Any, batch: Shape) -> Any:
    """`x` with its leading axes broadcast to `batch` and flattened into one."""
    shape = (*batch, *x.spec.shape[-2:])
    if x.spec.shape != shape:
        x = b.call("aten.expand.default", x, list(shape))
    return x if len(batch) == 1 else b.call("aten.reshape.default", x, [prod(batch), *shape[-2:]])


def _outer_parts(b: Any, x: Any, y: Any) -> Any:
    return b.call("aten.mul.Tensor", b.call("aten.unsqueeze.default", x, 1), y)


#: Rows that `_int_mm` takes on a GPU, at least; its other sizes are multiples of 8.
_ROWS = 17
INT8_PRODUCT = "ir.int8_mm"


def _int8_mm(env: SizeEnv, a: TensorSpec, b: TensorSpec) -> TensorSpec:
    return _mm(env, a, b).with_(dtype=torch.int32)


def int8_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sums in int32 on a GPU. Sizes that the library refuses are filled up with zeros."""
    (rows, inner), columns = a.shape, b.shape[1]
    more, wider = -inner % 8 or 8 * (not inner), -columns % 8 or 8 * (not columns)
    if more or rows < _ROWS:
        a = F.pad(a, (0, more, 0, max(_ROWS - rows, 0)))
    if more or wider:
        b = F.pad(b, (0, wider, 0, more))
    return torch._int_mm(a.contiguous(), b)[:rows, :columns].contiguous()


define(INT8_PRODUCT, target=int8_mm, infer=_int8_mm, aliasing=lambda *args, **kwargs: "copy", differentiable=False,
       is_row_major=True)
define("aten.mm.default", kind="matmul", infer=_mm)
define("aten.bmm.default", kind="matmul", infer=_bmm)
define("aten.addmm.default", kind="matmul", infer=_addmm)
define("aten.baddbmm.default", kind="matmul", infer=_baddbmm)
define("aten.mv.default", "aten.dot.default", kind="matmul")
define("aten.linear.default", kind="matmul", infer=_linear)
define("aten.matmul.default", kind="matmul", infer=_matmul, decompose=_matmul_parts)
define("aten.outer.default", decompose=_outer_parts)

for _name in ("mm", "bmm", "addmm", "baddbmm"):
    declare(_name, out_call=getattr(torch.ops.aten, _name).out, is_row_major=True)
declare("linear.default", is_row_major=True)
declare("_scaled_mm.default", is_row_major=True, takes_float8=True)
