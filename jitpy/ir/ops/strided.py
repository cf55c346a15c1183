"""`as_strided`: memory looked at in any way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..op import NotCovered
from ..sizes import SizeEnv
from ..spec import TensorSpec
from .layout import Shape
from .table import define
from .views import Index, view, view_size


def _as_strided(
    env: SizeEnv, x: TensorSpec, shape: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> TensorSpec:
    if len(shape) != len(stride) or any(type(s) is int and s < 0 for s in (*shape, *stride)):
        raise NotCovered("as_strided")
    at = x.offset if offset is None else view_size(offset)
    return view(x, tuple(map(view_size, shape)), tuple(map(view_size, stride)), at)


def reordered_axes(x: TensorSpec, shape: Shape, stride: Shape, offset: Any = None) -> tuple[int | None, ...] | None:
    """For each axis of `as_strided`'s result the axis of `x` that it is, None for one of size 1.

    None altogether where the result does not show all elements of `x`, each once, along axes of `x`.
    """
    if offset is not None and offset != x.offset:
        return None
    free = [axis for axis, size in enumerate(x.shape) if size != 1]
    axes: list[int | None] = []
    for size, step in zip(shape, stride, strict=True):
        same = next((a for a in free if x.shape[a] == size and x.stride[a] == step), None)
        if same is not None:
            free.remove(same)
        elif size != 1:
            return None
        axes.append(same)
    return None if free else tuple(axes)


def strided_places(x: TensorSpec, shape: Shape, stride: Shape, offset: Any = None) -> torch.Tensor | None:
    """For each element of `as_strided`'s result its number among those of `x`, row by row. None where sizes are
    symbolic, where it shows memory that `x` does not show, or where elements of `x` share memory."""
    offset = x.offset if offset is None else offset
    if not x.is_static or not all(type(n) is int for n in (*shape, *stride, *x.stride, offset, x.offset)):
        return None
    reach = [at + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
             for at, sizes, steps in ((offset, shape, stride), (x.offset, x.shape, x.stride))]
    if 0 in shape or 0 in x.shape or max(reach) > _LARGEST_MEMORY:
        return None
    memory = torch.arange(max(reach) + 1)
    shown = memory.as_strided(x.shape, x.stride, x.offset).flatten()
    numbers = torch.full_like(memory, -1)
    numbers[shown] = torch.arange(len(shown))
    places = numbers.as_strided(shape, stride, offset).flatten()
    return places if int((numbers >= 0).sum()) == len(shown) and int(places.min()) >= 0 else None


#: Elements of memory whose places are worked out one by one.
_LARGEST_MEMORY = 2**24


def _as_strided_index(
    index: Index, x: TensorSpec, shape: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> tuple[Any, ...]:
    axes = reordered_axes(x, tuple(shape), tuple(stride), offset)
    if axes is None:
        raise NotCovered("as_strided that shows memory in another way")
    return tuple(index[axes.index(axis)] if axis in axes else 0 for axis in range(len(x.shape)))


define("aten.as_strided.default", kind="view", infer=_as_strided, index=_as_strided_index)
