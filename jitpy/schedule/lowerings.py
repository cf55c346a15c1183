"""Ops that read at computed places, or from several: gathers, concatenation, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ir.op import NotCovered
from ..ir.ops.layout import normalize_dim
from ..ir.ops.philox import DRAWN, MASK, UNIFORM, uniform_ends
from ..ir.spec import Dim, contiguous_stride
from .expr import BOOL, FLOAT, INT, Expr, index_expressions, walk
from .index import Index, flatten, of
from .lower import Lowering, lowering
from .values import IndexTuple, Trace, Value


def position(trace: Trace, ids: Value, index: IndexTuple, size: Dim, wrap: bool = False) -> Index:
    """The element of an index tensor as an index, checked against `size`; negative ones count from the end with
    `wrap`."""
    e = trace.e
    value = e.cast(trace.read(ids, index), INT)
    if wrap:
        value = e.where(e.lt(value, 0), e.add(value, e.size(size)), value)
    operands = (value, e.size(size)) if trace.mask is None else (value, e.size(size), trace.mask)
    return of(e.make("check", operands, INT))


def read_at(trace: Trace, x: Value, index: IndexTuple) -> Expr:
    """An element of `x` at an index with checked positions. Where `x` is the same everywhere, the element would not
    depend on these, and nobody would make the checks."""
    result = trace.read(x, index)
    used = set(walk([result]))
    for check in walk(expr for one in index for expr in index_expressions(one)):
        if check.op == "check" and check not in used:
            result = trace.e.make("behind", (result, check), result.dtype)
    return result


def require_integers(ids: Value) -> None:
    if ids.dtype not in (torch.int64, torch.int32):
        raise NotCovered("index dtype")


@lowering("embedding")
def embedding(low: Lowering, node: Any, weight: Value, ids: Value, *args: Any, **kwargs: Any) -> Value:
    require_integers(ids)
    return low.pointwise(
        node.tensor.shape,
        node.tensor.dtype,
        lambda trace, index: read_at(trace, weight, (position(trace, ids, index[:-1], weight.shape[0]), index[-1])),
    )


@lowering(MASK)
def dropout_mask(low: Lowering, node: Any, state: Value, shape: tuple[int, ...], stride: tuple[int, ...], keep: float,
                 threads: int, vector: int, skipped: Dim) -> Value:
    if low.scatters != "unordered":
        raise NotCovered("kernels on the CPU draw no numbers")
    strides = stride if vector > 1 else contiguous_stride(shape)

    def body(trace: Trace, index: IndexTuple) -> Expr:
        e = trace.e
        seed, offset = trace.read(state, (of(0),)), trace.read(state, (of(1),))
        at = e.index(flatten(index, strides))
        return e.make("drawn_below", (at, seed, e.add(offset, e.size(skipped))), BOOL, (threads, vector, keep))

    return low.pointwise(shape, torch.bool, body)


@lowering(DRAWN)
def drawn(low: Lowering, node: Any, state: Value, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype,
          kind: str, scale: float, shift: float, threads: int, skipped: Dim) -> Value:
    if low.scatters != "unordered":
        raise NotCovered("kernels on the CPU draw no numbers")

    def body(trace: Trace, index: IndexTuple) -> Expr:
        e = trace.e
        seed, offset = trace.read(state, (of(0),)), trace.read(state, (of(1),))
        operands = (e.index(flatten(index, stride)), seed, e.add(offset, e.size(skipped)))
        value = e.make(f"drawn_{kind}", operands, FLOAT, (threads, scale, shift))
        if dtype is not torch.float32:  # as eager rounds it: then numbers are the same to the bit
            value = e.round_to(value, dtype)
        if kind == UNIFORM:
            low, high = uniform_ends(scale, shift, dtype)
            value = e.where(e.eq(value, high), low, value)
        return value

    return low.pointwise(shape, dtype, body)


@lowering("index_select")
def index_select(low: Lowering, node: Any, x: Value, dim: int, ids: Value) -> Value:
    require_integers(ids)
    if not x.shape:
        raise NotCovered("0-dim operand")
    axis = normalize_dim(dim, len(x.shape))

    def body(trace: Trace, index: IndexTuple) -> Expr:
        place = position(trace, ids, (index[axis],) if ids.shape else (), x.shape[axis])
        return read_at(trace, x, (*index[:axis], place, *index[axis + 1 :]))

    return low.pointwise(node.tensor.shape, node.tensor.dtype, body)


@lowering("gather")
def gather(low: Lowering, node: Any, x: Value, dim: int, ids: Value, *, sparse_grad: bool = False) -> Value:
    require_integers(ids)
    if not x.shape or not ids.shape:
        raise NotCovered("0-dim operand")
    axis = normalize_dim(dim, len(x.shape))
    return low.pointwise(
        node.tensor.shape,
        node.tensor.dtype,
        lambda trace, index: read_at(
            trace, x, (*index[:axis], position(trace, ids, index, x.shape[axis]), *index[axis + 1 :])
        ),
    )


@lowering("index.Tensor")
def index_tensor(low: Lowering, node: Any, x: Value, indices: Sequence[Value | None]) -> Value:
    by_axis = {k: ids for k, ids in enumerate(indices) if ids is not None}
    given = list(by_axis)
    for ids in by_axis.values():
        require_integers(ids)
    count = max((len(ids.shape) for ids in by_axis.values()), default=0)
    shape = node.tensor.shape
    together = given == list(range(given[0], given[-1] + 1))
    first = given[0] if together else 0
    block = shape[first : first + count]
    expanded = {k: low.expand(ids, block) for k, ids in by_axis.items()}

    def body(trace: Trace, index: IndexTuple) -> Expr:
        at = index[first : first + count]
        rest = iter(index[:first] + index[first + count :])
        return read_at(
            trace,
            x,
            tuple(
                position(trace, expanded[k], at, x.shape[k], wrap=True) if k in expanded else next(rest)
                for k in range(len(x.shape))
            ),
        )

    return low.pointwise(shape, node.tensor.dtype, body)


@lowering("cat", "concat", "concatenate")
def cat(low: Lowering, node: Any, tensors: Sequence[Value], dim: int = 0) -> Value:
    shape = node.tensor.shape
    axis = normalize_dim(dim, len(shape))
    if any(len(x.shape) != len(shape) for x in tensors):
        raise NotCovered("legacy empty tensors")
    if len(tensors) > 16:
        raise NotCovered("more than 16 tensors")
    return _joined(low, tensors, shape, node.tensor.dtype, axis)


def _joined(low: Lowering, tensors: Sequence[Value], shape: Sequence[Dim], dtype: torch.dtype, axis: int) -> Value:
    ends: list[Dim] = []
    end: Dim = 0
    for x in tensors:
        end = end + x.shape[axis]
        ends.append(end)
    parts = [low.convert(x, dtype) for x in tensors]

    def body(trace: Trace, index: IndexTuple) -> Expr:
        e = trace.e
        at = e.index(index[axis])
        result: Expr | None = None
        for k in range(len(parts) - 1, -1, -1):
            start = ends[k - 1] if k else 0
            inside = None
            if k:
                inside = e.ge(at, e.size(start))
            if k < len(parts) - 1:
                below = e.lt(at, e.size(ends[k]))
                inside = below if inside is None else e.logical_and(inside, below)
            part_index = (*index[:axis], index[axis] - start, *index[axis + 1 :])
            if inside is None:
                return trace.read(parts[k], part_index)
            part = trace.masked(inside, lambda: trace.read(parts[k], part_index))  # noqa: B023  (called at once)
            result = part if result is None else e.where(e.lt(at, e.size(ends[k])), part, result)
        assert result is not None
        return result

    return low.pointwise(shape, dtype, body)


@lowering("constant_pad_nd")
def constant_pad(low: Lowering, node: Any, x: Value, pad: Sequence[Any], value: Any = 0) -> Value:
    if isinstance(value, (Value, complex)):
        raise NotCovered("a padding value that is complex or known only at run time")
    ndim = len(x.shape)
    before = [0] * ndim
    after = [0] * ndim
    for k in range(len(pad) // 2):
        before[ndim - 1 - k], after[ndim - 1 - k] = pad[2 * k], pad[2 * k + 1]

    def body(trace: Trace, index: IndexTuple) -> Expr:
        e = trace.e
        inside = e.const(True, torch.bool)
        for k in range(ndim):
            if not (isinstance(before[k], int) and before[k] <= 0):
                inside = e.logical_and(inside, e.ge(e.index(index[k]), e.size(before[k])))
            if not (isinstance(after[k], int) and after[k] <= 0):
                inside = e.logical_and(inside, e.lt(e.index(index[k]), e.size(x.shape[k] + before[k])))
        moved = tuple(i - b for i, b in zip(index, before, strict=True))
        element = trace.masked(inside, lambda: trace.read(x, moved))
        return e.where(inside, element, e.size(value, element.dtype))

    return low.pointwise(node.tensor.shape, node.tensor.dtype, body)
