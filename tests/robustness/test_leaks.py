"""What was jitted and dropped leaves nothing behind: no objects, no memory."""

from __future__ import annotations

import gc
import types
import weakref
from typing import Any

import pytest
import torch

import jitpy
from jitpy.engine import all_engines
from tests.counting import living, resident, variants


def closure(k: int, breaks: bool) -> Any:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * k
        if breaks:
            jitpy.graph_break()
        return below(y) + k

    def below(y: torch.Tensor) -> torch.Tensor:
        return y.sin()

    return fn


class Net(torch.nn.Module):
    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("every_second", torch.zeros(16)[::2])
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.breaks:
            jitpy.graph_break()
        return y.view(2, -1)[:, ::2] + self.every_second[:2]


def use_closures(count: int, breaks: bool) -> None:
    for k in range(count):
        fast = jitpy.jit(closure(k, breaks), backend="eager")
        for size in (3, 4):
            x = torch.ones(size)
            assert torch.equal(fast(x), (x * k).sin() + k)


def use_models(count: int, breaks: bool) -> None:
    for _ in range(count):
        model = Net(breaks)
        fast = jitpy.jit(model, backend="eager")
        x = torch.ones(1, 8)
        for _ in range(2):
            torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize(("use", "count"), [(use_closures, 500), (use_models, 60)])
def test_nothing_is_left_of_what_was_dropped(use: Any, count: int, breaks: bool) -> None:
    use(count // 5, breaks)
    before, memory = living(), resident()
    use(count, breaks)
    after = living()
    assert all(after[kind] <= before[kind] for kind in before), (before, after)
    assert resident() - memory < 32, (memory, resident())


@pytest.mark.parametrize("breaks", [False, True])
def test_a_model_that_goes_takes_its_compiled_code_along(breaks: bool) -> None:
    """One jitted function, and models of classes of their own that come and go."""
    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x) + 1

    jitpy.reset()
    fast = jitpy.jit(call, backend="eager")
    for round_ in range(2):
        class Own(Net):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x) * 2

        model = Own(breaks)
        view = model.linear.weight[2:4]  # a view of what the model owns lives on
        x = torch.ones(1, 8)
        torch.testing.assert_close(fast(model, x), model(x) + 1)
        gone = [weakref.ref(model), weakref.ref(Own), weakref.ref(Own.forward)]
        kept = variants()
        assert kept >= 1
        del model, Own
        gc.collect()
        assert [ref() for ref in gone] == [None] * 3, round_
        assert view.shape == (2, 8)
    gc.collect()
    assert not fast.entries


def of_everybody(y: torch.Tensor) -> torch.Tensor:
    return y.sin() if y.sum() > 0 else y.cos()


def test_what_was_compiled_below_a_function_goes_with_it() -> None:
    """Of a function of the module, called where the graph is broken: the hook hands its frames over."""
    def fn(x: torch.Tensor) -> torch.Tensor:
        return eval("of_everybody(y)", globals(), {"y": x * 2}) + 1

    x = torch.ones(3)
    gc.collect()
    before = variants()
    for _ in range(3):
        fast = jitpy.jit(types.FunctionType(fn.__code__.replace(), globals()), backend="eager")
        for y in (x, -x):
            torch.testing.assert_close(fast(y), fn(y))
        assert any("of_everybody" in variant.name for engine in all_engines() for variant in engine.variants)
        del fast
        gc.collect()
        assert variants() == before


def test_another_object_at_the_same_address() -> None:
    """What is made where a freed model was has its address: it is looked at anew."""
    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    class Scale(torch.nn.Module):
        def __init__(self, factor: float, bias: bool) -> None:
            super().__init__()
            self.factor = factor
            self.bias = torch.nn.Parameter(torch.ones(2)) if bias else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.factor
            return y if self.bias is None else y + self.bias

    fast = jitpy.jit(call, backend="eager")
    x = torch.ones(2)
    addresses: set[int] = set()
    reused = 0
    for i in range(60):
        model = Scale(float(i % 7), bias=i % 3 == 0)
        reused += id(model) in addresses
        addresses.add(id(model))
        for _ in range(3):
            torch.testing.assert_close(fast(model, x), model(x))
        del model
        if i % 5 == 0:
            gc.collect()
    assert reused > 10, "no address was used again"


def test_functions_at_the_same_address() -> None:
    fast = jitpy.jit(lambda f, x: f(x), backend="eager")
    x = torch.ones(2)
    addresses: set[int] = set()
    reused = 0
    for i in range(20):
        f = eval("lambda x: x * 2 + 1" if i % 2 else "lambda x: x - 5")
        reused += id(f) in addresses
        addresses.add(id(f))
        assert torch.equal(fast(f, x), f(x))
        del f
    assert reused > 5, "no address was used again"
