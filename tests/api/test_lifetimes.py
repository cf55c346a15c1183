"""Compiled code keeps nothing alive: models, tensors and closures go when the program lets go of them."""

from __future__ import annotations

import gc
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy
from jitpy.runtime.dispatch import explain_miss
from jitpy.runtime.native_build import load_native

load_native("runtime")  # until it is built, jitted functions are plain ones in front of dispatchers

X = torch.ones(2, 3)
MODEL: Any = None
WEIGHT: Any = None


class Model(nn.Module):
    """Holds what guards look at: parameters, a closure, a list, hooks."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.helper = lambda y: y * factor
        self.steps = [lambda y: y + factor]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return self.helper(torch.relu(self.linear(x)))


def watched(model: Model) -> list[weakref.ref[Any]]:
    return [weakref.ref(part) for part in (model, model.linear, model.linear.weight, model.helper, model.steps[0])]


def all_gone(references: list[weakref.ref[Any]]) -> bool:
    gc.collect()
    return [reference() for reference in references] == [None] * len(references)


def jitted(fn: Callable[..., Any]) -> Any:
    return jitpy.jit(fn, backend="eager")


def variants(fn: Any) -> int:
    return len(fn.entries)


def holding(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    return call


def test_a_model_in_a_global() -> None:
    global MODEL
    MODEL = Model()

    def run(x: torch.Tensor) -> torch.Tensor:
        return MODEL(x)

    fn, parts = jitted(run), watched(MODEL)
    for _ in range(3):
        assert torch.equal(fn(X), MODEL(X))
    MODEL = None
    assert all_gone(parts)
    assert variants(fn) == 0  # the guards were about closures that are gone
    MODEL = Model(5.0)
    assert torch.equal(fn(X), MODEL(X))
    MODEL = None


def test_a_tensor_in_a_global() -> None:
    global WEIGHT
    WEIGHT = torch.ones(3)

    def run(x: torch.Tensor) -> torch.Tensor:
        return x * WEIGHT

    fn, part = jitted(run), weakref.ref(WEIGHT)
    fn(X)
    WEIGHT = None
    assert all_gone([part])


def test_a_model_in_a_closure() -> None:
    model = Model()
    fn, parts = jitted(holding(model)), watched(model)
    fn(X)
    fn(X)
    del model, fn
    assert all_gone(parts)


def test_a_model_in_a_closure_that_lets_go() -> None:
    model: Any = Model()

    def run(x: torch.Tensor) -> Any:
        return x if model is None else model(x)

    fn, parts = jitted(run), watched(model)
    fn(X)
    model = None
    assert all_gone(parts)
    assert torch.equal(fn(X), X)


def test_a_model_as_a_default() -> None:
    def run(x: torch.Tensor, model: Any = Model()) -> torch.Tensor:  # noqa: B008
        return model(x)

    fn, parts = jitted(run), watched(run.__defaults__[0])  # type: ignore[index]
    fn(X)
    run.__defaults__ = None
    assert all_gone(parts)


def test_a_model_as_the_default_of_a_function_that_is_called() -> None:
    def inner(x: torch.Tensor, model: Any = Model(), *, other: Any = Model(3.0)) -> torch.Tensor:  # noqa: B008
        return model(x) + other(x)

    def run(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    fn, parts = jitted(run), watched(inner.__defaults__[0])  # type: ignore[index]
    parts += watched(inner.__kwdefaults__["other"])
    assert torch.equal(fn(X), run(X))
    inner.__defaults__ = (Model(7.0),)
    assert torch.equal(fn(X), run(X))
    inner.__kwdefaults__ = {"other": Model(8.0)}
    assert torch.equal(fn(X), run(X))
    assert all_gone(parts)


def test_a_model_as_an_argument() -> None:
    def run(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x).sum()

    fn, model = jitted(run), Model()
    parts = watched(model)
    fn(model, X).backward()
    del model
    assert all_gone(parts)


def test_a_function_as_an_argument() -> None:
    def run(inner: Any, x: torch.Tensor) -> torch.Tensor:
        return inner(x) + 1

    fn, model = jitted(run), Model()
    inner, parts = holding(model), watched(model)
    parts.append(weakref.ref(inner))
    fn(inner, X)
    del model, inner
    assert all_gone(parts)
    assert variants(fn) == 0


def test_a_class_made_in_a_function() -> None:
    def make(model: Any) -> Any:
        class Runner:
            scale = 2

            def __init__(self, x: torch.Tensor) -> None:
                self.x = x

            def run(self) -> torch.Tensor:
                return model(self.x) * self.scale

        return Runner

    def run(cls: Any, x: torch.Tensor) -> Any:
        made = cls(x)
        made.result = made.run()
        return made

    fn, model = jitted(run), Model()
    cls, parts = make(model), watched(model)
    parts.append(weakref.ref(cls))
    for _ in range(3):
        assert torch.equal(fn(cls, X).result, run(cls, X).result)
    assert type(fn(cls, X)) is cls
    del model, cls
    assert all_gone(parts)


def test_a_jitted_module() -> None:
    fn = jitpy.jit(Model(), backend="eager")
    parts = [*watched(fn), weakref.ref(fn)]
    fn(X)
    fn(X)
    del fn
    assert all_gone(parts)


def test_a_model_with_a_graph_break() -> None:
    class Printing(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            jitpy.graph_break()
            return self.linear(y)

    fn = jitpy.jit(Printing(), backend="eager")
    parts = watched(fn)
    fn(X)
    fn(X)
    del fn
    assert all_gone(parts)


def test_arguments_of_the_call_that_compiles_go_at_its_end() -> None:
    def fn(x: torch.Tensor, numbers: Any) -> torch.Tensor:
        for number in numbers:
            x = x + number
        return x

    before = gc.get_threshold()
    gc.set_threshold(0)  # what goes, goes without waiting for a collection
    try:
        run, numbers = jitted(fn), (n for n in (1, 2))
        for size in (2, 3):
            x: torch.Tensor | None = torch.ones(size)
            gone = [weakref.ref(numbers), weakref.ref(x)]
            assert torch.equal(run(x, numbers), torch.full((size,), 4.0))
            numbers, x = (n for n in (1, 2)), None
            assert [reference() for reference in gone] == [None, None]
    finally:
        gc.set_threshold(*before)


def test_methods_of_many_short_lived_instances() -> None:
    class Layer(Model):
        @jitpy.jit(backend="eager")
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.linear(x)) * self.factor

    def code_objects() -> int:
        gc.collect()
        return sum(type(obj) is types.CodeType for obj in gc.get_objects()) + _reachable_codes()

    def _reachable_codes() -> int:
        from jitpy import engine

        return sum(len(one.variants) for one in engine.all_engines())

    def use(factor: int) -> weakref.ref[Any]:
        layer = Layer()
        layer.factor = factor
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(2):
                assert torch.equal(layer(X), torch.relu(layer.linear(X)) * factor)
        return weakref.ref(layer)

    for factor in range(12):
        use(factor)
    before = code_objects()
    parts = [use(factor) for factor in range(20, 50)]
    assert all_gone(parts)
    assert code_objects() <= before + 2


def test_an_address_that_is_used_again() -> None:
    """Another object where a guarded one was is another object."""

    def run(inner: Any, x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    def make(k: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x + k

    fn = jitted(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(20):
            assert fn(make(k), X)[0, 0].item() == k + 1


def test_variants_that_can_never_hold_count_as_recompilations() -> None:
    def run(inner: Any, x: torch.Tensor) -> torch.Tensor:
        return inner(x) + bool(inner in known)  # a key's identity is guarded

    known: dict[Any, int] = {}
    fn = jitted(run)
    with jitpy.config.patch(recompile_limit=4), pytest.warns(UserWarning, match="compiled 4 times"):
        for k in range(8):
            assert fn(lambda x, k=k: x + k, X)[0, 0].item() == k + 1
    assert fn.closed


def test_reports_still_name_what_guards_are_about() -> None:
    model = Model()

    def run(inner: Any, x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    report = jitpy.explain(run)(holding(model), X)
    text = str(report)
    assert "inner" in text
    fn = jitted(run)
    inner = holding(model)
    fn(inner, X)
    (entry,) = fn.entries
    assert "alive(" in entry.guard.source_text
    ((_, failing),) = explain_miss(fn, (holding(model), X))
    assert any("inner" in line for line in failing), failing
