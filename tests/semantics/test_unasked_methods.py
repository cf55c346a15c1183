"""Values whose own special methods C code does not ask, or asks otherwise than Python code does."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitpy


class Index(int):
    def __index__(self) -> int:
        return 3


def index_of_an_int(x: torch.Tensor) -> Any:
    return x + 1, operator.index(Index(5)), operator.index(True)


def orderings_of_object(x: torch.Tensor) -> Any:
    found = object.__lt__(1, 2), object.__le__(1, 1), object.__gt__("b", "a"), object.__ge__((1,), (0,))
    return x + 1, [one is NotImplemented for one in found], object.__eq__(1, 2) is NotImplemented


def _items() -> Iterator[int]:
    yield 1


def _thrown(*given: Any) -> Any:
    items = _items()
    next(items)
    try:
        items.throw(ValueError, *given)
    except ValueError as error:
        return error.args


def arguments_of_throw(x: torch.Tensor) -> Any:
    return x + 1, _thrown(), _thrown(None), _thrown((1, 2)), _thrown(()), _thrown("text"), _thrown([1])


def context_that_is_no_bool(x: torch.Tensor) -> Any:
    error = ValueError(1)
    error.__suppress_context__ = True
    try:
        error.__suppress_context__ = 0  # type: ignore[assignment]
    except TypeError as found:
        return x + 1, str(found), error.__suppress_context__
    return x


@pytest.mark.filterwarnings("ignore:the .type, exc, tb. signature")
@pytest.mark.parametrize("program", [index_of_an_int, orderings_of_object, arguments_of_throw, context_that_is_no_bool])
def test_equal_to_eager(program: Callable[[torch.Tensor], Any]) -> None:
    x = torch.arange(4.0)
    jitted = jitpy.jit(program)
    for _ in range(2):
        (value, *rest), (wanted, *others) = jitted(x), program(x)
        assert torch.equal(value, wanted) and rest == others
