"""Where the number of traced instructions reaches its limit, plain Python goes on at that very instruction."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitpy
from jitpy import config


def program(x: torch.Tensor, items: list[int]) -> Any:
    filled = dict.fromkeys(items)
    pairs = {k: v for k, v in zip(items, map(lambda i: i + 1, items), strict=True)}
    total = sum(items)
    for i in range(3):
        total += i
        x = x + i
    try:
        [][total]
    except IndexError as error:
        total += len(error.args)
    return x, filled, pairs, total, sorted(items, key=lambda v: -v), [i * 2 for i in items]


@pytest.mark.parametrize("start", range(14))
def test_plain_python_goes_on_at_the_instruction(start: int) -> None:
    expected = str(program(torch.ones(2), [1, 2, 3, 4]))
    for limit in range(10 + start, 300, 14):
        with config.patch(unroll_limit=limit):
            assert str(jitpy.jit(program, backend="eager")(torch.ones(2), [1, 2, 3, 4])) == expected, limit


class Base:
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Derived(Base):
    def apply(self, x: torch.Tensor, k: int = 1) -> torch.Tensor:
        def inner() -> torch.Tensor:
            return super(Derived, self).apply(x) * k

        return inner()


def closures(x: torch.Tensor) -> torch.Tensor:
    made = Derived()

    def scaled(y: torch.Tensor, k: int) -> torch.Tensor:
        return made.apply(y, k) - [k * v for v in (1, 2)][1]

    return scaled(scaled(x, 2), 3)


@pytest.mark.parametrize("start", range(4))
def test_functions_have_their_cells(start: int) -> None:
    x = torch.ones(2)
    expected = closures(x)
    for limit in range(1 + start, 140, 4):
        assert torch.equal(jitpy.jit(closures, backend="eager", options={"unroll_limit": limit})(x), expected), limit


class Layer(torch.nn.Module):
    """Some hundred instructions an operation, as modules of libraries take."""

    def __init__(self, names: int) -> None:
        super().__init__()
        self.names = names

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [name for name in range(self.names) if name > 1]
        return torch.relu(x) + len(kept)


@pytest.mark.parametrize(("count", "names"), [(3, 4), (40, 4), (40, 60)])
def test_calls_that_record_operations_may_be_many(count: int, names: int) -> None:
    """A product of float8 in training takes 300 instructions for each of its operations."""
    model, x = torch.nn.Sequential(*(Layer(names) for _ in range(count))), torch.ones(2)
    with config.patch(unroll_limit=1000):
        report = jitpy.explain(model, backend="eager")(x)
    assert report.graph_break_count == 0
    assert torch.equal(report.result, model(x))


def unrolled(x: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        x = x + 1
    return x


def searched(x: torch.Tensor, count: int) -> torch.Tensor:
    def step(i: int) -> int:
        return i * 7 % 11

    return x + sum([step(i) for i in range(count)])


@pytest.mark.parametrize("fn", [unrolled, searched])
def test_loops_and_calls_that_record_nothing_end_at_the_limit(fn: Any) -> None:
    x = torch.ones(2)
    with config.patch(unroll_limit=400):
        report = jitpy.explain(fn, backend="eager")(x, 200)
        assert "too_long" in [one.reason.id for one in report.break_reasons]
        assert torch.equal(jitpy.jit(fn, backend="eager")(x, 200), fn(x, 200))
