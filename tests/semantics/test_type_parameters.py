"""Functions with type parameters (PEP 695, from Python 3.12 on): what `functools` copies of them is kept."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

with_type_parameters = pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is of Python 3.12")


def plain(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def written(source: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"functools": functools}
    exec(source, names)
    made: Callable[..., Any] = names["made"]
    return made


generic = written("def made[T](x: T) -> T:\n    return x * 2\n") if sys.version_info >= (3, 12) else plain


def wraps(x: torch.Tensor, fn: Callable[..., Any]) -> tuple[Any, ...]:
    @functools.wraps(fn)
    def wrapper(y: torch.Tensor) -> Any:
        return fn(y)

    return wrapper(x), wrapper.__annotations__ is fn.__annotations__, getattr(wrapper, "__type_params__", ())


def wraps_in_an_object(x: torch.Tensor, fn: Callable[..., Any]) -> tuple[Any, ...]:
    class Wrapper:
        def __init__(self, function: Callable[..., Any]) -> None:
            functools.update_wrapper(self, function)

    def local(y: torch.Tensor) -> torch.Tensor:
        return y

    return fn(x), vars(Wrapper(fn)), vars(Wrapper(local))["__type_params__"]


@with_type_parameters
@pytest.mark.parametrize("made", [wraps, wraps_in_an_object])
def test_type_parameters_are_copied(made: Callable[..., Any]) -> None:
    jitted = jitpy.jit(made)
    x = torch.randn(3)
    for fn in (plain, generic, plain):
        found, wanted = jitted(x, fn), made(x, fn)
        assert torch.equal(found[0], wanted[0])
        assert found[1:] == wanted[1:]


def test_a_plain_function_is_wrapped_in_the_graph() -> None:
    assert jitpy.explain(wraps)(torch.randn(3), plain).graph_break_count == 0


def test_annotations_that_come_later_are_seen() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x

    fn.__annotations__.clear()
    jitted = jitpy.jit(lambda x: (x + 1, functools.update_wrapper(lambda y: y, fn).__annotations__))
    x = torch.randn(3)
    assert jitted(x)[1] == {}
    fn.__annotations__["x"] = int
    assert jitted(x)[1] is fn.__annotations__


@with_type_parameters
def test_a_generic_function_made_inside() -> None:
    made = written("def made(x):\n    def inner[T](y: T) -> T:\n        return y + 1\n"
                   "    return inner(x), len(inner.__type_params__)\n")
    x = torch.randn(3)
    found = jitpy.jit(made)(x)
    assert torch.equal(found[0], x + 1) and found[1] == 1


@pytest.mark.skipif(sys.version_info < (3, 13), reason="defaults are of Python 3.13")
def test_type_parameters_with_defaults() -> None:
    made = written("def made(x):\n    def inner[T = int](y: T) -> T:\n        return y + 1\n"
                   "    return inner(x), inner.__type_params__[0].__default__\n")
    x = torch.randn(3)
    found = jitpy.jit(made)(x)
    assert torch.equal(found[0], x + 1) and found[1] is int
