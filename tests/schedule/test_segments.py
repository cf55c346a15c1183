"""Axes that are cut where conditions and remainders of them change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy.schedule.expr import BOOL, INT, ScalarBuilder
from jitpy.schedule.index import Axis, Index
from jitpy.schedule.segments import Segment, cuts

Tensor = torch.Tensor


def at(axis: Axis, shift: int = 0) -> Index:
    return Index(((axis, 1),)) + shift


def test_cuts_of_comparisons() -> None:
    e, axis = ScalarBuilder(), Axis(100)
    place = e.index(at(axis, -3))
    tests = [e.lt(place, 10), e.ge(place, 0), e.le(place, 20), e.gt(place, 30), e.lt(place, 1000), e.ge(place, -3)]
    assert cuts(tests, axis, 8) == [3, 13, 24, 34]
    assert cuts(tests, axis, 3) == []  # too many


def test_cuts_of_remainders() -> None:
    e, axis, other = ScalarBuilder(), Axis(100), Axis(7)
    rolled = e.index((at(axis, 97) + Index(((other, 100),))) % 100)
    assert cuts([rolled], axis, 8) == [3]
    assert cuts([e.index(at(axis) // 30)], axis, 8) == [30, 60, 90]
    assert cuts([e.index(at(axis) % 2)], axis, 8) == []
    assert cuts([rolled], Axis(100), 8) == []


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge"])
def test_answers_hold_throughout(op: str) -> None:
    e, axis = ScalarBuilder(), Axis(12)
    for bound in range(-3, 16):
        test = getattr(e, op)(e.index(at(axis, 1)), bound)
        places = [0, *cuts([test], axis, 8), 12]
        for low, high in zip(places, places[1:], strict=False):
            found = Segment(axis, low, high).expr(test)
            wanted = {{"lt": i + 1 < bound, "le": i + 1 <= bound, "gt": i + 1 > bound, "ge": i + 1 >= bound}[op]
                      for i in range(low, high)}
            assert found.op == "const" and wanted == {found.attr}


def test_what_does_not_change_is_the_same() -> None:
    e, axis, other = ScalarBuilder(), Axis(12), Axis(5)
    outer = e.lt(e.index(at(other)), 3)
    both = e.logical_and(outer, e.lt(e.index(at(axis)), 7))
    value = e.where(both, e.index(at(axis)), 0)
    assert Segment(axis, 0, 7).expr(both) is outer
    behind = Segment(axis, 7, 12).expr(value)
    assert behind.op == "const" and behind.attr == 0 and behind.dtype is INT
    assert Segment(axis, 0, 12).expr(value) is value
    assert Segment(other, 3, 5).expr(both).attr is False and both.dtype is BOOL


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "joined": lambda x: torch.cat([x, x * 2, x[:, :3]], 1),
    "joined down": lambda x: torch.cat([x, x * 2], 0),
    "padded": lambda x: F.pad(x, (2, 1)),
    "padded with ones": lambda x: F.pad(x, (1, 17), value=1.0) * 2,
    "padded around": lambda x: F.pad(x, (1, 2, 1, 1)),
    "cut by padding": lambda x: F.pad(x, (-1, 2)),
    "rolled": lambda x: x.roll(3, 1),
    "rolled back": lambda x: x.roll(-1, 1) + x,
    "rolled both": lambda x: x.roll((1, 2), (0, 1)),
    "rolled as one row": lambda x: x.roll(5),
    "differences": lambda x: x.diff() * 2,
    "lower triangle": lambda x: x.tril(1),
    "shifted": lambda x: torch.cat([x[:, :1], x[:, :-1]], 1) - x,
    "written in the middle": lambda x: x.clone().index_fill_(1, torch.tensor([1]), 0.0),
    "part replaced": lambda x: torch.slice_scatter(x, x[:, 2:5] * 3, 1, 2, 5),
    "rotated halves": lambda x: torch.cat([-x[:, x.shape[1] // 2:], x[:, : x.shape[1] // 2]], 1) * x,
    "repeated": lambda x: x.repeat(1, 3) + 1,
    "whole by position": lambda x: torch.where(torch.arange(x.shape[1]) < 5, x, -x),
    "by position, from one row": lambda x: torch.where(torch.arange(x.shape[1]) >= 4, x[0], 1),
    "windows": lambda x: F.avg_pool1d(x[None], 3, 1, 1)[0],
    "largest of windows": lambda x: F.max_pool1d(x[None], 3, 2, 1)[0],
    "looked up behind": lambda x: torch.cat([x, x[torch.tensor([1, 0, 2])]], 1)[:, 1:],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
def test_equal_to_eager(dtype: torch.dtype) -> None:
    """All in one graph for each length."""
    names = [n for n in CASES if dtype.is_floating_point or n not in ("windows", "largest of windows")]
    for length in (8, 16, 31, 33, 64, 130):
        x = torch.randint(0, 60, (3, length)).to(dtype)
        found = jitpy.jit(lambda x: [CASES[name](x) for name in names], dynamic=False)(x)
        for name, result in zip(names, found, strict=True):
            wanted = CASES[name](x)
            assert result.dtype is wanted.dtype
            torch.testing.assert_close(result, wanted, rtol=1e-6 if dtype is torch.float32 else 1e-2, atol=0)


LONG = [lambda x: x.roll(3001) * 2, lambda x: F.pad(x, (1, 4500)) + 1, lambda x: torch.cat([x, x + 1])]


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows_on_threads(threads: int) -> None:
    """Rows that are shared among threads are cut within each one's part."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for n in (9000, 200_001):
            x = torch.randn(n)
            for fn in LONG:
                assert torch.equal(jitpy.jit(fn, dynamic=False)(x), fn(x))
    finally:
        torch.set_num_threads(before)


POOLS = [
    lambda x: F.avg_pool2d(x, 3, 1, 1),
    lambda x: F.max_pool2d(x, 3, 2, 1),
    lambda x: F.avg_pool2d(x, 5, 2, 2, count_include_pad=False),
    lambda x: F.pad(x, (1, 2, 3, 4)).relu(),
]


def test_pools_with_padding() -> None:
    for channels_last in (False, True):
        x = torch.randn(2, 4, 20, 37)
        x = x.to(memory_format=torch.channels_last) if channels_last else x
        for fn in POOLS:
            torch.testing.assert_close(jitpy.jit(fn)(x), fn(x))
