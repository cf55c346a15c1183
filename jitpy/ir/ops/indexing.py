"""Joining, padding, and reading by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..op import NotCovered
from ..sizes import SizeEnv
from ..spec import Dim, TensorSpec, contiguous_spec, contiguous_stride
from .data_sizes import count
from .layout import (
    Layout,
    Shape,
    broadcast_shapes,
    combine_layouts,
    is_channels_last_strides,
    is_contiguous,
    is_static,
    less,
    normalize_dim,
)
from .parts import diagonal, select, slice_part
from .promotion import category, result_type, scalar_dtype
from .table import Invalid, declare, define

_INDEX_DTYPES = (torch.int64, torch.int32)


def one_device(specs: Sequence[TensorSpec]) -> torch.device:
    device = specs[0].device
    for spec in specs:
        if spec.device != device:
            raise NotCovered("tensors on several devices")
    return device


def row_major_only(env: SizeEnv, specs: Sequence[TensorSpec]) -> None:
    """Refuse inputs that would make eager choose channels-last for the result."""
    for spec in specs:
        if is_channels_last_strides(env, spec.shape, spec.stride):
            raise NotCovered("channels last")


# -- Joining ------------------------------------------------------------------------------------------------------


def _cat(env: SizeEnv, tensors: Sequence[TensorSpec], dim: int = 0) -> TensorSpec:
    if not tensors or any(len(t.shape) != len(tensors[0].shape) for t in tensors) or not tensors[0].shape:
        raise NotCovered("cat")
    device = one_device(tensors)
    row_major_only(env, tensors)
    first = tensors[0].shape
    axis = normalize_dim(dim, len(first))
    total: Dim = 0
    for tensor in tensors:
        if tensor.shape == (0,):
            raise NotCovered("an empty tensor in cat")
        for i, size in enumerate(tensor.shape):
            if i != axis and not env.equal(size, first[i], "cat"):
                raise Invalid("cat sizes")
        total = total + tensor.shape[axis]
    dtype = tensors[0].dtype if all(t.dtype is tensors[0].dtype for t in tensors) else result_type(list(tensors))
    return contiguous_spec(dtype, (*first[:axis], total, *first[axis + 1 :]), device)


def _stack(env: SizeEnv, tensors: Sequence[TensorSpec], dim: int = 0) -> TensorSpec:
    if not tensors or any(t.dtype is not tensors[0].dtype for t in tensors):
        raise NotCovered("stack")
    first = tensors[0].shape
    if len(first) in (3, 4) and not all(is_contiguous(t.shape, t.stride) for t in tensors):
        raise NotCovered("stack of what may be channels last")
    device = one_device(tensors)
    for tensor in tensors:
        if len(tensor.shape) != len(first) or not all(map(env.equal, tensor.shape, first)):
            raise Invalid("stack sizes")
    axis = normalize_dim(dim, len(first) + 1)
    return contiguous_spec(tensors[0].dtype, (*first[:axis], len(tensors), *first[axis:]), device)


def _stack_parts(b: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    axis = normalize_dim(dim, tensors[0].spec.ndim + 1)
    return b.call("aten.cat.default", [b.call("aten.unsqueeze.default", t, axis) for t in tensors], axis)


define("aten.cat.default", "aten.concat.default", "aten.concatenate.default", infer=_cat)
define("aten.stack.default", infer=_stack, decompose=_stack_parts)


def _padded(env: SizeEnv, x: TensorSpec, pad: Sequence[Any], value: Any = 0) -> TensorSpec:
    if len(pad) % 2 or len(pad) > 2 * len(x.shape) or not is_contiguous(x.shape, x.stride):
        raise NotCovered("pad")
    kind = scalar_dtype(value)
    if kind is None or category(kind) > category(x.dtype):
        raise Invalid("pad value")
    row_major_only(env, (x,))
    shape = list(x.shape)
    for i in range(len(pad) // 2):
        before, after = pad[2 * i], pad[2 * i + 1]
        if type(before) is not int or type(after) is not int or before < 0 or after < 0:
            raise NotCovered("negative or symbolic padding")
        shape[-1 - i] = shape[-1 - i] + before + after
    return contiguous_spec(x.dtype, tuple(shape), x.device)


def _pad(env: SizeEnv, x: TensorSpec, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> TensorSpec:
    if mode != "constant":
        raise NotCovered("padding mode")
    return _padded(env, x, pad, 0 if value is None else value)


def _pad_parts(b: Any, x: Any, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Any:
    if mode == "circular":
        return _around(b, x, pad)
    if mode != "constant":
        raise NotCovered("padding mode")
    return b.call("aten.constant_pad_nd.default", x, list(pad), 0 if value is None else value)


def _around(b: Any, x: Any, pad: Sequence[Any]) -> Any:
    """Axis by axis, from the last one on, what lies at the other end."""
    if not is_static((*x.spec.shape, *pad)) or min(pad) < 0 or not any(pad) or \
            not is_contiguous(x.spec.shape, x.spec.stride):
        raise NotCovered("circular padding")
    for i in range(len(pad) // 2):
        axis, before, after = x.spec.ndim - 1 - i, pad[2 * i], pad[2 * i + 1]
        size = x.spec.shape[axis]
        parts = [b.call("aten.slice.Tensor", x, axis, start, start + length)
                 for start, length in ((size - before, before), (0, size), (0, after)) if length]
        x = b.call("aten.cat.default", parts, axis) if len(parts) > 1 else x
    return x


define("aten.constant_pad_nd.default", infer=_padded)
define("aten.pad.default", infer=_pad, decompose=_pad_parts)


# -- Reading by index ---------------------------------------------------------------------------------------------


def _gather(env: SizeEnv, x: TensorSpec, dim: int, index: TensorSpec, *, sparse_grad: bool = False) -> TensorSpec:
    axis = normalize_dim(dim, len(x.shape))
    if not x.shape or len(index.shape) != len(x.shape) or index.dtype is not torch.int64:
        raise Invalid("gather")
    for i, size in enumerate(index.shape):
        if i != axis and less(env, x.shape[i], size):
            raise Invalid("gather sizes")
    return contiguous_spec(x.dtype, index.shape, one_device((x, index)))


def _index_select(env: SizeEnv, x: TensorSpec, dim: int, index: TensorSpec) -> TensorSpec:
    axis = normalize_dim(dim, len(x.shape))
    if not x.shape or len(index.shape) != 1 or index.dtype not in _INDEX_DTYPES:
        raise Invalid("index_select")
    return contiguous_spec(x.dtype, (*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]), one_device((x, index)))


def _embedding(env: SizeEnv, weight: TensorSpec, indices: TensorSpec, *rest: Any) -> TensorSpec:
    if len(weight.shape) != 2 or indices.dtype not in _INDEX_DTYPES:
        raise Invalid("embedding")
    return contiguous_spec(weight.dtype, (*indices.shape, weight.shape[1]), one_device((weight, indices)))


define("aten.gather.default", infer=_gather)
define("aten.index_select.default", infer=_index_select)
define("aten.embedding.default", infer=_embedding)


def _index(env: SizeEnv, x: TensorSpec, indices: Sequence[TensorSpec | None]) -> TensorSpec:
    """Indexing by integer tensors and masks, None where an axis is taken whole."""
    if any(i is not None and i.dtype is torch.bool for i in indices):
        indices = _without_masks(env, x, indices)
    tensors = [i for i in indices if i is not None]
    if not tensors or len(indices) > len(x.shape) or any(i.dtype not in _INDEX_DTYPES for i in tensors):
        raise NotCovered("index")
    for tensor in tensors:
        if tensor.device != x.device and (tensor.device.type != "cpu" or tensor.shape):
            raise NotCovered("tensors on several devices")
    full = list(indices) + [None] * (len(x.shape) - len(indices))
    taken = [a for a, i in enumerate(full) if i is not None]
    shape, stride, lead = list(x.shape), list(x.stride), taken[0]
    if taken != list(range(taken[0], taken[-1] + 1)):
        # Indexed axes that are apart come first in the result.
        order = taken + [a for a in range(len(shape)) if a not in taken]
        shape, stride, lead = [shape[a] for a in order], [stride[a] for a in order], 0
    common = broadcast_shapes(env, [t.shape for t in tensors])
    if any(type(shape[lead + k]) is int and shape[lead + k] == 0 for k in range(len(taken))):
        raise NotCovered("an index into an axis without elements")
    tail = len(shape) - lead - len(taken)
    result: Shape = (*shape[:lead], *common, *shape[lead + len(taken) :])
    layouts: list[Layout] = [(result, (*stride[:lead], *(0 for _ in common), *stride[lead + len(taken) :]))]
    for tensor in tensors:
        own = tensor.shape
        steps = tuple(
            0 if size != common[len(common) - len(own) + i] else step
            for i, (size, step) in enumerate(zip(own, tensor.stride, strict=True))
        )
        missing = len(common) - len(own)
        inner = (*(1 for _ in range(missing)), *own), (*(0 for _ in range(missing)), *steps)
        layouts.append((inner[0] + (1,) * tail, inner[1] + (0,) * tail))
    return TensorSpec(x.dtype, result, combine_layouts(env, tuple(layouts))[1], x.device)


def _without_masks(
    env: SizeEnv, x: TensorSpec, indices: Sequence[TensorSpec | None]
) -> list[TensorSpec | None]:
    """Each mask as the positions that it selects, one tensor for each of its axes."""
    result: list[TensorSpec | None] = []
    for index in indices:
        if index is None or index.dtype is not torch.bool:
            result.append(index)
            continue
        axes = x.shape[len(result) : len(result) + len(index.shape)]
        if not index.shape or index.device != x.device or len(axes) < len(index.shape):
            raise NotCovered("a mask")
        if not all(map(env.equal, index.shape, axes)):
            raise Invalid("the shape of a mask")
        found = count(env, index.numel)
        result += [TensorSpec(torch.int64, (found,), (1,), x.device)] * len(index.shape)
    return result


def _has_mask(args: Sequence[Any]) -> bool:
    return any(i is not None and i.dtype is torch.bool for i in args[1])


define("aten.index.Tensor", infer=_index, sizes_by_data=_has_mask)


def _one_hot(env: SizeEnv, x: TensorSpec, classes: int = -1) -> TensorSpec:
    if x.dtype is not torch.int64 or type(classes) is not int or classes < 1:
        raise NotCovered("one_hot")
    return contiguous_spec(torch.int64, (*x.shape, classes), x.device)


def _one_hot_parts(b: Any, x: Any, classes: int = -1) -> Any:
    numbers = b.call("aten.arange.default", classes, device=x.spec.device)
    hits = b.call("aten.eq.Tensor", b.call("aten.unsqueeze.default", x, -1), numbers)
    return b.call("aten.to.dtype", hits, torch.int64)


define("aten.one_hot.default", infer=_one_hot, decompose=_one_hot_parts, differentiable=False)


# -- Writing into a part: what functionalised in-place operations on views become ---------------------------------


def _scatter_part(part: Any) -> Any:
    """`x` with the part that a view rule selects replaced by `source`."""

    def infer(env: SizeEnv, x: TensorSpec, source: TensorSpec, *args: Any) -> TensorSpec:
        wanted = part(env, x, *args).shape
        if len(wanted) != len(source.shape) or not all(map(env.equal, wanted, source.shape)):
            raise Invalid("sizes")
        if not is_contiguous(x.shape, x.stride) or source.dtype is not x.dtype or source.device != x.device:
            raise NotCovered("strides are kept, dtypes must agree")
        return TensorSpec(x.dtype, x.shape, x.stride, x.device)

    return infer


def _index_add(
    env: SizeEnv, x: TensorSpec, dim: int, index: TensorSpec, source: TensorSpec, *, alpha: Any = 1
) -> TensorSpec:
    """The meta kernel takes sources of other sizes, which kernels refuse."""
    if not x.shape or len(index.shape) != 1 or len(source.shape) != len(x.shape) or source.dtype is not x.dtype:
        raise Invalid("operands")
    axis = normalize_dim(dim, len(x.shape))
    wanted = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if not all(map(env.equal, wanted, source.shape)):
        raise Invalid("sizes")
    if not is_contiguous(x.shape, x.stride):
        raise NotCovered("strides")
    return TensorSpec(x.dtype, x.shape, contiguous_stride(x.shape), x.device)


def _index_put(env: SizeEnv, x: TensorSpec, indices: Sequence[TensorSpec | None], values: TensorSpec,
               *rest: Any) -> TensorSpec:
    """The meta kernel takes values of other sizes, which kernels refuse."""
    if _has_mask((x, indices)):
        raise NotCovered("masks")
    wanted = _index(env, x, indices).shape
    sizes = values.shape
    if len(sizes) > len(wanted):
        raise Invalid("sizes")
    for size, other in zip(reversed(sizes), reversed(wanted), strict=False):
        if not (type(size) is int and size == 1) and not env.equal(size, other) and not env.equal(size, 1):
            raise Invalid("sizes")
    if not is_contiguous(x.shape, x.stride) or values.dtype is not x.dtype or values.device != x.device:
        raise NotCovered("strides are kept, dtypes must agree")
    return TensorSpec(x.dtype, x.shape, contiguous_stride(x.shape), x.device)


define("aten.index_add.default", infer=_index_add)
define("aten.index_put.default", infer=_index_put)
define("aten.select_scatter.default", infer=_scatter_part(select))
define("aten.slice_scatter.default", infer=_scatter_part(slice_part))
define("aten.diagonal_scatter.default", infer=_scatter_part(diagonal))

# kernels of torch's that put elements into a copy, or into the operand itself
for _name in ("index_put.default", "index_copy.default", "index_add.default", "index_fill.int_Scalar",
              "index_fill.int_Tensor", "scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two",
              "index_reduce.default", "masked_scatter.default"):
    _base, _, _overload = _name.partition(".")
    declare(_name, in_place_call=getattr(getattr(torch.ops.aten, f"{_base}_"), _overload))
declare("select_scatter.default", "slice_scatter.default", "diagonal_scatter.default", copies_memory=True)
