"""Shapes and strides of results: broadcasting, eager's stride choice for elementwise ops, clones.

Eager lets the operands' strides decide the strides of an elementwise result; these functions follow the same steps.
Results for static sizes are remembered, so that a repeated question costs one dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..algebra import sympy
from ..op import NotCovered
from ..sizes import SizeEnv, simplify
from ..spec import Dim, TensorSpec, contiguous_stride
from .table import Invalid

Shape = tuple[Dim, ...]
Layout = tuple[Shape, Shape]

_BROADCAST: dict[tuple[Layout, ...], Layout] = {}
_LIMIT = 8192


def is_static(values: Sequence[Any]) -> bool:
    """Whether every size is a plain int."""
    for value in values:
        if type(value) is not int:
            return False
    return True


def less(env: SizeEnv, a: Dim, b: Dim) -> bool:
    if type(a) is int and type(b) is int:
        return a < b
    return decide(env, sympy.Lt(a, b), "strides of the result")


def stride_less(env: SizeEnv, a: Dim, b: Dim) -> bool:
    """`a < b`, asked to order axes: that matters to the strides of axes with one element or none at most."""
    if env.has_unbacked and (env.is_unbacked(a) or env.is_unbacked(b)):
        with env.generic():
            return theorem(env, sympy.Lt(a, b)) is True
    return less(env, a, b)


def decide(env: SizeEnv, relation: sympy.Basic, reason: str) -> bool:
    """`env.decide`, without recording what follows from a quotient (`s1 < s0*s1` for sizes above 1)."""
    known = theorem(env, relation)
    return env.decide(relation, reason) if known is None else known


def theorem(env: SizeEnv, relation: sympy.Basic) -> bool | None:
    """The answer where ranges, or the range of the quotient of both sides, settle the question; else None."""
    known = env.known(relation)
    if known is not None or not isinstance(relation, sympy.core.relational.Relational):
        return known
    left, right = relation.lhs, relation.rhs
    if env.bounds(left)[0] <= 0 or env.bounds(right)[0] <= 0:
        return None
    if env.bounds(right / left)[0] > 1:
        order = -1
    elif env.bounds(left / right)[0] > 1:
        order = 1
    else:
        return None
    if isinstance(relation, (sympy.Lt, sympy.Le)):
        return order < 0
    if isinstance(relation, (sympy.Gt, sympy.Ge)):
        return order > 0
    return isinstance(relation, sympy.Ne)


def is_one(env: SizeEnv, size: Dim) -> bool:
    """Whether a size is 1 (a question that broadcasting asks)."""
    if type(size) is int:
        return size == 1
    return env.equal(size, 1, "broadcasting")


def broadcast_shapes(env: SizeEnv, shapes: Sequence[Shape]) -> Shape:
    """The common shape. Raises NotCovered where the shapes do not match (eager's error comes from the derived rule)."""
    result: Shape = shapes[0]
    for shape in shapes[1:]:
        if shape == result:
            continue
        if len(shape) > len(result):
            shape, result = result, shape
        lead = len(result) - len(shape)
        sizes = list(result)
        for i, size in enumerate(shape):
            other = sizes[lead + i]
            if other is size or other == size:
                continue
            if env.is_unbacked(size) or env.is_unbacked(other):
                # a size that data decides is taken for the other one, unless that is 1
                if type(size) is int and size == 1:
                    continue
                if type(other) is int and other == 1:
                    sizes[lead + i] = size
                elif not env.equal(size, other, "broadcasting"):
                    raise Invalid("shapes do not broadcast")
                elif not env.is_unbacked(size):
                    sizes[lead + i] = size
                continue
            if is_one(env, size):
                continue
            if is_one(env, other):
                sizes[lead + i] = size
            elif not env.equal(size, other, "broadcasting"):
                raise Invalid("shapes do not broadcast")
            elif type(size) is int:
                sizes[lead + i] = size
        result = tuple(sizes)
    return result


def elementwise_layout(
    env: SizeEnv, operands: Sequence[TensorSpec | None], common: torch.dtype | None = None
) -> Layout:
    """Shape and strides of an elementwise result.

    `operands` are in calling order; None stands for a Python number. `common` is the dtype to which eager casts
    operands before the loop (on the CPU that makes a temporary, whose strides then count).
    """
    layouts = []
    for operand in operands:
        if operand is None:
            layouts.append(_SCALAR)
        elif common is not None and operand.dtype is not common and operand.device.type == "cpu" and operand.shape:
            layouts.append((operand.shape, preserved_stride(env, operand.shape, operand.stride)))
        else:
            layouts.append((operand.shape, operand.stride))
    return combine_layouts(env, tuple(layouts))


_SCALAR: Layout = ((), ())


def combine_layouts(env: SizeEnv, key: tuple[Layout, ...]) -> Layout:
    """As `elementwise_layout`, from shapes and strides."""
    found = _BROADCAST.get(key)
    if found is not None:
        return found
    shape = broadcast_shapes(env, [layout[0] for layout in key])
    result = shape, _elementwise_stride(env, shape, key)
    if all(is_static(s) and is_static(t) for s, t in key):
        if len(_BROADCAST) >= _LIMIT:
            _BROADCAST.clear()
        _BROADCAST[key] = result
    return result


def _elementwise_stride(env: SizeEnv, shape: Shape, key: tuple[Layout, ...]) -> Shape:
    if all(layout[0] == shape for layout in key):
        if all(is_contiguous(s, t) for s, t in key):
            return contiguous_stride(shape)
        if len(shape) in (4, 5) and all(is_channels_last(s, t) for s, t in key):
            return channels_last_stride(shape)
        if all(t == key[-1][1] for _, t in key) and is_dense(env, shape, key[-1][1]):
            return key[-1][1]
    if all(_row_major(shape, s, t) for s, t in key):
        return contiguous_stride(shape)
    return _sorted_stride(env, shape, [_broadcast_stride(shape, s, t) for s, t in key])


def _row_major(shape: Shape, own: Shape, stride: Shape) -> bool:
    """Whether an operand's strides fall strictly from axis to axis, so that it never asks for another order."""
    lead = len(shape) - len(own)
    for i, size in enumerate(own):
        if type(size) is int and size < 2 and not (size == 1 and shape[lead + i] != 1):
            return False
    return stride == contiguous_stride(own)


def _broadcast_stride(shape: Shape, own: Shape, stride: Shape) -> Shape:
    """Strides seen from the common shape: 0 along broadcast axes."""
    lead = len(shape) - len(own)
    result: list[Dim] = [0] * lead
    for i, (size, step) in enumerate(zip(own, stride, strict=True)):
        expanded = type(size) is int and size == 1 and shape[lead + i] != 1
        result.append(0 if expanded else step)
    return tuple(result)


def _sorted_stride(env: SizeEnv, shape: Shape, strides: list[Shape]) -> Shape:
    """Eager's ordering of axes: fastest first by the operands' strides, ambiguous pairs left in row-major order."""
    ndim = len(shape)
    order = list(range(ndim - 1, -1, -1))

    def compare(a: int, b: int) -> int:
        for stride in strides:
            x, y = stride[a], stride[b]
            if type(x) is int and x == 0 or type(y) is int and y == 0:
                continue
            if x == y:
                if stride_less(env, shape[b], shape[a]):
                    return 1
            elif stride_less(env, x, y):
                return -1
            elif stride_less(env, y, x):
                return 1
            elif stride_less(env, shape[b], shape[a]):
                return 1
        return 0

    _insert(order, compare)
    if order == list(range(ndim - 1, -1, -1)):
        return contiguous_stride(shape)
    result: list[Dim] = [0] * ndim
    step: Dim = 1
    for axis in order:
        result[axis] = step
        step = step * shape[axis]
    return tuple(result)


def is_contiguous(shape: Shape, stride: Shape) -> bool:
    """`Tensor.is_contiguous()`. Symbolic strides count only where they are visibly the row-major ones."""
    expected: Dim = 1
    for i in range(len(shape) - 1, -1, -1):
        size = shape[i]
        if size == 1:
            continue
        if stride[i] != expected:
            return any(type(d) is int and d == 0 for d in shape)
        expected = expected * size
    return True


def is_channels_last(shape: Shape, stride: Shape) -> bool:
    """`is_contiguous(memory_format=channels_last)` (4 axes) or `channels_last_3d` (5 axes)."""
    if len(shape) not in (4, 5):
        return False
    expected: Dim = 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] != 1:
            if stride[axis] != expected:
                return False
            expected = expected * shape[axis]
    return True


def has_format(env: SizeEnv, x: TensorSpec, memory_format: torch.memory_format) -> bool:
    """`x.is_contiguous(memory_format=...)`, for what a program sees of the answer: whose memory it goes on with.

    Sizes that may be 0 or 1 are asked for where they decide.
    """
    if memory_format is torch.contiguous_format and (
        is_contiguous(x.shape, x.stride) or is_static(x.shape) and is_static(x.stride)
    ):
        return is_contiguous(x.shape, x.stride)
    axes = _AXES_OF_FORMATS.get((memory_format, len(x.shape)))
    if axes is None:
        if memory_format is not torch.contiguous_format:
            raise NotCovered("memory format")
        axes = range(len(x.shape) - 1, -1, -1)
    expected: Dim = 1
    for axis in axes:
        size = x.shape[axis]
        if not _is_step(env, x.stride[axis], expected):
            if env.equal(size, 1, "layout of a tensor"):
                continue
            return memory_format is torch.contiguous_format and any(
                env.equal(s, 0, "layout of a tensor") for s in x.shape)
        expected = expected * size
    return True


#: axes from the innermost outwards
_AXES_OF_FORMATS: dict[tuple[torch.memory_format, int], Sequence[int]] = {
    (torch.channels_last, 4): (1, 3, 2, 0),
    (torch.channels_last_3d, 5): (1, 4, 3, 2, 0),
}


def _is_step(env: SizeEnv, step: Dim, expected: Dim) -> bool:
    """Whether both are equal; what depends on data usually is not, unless it is visibly so."""
    step, expected = env.canonical(step), env.canonical(expected)
    if step == expected or not (env.is_unbacked(step) or env.is_unbacked(expected)):
        return env.equal(step, expected, "layout of a tensor")
    return not env.require(sympy.Ne(step, expected), "layout of a tensor")


def channels_last_stride(shape: Shape) -> Shape:
    """Strides of a fresh channels-last tensor of 4 or 5 axes."""
    return dense_stride(shape, (1, *range(len(shape) - 1, 1, -1), 0))


def dense_stride(shape: Shape, order: Iterable[int]) -> Shape:
    """Strides without gaps where the axes lie in this order, the innermost first."""
    result: list[Dim] = [0] * len(shape)
    step: Dim = 1
    for axis in order:
        result[axis] = step
        size = shape[axis]
        step = step * (max(size, 1) if type(size) is int else size)
    return tuple(result)


def is_channels_last_strides(env: SizeEnv, shape: Shape, stride: Shape) -> bool:
    """Eager's looser test ("suggest_memory_format"): channels fastest, sizes of 1 allowed, never ambiguous."""
    if len(shape) not in (4, 5):
        return False
    least: Dim = 0
    if stride[1] == 0:
        return False
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or stride_less(env, stride[axis], least):
            return False
        if axis == 0 and least == stride[1]:
            return False
        least = stride[axis]
        if stride_less(env, 1, shape[axis]):
            least = least * shape[axis]
    return True


def is_dense(env: SizeEnv, shape: Shape, stride: Shape) -> bool:
    """Whether the elements fill a block of memory without gaps or overlap, in some order of axes."""
    if is_contiguous(shape, stride):
        return True
    if is_static(shape) and is_static(stride):
        if len(shape) == 1:
            return shape[0] < 2 or stride[0] == 1
        axes = sorted((i for i in range(len(shape))), key=lambda i: (shape[i] < 2, stride[i]))
        expected = 1
        for axis in axes:
            if shape[axis] < 2:
                return True
            if stride[axis] != expected:
                return False
            expected *= shape[axis]
        return True
    # Symbolic: order by hints, then compare expressions.
    sizes, steps = env.hints(shape), env.hints(stride)
    total: Dim = 1
    for axis in sorted((i for i in range(len(shape)) if shape[i] != 1), key=lambda i: (steps[i], sizes[i])):
        if stride[axis] != total and not (steps[axis] == env.hint(total) and env.equal(stride[axis], total, "strides")):
            return False
        total = total * shape[axis]
    return True


def axis_order(spec: TensorSpec) -> list[int] | None:
    """The axes from the outermost to the innermost where the elements fill their memory at all sizes, else None."""
    last: list[int] = [axis for axis, size in enumerate(spec.shape) if type(size) is int and size == 1]
    rest = [axis for axis in range(spec.ndim) if axis not in last]
    order: list[int] = []
    total: Dim = 1
    while rest:
        axis = next((a for a in rest if simplify(spec.stride[a] - total) == 0), None)
        if axis is None:
            return None
        rest.remove(axis)
        order.insert(0, axis)
        total = total * spec.shape[axis]
    return last + order


def preserved_stride(env: SizeEnv, shape: Shape, stride: Shape) -> Shape:
    """Strides of `torch.empty_like(x)`: x's own where x is dense, else dense strides in the order of x's."""
    if is_dense(env, shape, stride):
        return stride
    return _dense_like(env, shape, stride)


def _insert(order: list[int], compare: Callable[[int, int], int]) -> None:
    """Sort axes by insertion, as eager does: the order of two may be open (0), and is no total one."""
    for i in range(1, len(order)):
        position = i
        for earlier in range(i - 1, -1, -1):
            verdict = compare(order[earlier], order[position])
            if verdict > 0:
                order[earlier], order[position] = order[position], order[earlier]
                position = earlier
            elif verdict < 0:
                break


def _dense_like(env: SizeEnv, shape: Shape, stride: Shape) -> Shape:
    """Dense strides that keep the order of axes (what eager infers for tensors with gaps or overlap)."""
    ndim = len(shape)
    order = list(range(ndim - 1, -1, -1))

    def compare(a: int, b: int) -> int:
        x, y = stride[a], stride[b]
        if type(x) is int and x == 0 or type(y) is int and y == 0:
            return 0
        if x == y:
            return 1 if stride_less(env, shape[b], shape[a]) else 0
        return -1 if stride_less(env, x, y) else 1

    _insert(order, compare)
    return dense_stride(shape, order)


def format_stride(env: SizeEnv, x: TensorSpec, memory_format: torch.memory_format | None) -> Shape:
    """Strides of a copy of `x` under a memory format (None means preserve)."""
    if memory_format is None or memory_format is torch.preserve_format:
        return preserved_stride(env, x.shape, x.stride)
    if memory_format is torch.contiguous_format:
        return contiguous_stride(x.shape)
    if (
        memory_format is torch.channels_last
        and len(x.shape) == 4
        or memory_format is torch.channels_last_3d
        and len(x.shape) == 5
    ):
        return channels_last_stride(x.shape)
    raise NotCovered("memory format")


def normalize_dim(dim: Any, ndim: int) -> int:
    """A non-negative axis. Raises NotCovered where it is out of range (0-dim tensors have axis 0 and -1)."""
    if type(dim) is not int:
        raise Invalid("axis")
    bound = ndim or 1
    if not -bound <= dim < bound:
        raise Invalid("axis out of range")
    return dim + bound if dim < 0 else dim
