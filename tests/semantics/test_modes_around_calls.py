"""Calls while a torch-function mode is open, as `torch.set_default_device` leaves one: found again, and the classes of
tensors are asked as without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import jitpy


@pytest.fixture
def default_device() -> Iterator[None]:
    depth = torch._C._len_torch_function_stack()
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(None)
    while torch._C._len_torch_function_stack() > depth:
        torch._C._pop_torch_function_stack()


class Doubled(torch.Tensor):
    """Products give twice what they are."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return torch.add(result, result) if func is torch.Tensor.mul else result


def test_calls_with_a_default_device_find_their_variant(default_device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jitpy.jit(lambda x, y: x * y + 1)
    x, y = torch.randn(4), torch.randn(4)
    expected = compiled(x, y)
    engines = []
    from jitpy.engine import Engine
    monkeypatch.setattr(Engine, "on_miss", lambda self, *args: engines.append(self))
    torch.testing.assert_close(compiled(x, y), expected)
    assert not engines, "the guards of the call before hold"


def test_classes_are_asked_with_a_default_device(default_device: None) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return x.mul(3.0)

    x, compiled = torch.ones(2).as_subclass(Doubled), jitpy.jit(product)
    for _ in range(3):
        result = compiled(x)
        assert type(result) is Doubled and result.tolist() == [6.0, 6.0]
    with torch._C.DisableTorchFunctionSubclass():
        for _ in range(2):
            assert compiled(x).tolist() == product(x).tolist() == [3.0, 3.0]
    assert compiled(x).tolist() == [6.0, 6.0]


def test_a_mode_of_the_program_sees_what_it_sees_in_eager() -> None:
    class Counts(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def product(x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, 3.0)

    compiled = jitpy.jit(product)
    for call in (product, compiled, compiled):
        seen: list[Any] = []
        with Counts():
            assert call(torch.ones(2).as_subclass(Doubled)).tolist() == product(torch.ones(2)).tolist()
        assert torch.mul in seen
