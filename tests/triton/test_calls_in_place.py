"""Calls of torch's kernels that put elements into what they would copy, where nobody needs that any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitpy
from jitpy import config
from jitpy.runtime import executable

pytest.importorskip("triton")
Tensor = torch.Tensor


def put(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    x[i] = s
    return x.sum(0)


def copy_twice(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    x.index_copy_(0, i, s)
    x.index_copy_(0, i + 1, s * 2)
    return x[0] + 1


def one_place(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    """A kernel writes it, into the operand itself."""
    x.index_copy_(0, i[:1], s[:1] * 2)
    x.index_copy_(1, i[1:2] % 4, s.sum(0).mean().expand(9, 1))
    x[i[2]] = s[2] + 1
    return x.sum(0)


def one_place_in_a_copy(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x.index_copy(0, i[:1], s[:1]) + x


def to_a_result(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    y = x * 2
    y.scatter_(0, i[:, None].expand_as(s), s)
    return y


def the_old_one_is_read(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    old = x.sum(0)
    y = x.index_copy(0, i, s)
    return y.sum(0) - old + x[1]


def the_old_one_is_read_later(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    old = x.clone()
    x.index_fill_(0, i, 3.0)
    return old * 2 + s.sum()


def from_itself(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    x[i] = x[i + 1] + s
    x.masked_scatter_(x > 1, x.flip(0))
    return x.t()


def of_data(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    x.data[i] = s
    return x.mean()


def a_view(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    x[2:][i] = s
    return x[1]


PROGRAMS: dict[Callable[..., Tensor], list[str]] = {
    put: ["index_put_.default"], copy_twice: ["index_copy_.default"], to_a_result: ["scatter_.src"],
    one_place: [], one_place_in_a_copy: [], the_old_one_is_read: [], the_old_one_is_read_later: [], of_data: [],
    from_itself: ["masked_scatter_.default"], a_view: [],
}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operators that plans call."""
    names: list[str] = []
    real = executable.make_executable

    def spy(plan: Any, *args: Any, **kwargs: Any) -> Any:
        names.extend(getattr(getattr(step, "function", None), "__name__", "") for step in plan.steps)
        return real(plan, *args, **kwargs)

    monkeypatch.setattr(executable, "make_executable", spy)
    with config.patch(triton_on_cpu=True):
        yield names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_like_eager(program: Callable[..., Tensor], called: list[str]) -> None:
    jitted = jitpy.jit(program)
    for seed in range(3):
        torch.manual_seed(seed)
        x, i, s = torch.randn(9, 4), torch.randperm(5)[:3], torch.randn(3, 4)
        mine, version = x.clone(), x._version
        wanted, found = program(x, i, s), jitted(mine, i, s)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(mine, x)
        assert (mine._version == 0) == (x._version == version)
    assert [name for name in called if name.split(".")[0].endswith("_")] == PROGRAMS[program]
