"""The harness itself: each kind of difference that a wrong compiler could make is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from tests.semantics.harness import Case, check, options_of

COUNT = 0


def make_case(fn: Callable[..., Any], *makers: Any, factory: bool = False, names: tuple[str, ...] = ()) -> Case:
    makers = makers or (lambda: (torch.ones(3),),)
    return Case(fn, makers, None, None, factory, {name: lambda: 0 for name in names}, 1e-5, 2)


def found(one: Case, wrong: Callable[[Callable[..., Any]], Callable[..., Any]]) -> str:
    """The difference that the harness reports for a wrong `jit`."""
    with pytest.raises(AssertionError) as caught:
        check(one, jit=lambda fn, **options: wrong(fn))
    return str(caught.value)


@pytest.mark.parametrize("system", ["fx-static", "fx-symbolic"])
def test_graphs_go_through_the_fx_systems(system: str) -> None:
    options = options_of(system)
    fn = jitpy.jit(lambda x: x + 1, **options)
    assert torch.equal(fn(torch.ones(3)), torch.ones(3) + 1) and options["backend"].graphs == 1
    assert torch.equal(fn(torch.ones(4)), torch.ones(4) + 1)
    assert options["backend"].graphs == (2 if system == "fx-static" else 1)


def test_equal_worlds_pass() -> None:
    def fn(x: Any, d: dict[str, Any]) -> Any:
        d["y"] = x + torch.rand(3)
        print("here")
        return d, x[1:], float("nan")

    check(make_case(fn, lambda: (torch.ones(3), {})), jit=lambda fn, **options: fn)


def test_wrong_value() -> None:
    assert "became" in found(make_case(lambda x: x + 1), lambda fn: lambda x: fn(x) + 1e-3)
    assert "became" in found(make_case(lambda x: (1, 2.0)), lambda fn: lambda x: (1, 2.1))
    assert "became" in found(make_case(lambda x: 0.0), lambda fn: lambda x: -0.0)
    assert "became" in found(make_case(lambda x: 1), lambda fn: lambda x: True)
    assert "became" in found(make_case(lambda x: x), lambda fn: lambda x: x.double())
    assert "became" in found(make_case(lambda x: x.new_ones(2, 2)), lambda fn: lambda x: fn(x).t())


def test_wrong_container() -> None:
    assert "became" in found(make_case(lambda x: [1]), lambda fn: lambda x: (1,))
    assert "became" in found(make_case(lambda x: {1: 2, 3: 4}), lambda fn: lambda x: {3: 4, 1: 2})
    assert "became" in found(make_case(lambda x: iter([1, 2])), lambda fn: lambda x: [1, 2])


def test_lost_side_effect() -> None:
    def fn(x: Any, items: list[Any]) -> None:
        items.append(1)

    assert "became" in found(make_case(fn, lambda: (1, [])), lambda fn: lambda x, items: None)

    def factory() -> Any:
        state = [0]

        def count(x: Any) -> int:
            state[0] += 1
            return 7

        return count, state

    assert "call 0" in found(make_case(factory, factory=True), lambda fn: lambda x: 7)


def test_lost_global() -> None:
    def fn(x: Any) -> None:
        global COUNT
        COUNT += 1

    assert "became" in found(make_case(fn, names=("COUNT",)), lambda fn: lambda x: None)
    assert COUNT == 0


def test_lost_print() -> None:
    assert "printed" in found(make_case(lambda x: print("a")), lambda fn: lambda x: None)


def test_exceptions() -> None:
    def fn(x: Any) -> None:
        raise ValueError("a")

    def other(message: str, kind: type[Exception] = ValueError) -> Any:
        def raising(x: Any) -> None:
            raise kind(message)

        return lambda fn: raising

    assert "error" in found(make_case(fn), other("b"))
    assert "error" in found(make_case(fn), other("a", KeyError))
    assert "error" in found(make_case(fn), other("a"))  # the line differs
    assert "error" in found(make_case(fn), lambda fn: lambda x: None)


def test_identity() -> None:
    assert "became" in found(make_case(lambda x: x), lambda fn: lambda x: x.view(3))
    assert "became" in found(make_case(lambda x: x.view(3)), lambda fn: lambda x: x.clone())
    assert "became" in found(make_case(lambda x: [[]] * 2), lambda fn: lambda x: [[], []])


def test_reused_output() -> None:
    """An output buffer handed out twice shows when the caller writes into it."""

    def reuse(fn: Callable[..., Any]) -> Callable[..., Any]:
        kept: list[Any] = []

        def call(x: Any) -> Any:
            if not kept:
                kept.append(fn(x))
            return kept[0]

        return call

    assert "call 1" in found(make_case(lambda x: x + 1), reuse)


def test_wrong_gradient() -> None:
    makers = (lambda: (torch.ones(3, requires_grad=True),),)
    assert "gradients" in found(make_case(lambda x: x * x, *makers), lambda fn: lambda x: x * x.detach())


def test_changed_mode() -> None:
    def wrong(fn: Any) -> Any:
        def call(x: Any) -> Any:
            torch.set_grad_enabled(False)
            return x

        return call

    assert "torch modes" in found(make_case(lambda x: x), wrong)
    assert torch.is_grad_enabled()
