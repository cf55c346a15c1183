"""Whether the operands of an in-place op overlap in memory in a way that eager refuses or leaves undefined.

A graph reads the values from before the write. Eager reads what it has just written, or raises: the two agree only
where an operand is the written tensor itself, element by element, or lies apart from it.
"""

from __future__ import annotations

from typing import Any

from jitpy.ir import TensorSpec
from jitpy.ir.ops.schemas import SchemaFacts

from .traced import GraphBuilder, TracedTensor, Uncapturable, tensors_in

#: ops that write elsewhere than where they read: eager refuses an operand that is the target itself
_ANYWHERE = frozenset({"index_add_", "index_copy_", "index_put_", "index_reduce_", "masked_scatter_", "put_",
                       "scatter_", "scatter_add_", "scatter_reduce_"})


def check_operands(builder: GraphBuilder, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises Uncapturable where an operand shares elements of a target, but not each with the element in its place;
    where two targets share elements; and where one step of a loop over lists writes what another one reads."""
    targets: list[tuple[int, TracedTensor]] = []
    operands: list[tuple[int, TracedTensor]] = []
    for name in facts.names:
        found = targets if name in facts.mutated else operands
        value = facts.argument(name, args, kwargs)
        if isinstance(value, (list, tuple)):
            found += [(place, tensor) for place, item in enumerate(value) for tensor in tensors_in(item)]
        else:
            found += [(-1, tensor) for tensor in tensors_in(value)]
    elementwise = facts.overload.namespace == "aten" and facts.overload.overloadpacket.__name__ not in _ANYWHERE
    for number, (place, target) in enumerate(targets):
        for other, operand in (*operands, *targets[number + 1 :]):
            if operand.storage is not target.storage or operand is target and other == place and elementwise:
                continue
            in_place = elementwise and other == place and _same_elements(operand.spec, target.spec)
            if not in_place and (operand is target or not apart(operand, target)):  # eager refuses itself, empty too
                raise Uncapturable("unsupported_op", "a write to memory that another operand overlaps")


def _same_elements(a: TensorSpec, b: TensorSpec) -> bool:
    return (a.shape, a.stride, a.offset, a.dtype) == (b.shape, b.stride, b.offset, b.dtype)


def apart(a: TracedTensor, b: TracedTensor) -> bool:
    """Whether the two views surely share no element."""
    first, second = a.spec, b.spec
    if first.dtype.itemsize != second.dtype.itemsize:
        return False
    layout = (first.offset, second.offset, *first.shape, *first.stride, *second.shape, *second.stride)
    if any(type(dim) is not int for dim in layout):
        return False
    if 0 in first.shape or 0 in second.shape:
        return True
    # An element of both: offset_a + sum(i * stride_a) = offset_b + sum(j * stride_b), with i and j in their ranges.
    reach: dict[int, tuple[int, int]] = {}
    for spec, sign in ((first, 1), (second, -1)):
        for size, stride in zip(spec.shape, spec.stride, strict=True):
            low, high = reach.get(stride, (0, 0))
            reach[stride] = (low, high + size - 1) if sign > 0 else (low - size + 1, high)  # type: ignore[operator]
    axes = sorted(((stride, low, high) for stride, (low, high) in reach.items() if stride), reverse=True)
    return not _solvable(second.offset - first.offset, axes, [0])  # type: ignore[operator]


#: steps of the search for a shared element; past it the answer is that there may be one
_EFFORT = 2000


def _solvable(total: int, axes: list[tuple[int, int, int]], steps: list[int]) -> bool:
    """Whether some `sum(k * stride)` with `low <= k <= high` for each axis is `total`; also if that is hard to say."""
    steps[0] += 1
    if not axes or steps[0] > _EFFORT:
        return total == 0 or steps[0] > _EFFORT
    (stride, low, high), *rest = axes
    lowest, highest = sum(s * lo for s, lo, _ in rest), sum(s * hi for s, _, hi in rest)
    start = max(low, -((highest - total) // stride))
    end = min(high, (total - lowest) // stride)
    return any(_solvable(total - k * stride, rest, steps) for k in range(start, end + 1))
