"""Ops that put a gradient into a part of a tensor broadcast it to that part, and refuse one that does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

aten = torch.ops.aten


def _sliced(g: torch.Tensor) -> torch.Tensor:
    return aten.slice_backward(g, [4, 9], 1, 2, 5, 1) * 2


def _stepped(g: torch.Tensor) -> torch.Tensor:
    return aten.slice_backward(g, [4, 9], 1, -7, 100, 3) * 2


def _selected(g: torch.Tensor) -> torch.Tensor:
    return aten.select_backward(g, [4, 3], 1, -1) * 2


def _diagonal(g: torch.Tensor) -> torch.Tensor:
    return aten.diagonal_backward(g, [2, 4, 3], 1, 1, 2) * 2


def _of_the_argument(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return aten.slice_backward(g, [x.shape[0], x.shape[1] + 2], 1, 1, x.shape[1], 1) * 2


SHAPES: dict[Callable[..., torch.Tensor], list[tuple[int, ...]]] = {
    _sliced: [(4, 3), (1, 3), (4, 1), (1, 1), (3,), (1,), (), (4, 2), (2, 3), (1, 4, 3), (0,)],
    _stepped: [(4, 3), (1, 3), (4, 1), (3,), (4, 2)],
    _selected: [(4,), (1,), (), (3,), (1, 4)],
    _diagonal: [(2, 2), (1, 2), (2, 1), (2,), (), (2, 3)],
}


def _outcome(fn: Callable[..., torch.Tensor], *args: Any) -> Any:
    try:
        return fn(*args)
    except RuntimeError as error:
        return type(error), str(error).splitlines()[0]


@pytest.mark.parametrize(("fn", "shape"), [(fn, shape) for fn, shapes in SHAPES.items() for shape in shapes])
@pytest.mark.parametrize("expanded", [False, True])
def test_gradient_of_shape(fn: Callable[..., torch.Tensor], shape: tuple[int, ...], expanded: bool) -> None:
    g = torch.randn((*shape[:-1], 1)).expand(shape) if expanded and shape else torch.randn(shape)
    expected, found = _outcome(fn, g), _outcome(jitpy.jit(fn), g)
    assert type(expected) is type(found)
    torch.testing.assert_close(found, expected) if isinstance(expected, torch.Tensor) else None
    assert isinstance(expected, torch.Tensor) or found == expected


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("wide", [False, True])
def test_gradient_of_symbolic_sizes(rows: int, wide: bool) -> None:
    compiled = jitpy.jit(_of_the_argument, dynamic=True)
    for n in (4, 5, 7):
        x, g = torch.randn(4, n), torch.randn(rows, n - 1 if wide else 1)
        torch.testing.assert_close(compiled(x, g), _of_the_argument(x, g))
