"""A text that the compiler refuses is an error of the printer: tests see it, users get eager's results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import jitpy
from jitpy import config
from jitpy.backends import target
from jitpy.backends.cpp import printer
from jitpy.runtime.compiler import CompilerError


@pytest.fixture
def _unprintable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sums are printed as what no compiler takes."""
    monkeypatch.setitem(printer._SIMPLE, "add", "{0} plus {1}")
    monkeypatch.setattr(target, "_warned", set())
    jitpy.reset()
    yield
    jitpy.reset()


def test_tests_see_it(_unprintable: None) -> None:
    x = torch.randn(5)
    with pytest.raises(CompilerError, match="exit status"):
        jitpy.jit(lambda x: x + x.sin())(x)


def test_users_get_the_result(_unprintable: None) -> None:
    x = torch.randn(5)
    with config.patch(raise_errors=False), pytest.warns(RuntimeWarning, match="graphs run with eager kernels"):
        found = jitpy.jit(lambda x: x + x.sin())(x)
    assert torch.equal(found, x + x.sin())
