"""Ranges between floats and sizes that vary: `torch.arange(0.5, x.shape[0])` and its like, at many sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jitpy
from jitpy.engine import all_engines

Tensor = torch.Tensor

RANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "float start": lambda x: torch.arange(0.5, x.shape[0]) * 2,
    "float start and x": lambda x: torch.arange(0.5, x.shape[0]) + x,
    "float end": lambda x: torch.arange(x.shape[0], 100.25) * 2,
    "float step": lambda x: torch.arange(0, x.shape[0], 0.5) * 2,
    "step that rounds": lambda x: torch.arange(0, x.shape[0], 0.3) * 2,
    "start that rounds": lambda x: torch.arange(0.1, x.shape[0]) * 2,
    "step down": lambda x: torch.arange(x.shape[0] - 1, -1, -1) * 2,
    "float step down": lambda x: torch.arange(x.shape[0] - 1, -1, -2.0) * 2,
    "step of a size": lambda x: torch.arange(0.5, 100, x.shape[0]) * 2,
    "step down of a size": lambda x: torch.arange(100, 0, -x.shape[0]) * 2,
    "int64": lambda x: torch.arange(0.5, x.shape[0], dtype=torch.int64) * 2,
    "int64, float step": lambda x: torch.arange(0.5, x.shape[0], 1.5, dtype=torch.int64) * 2,
    "int32": lambda x: torch.arange(0.5, x.shape[0], dtype=torch.int32) * 2,
    "float64": lambda x: torch.arange(0.25, x.shape[0], dtype=torch.float64) + 1,
    "bfloat16": lambda x: torch.arange(0.25, x.shape[0], dtype=torch.bfloat16) + 1,
    "computed end": lambda x: torch.arange(0.5, x.shape[0] * 0.5) * 2,
    "nothing": lambda x: torch.arange(x.shape[0], x.shape[0] + 0.0) * 2,
    "range": lambda x: torch.range(0.5, x.shape[0]) * 2,
    "linspace": lambda x: torch.linspace(0.5, x.shape[0], x.shape[0]) * 2,
    "linspace of a constant length": lambda x: torch.linspace(-x.shape[0] / 2, x.shape[0] * 0.25, 7) * 2,
    "linspace, float64": lambda x: torch.linspace(-1, 1, x.shape[0], dtype=torch.float64) * 2,
    "linspace, int64": lambda x: torch.linspace(0, x.shape[0] - 1, x.shape[0], dtype=torch.int64) * 2,
}


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("kind", RANGES)
def test_like_eager(kind: str) -> None:
    fn = RANGES[kind]
    compiled = jitpy.jit(fn)
    for size in (4, 5, 6, 9, 30, 31, 3):
        x = torch.randn(size)
        expected, found = fn(x), compiled(x)
        assert found.dtype is expected.dtype and found.shape == expected.shape
        torch.testing.assert_close(found, expected)


def test_one_variant_for_all_sizes() -> None:
    """Quotients of halves and sizes need no size fixed."""
    jitpy.reset()
    compiled = jitpy.jit(lambda x: torch.arange(0.5, x.shape[0], 1.5) * 2)
    for size in (4, 5, 6, 9, 30, 31, 3):
        compiled(torch.randn(size))
    assert sum(len(engine.variants) for engine in all_engines()) == 2


def test_errors() -> None:
    compiled = jitpy.jit(lambda x: torch.arange(x.shape[0] + 0.5, 0.5))
    for size in (4, 5):
        with pytest.raises(RuntimeError, match="upper bound and lower bound inconsistent|upper bound and larger"):
            compiled(torch.randn(size))


def test_a_computed_length_that_must_equal_another() -> None:
    def called(p: Tensor, x: Tensor) -> Tensor:
        return torch.arange(-1, p.shape[0] * 0.5, 2) + x

    compiled = jitpy.jit(called)
    for size in (3, 5, 6, 9, 30):
        p = torch.zeros(size)
        x = torch.randn(len(torch.arange(-1, size * 0.5, 2)))
        torch.testing.assert_close(compiled(p, x), called(p, x))
    with pytest.raises(RuntimeError, match="must match the size"):
        compiled(torch.zeros(30), torch.randn(3))


def test_padding_by_a_size() -> None:
    compiled = jitpy.jit(lambda p, x: torch.nn.functional.pad(x, (1, 2), value=p.shape[0]) + 1)
    for size in (3, 5, 6, 9):
        found = compiled(torch.zeros(size), torch.ones(4))
        assert torch.equal(found, torch.nn.functional.pad(torch.ones(4), (1, 2), value=size) + 1)
