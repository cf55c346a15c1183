"""Composite operators in Python: their bodies are traced as long as the dispatcher calls these."""

from __future__ import annotations

import cProfile
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import jitpy


@pytest.fixture
def library() -> Iterator[Any]:
    with torch.library._scoped_library("jitpy_bodies", "FRAGMENT") as made:
        made.define("op(Tensor x, float s=2.0) -> Tensor")
        yield made


def call(x: Tensor) -> Tensor:
    return torch.ops.jitpy_bodies.op(x) + 1


def scaled(x: Tensor, s: float = 2.0) -> Tensor:
    return x * s


def test_a_body_that_replaces_another(library: Any) -> None:
    def register(body: Any, key: str, again: bool) -> None:  # one line registers all of them
        library.impl("op", body, key, allow_override=again)

    register(scaled, "CompositeImplicitAutograd", False)
    jitted, x = jitpy.jit(call), torch.ones(3)
    assert torch.equal(jitted(x), call(x)) and torch.equal(jitted(x), call(x))
    for number, key in ((100.0, "CompositeImplicitAutograd"), (200.0, "CompositeImplicitAutograd"), (300.0, "CPU")):
        register(lambda x, s=2.0, number=number: x * s + number, key, key != "CPU")
        assert call(x)[0] == 3 + number
        assert torch.equal(jitted(x), call(x)) and torch.equal(jitpy.jit(call)(x), call(x))


def test_calls_of_one_operator_share_a_guard(library: Any) -> None:
    """Reading the dispatcher's table takes as long as a small kernel."""
    library.impl("op", lambda x, s=2.0: x * s, "CompositeImplicitAutograd")
    report = str(jitpy.explain(lambda x: call(call(call(x))))(torch.ones(3)))
    assert report.count("# the body of jitpy_bodies") == 1, report


@pytest.mark.parametrize("frozen", [False, True])
def test_defaults_are_those_of_the_body(library: Any, frozen: bool) -> None:
    library.impl("op", lambda x, s=9.0: x * s, "CompositeImplicitAutograd")
    gc.freeze() if frozen else gc.unfreeze()
    assert torch.equal(jitpy.jit(call)(torch.ones(3)), call(torch.ones(3)))


def test_a_profiler_goes_on(library: Any) -> None:
    def after_the_call() -> None: ...

    library.impl("op", scaled, "CompositeImplicitAutograd")
    jitted = jitpy.jit(call)
    profile = cProfile.Profile()
    profile.enable()
    try:
        found = jitted(torch.ones(3))
        after_the_call()
    finally:
        profile.disable()
    assert torch.equal(found, call(torch.ones(3)))
    names = {getattr(entry.code, "co_name", "") for entry in profile.getstats()}
    assert "after_the_call" in names
