"""Fixtures: the hook with a given provider, put back afterwards."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest

from jitpy.frontend import hook


class Replacements:
    """A handler that replaces the functions it is told to; notes whom it was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.dispatchers: dict[CodeType, Callable[..., Any]] = {}
        self._codes: list[CodeType] = []

    def replace(self, function: Any, by: Any) -> None:
        """Every frame of the function becomes a call of `by`, which gets all its parameters positionally."""
        hook.skip_code(by.__code__)
        self.dispatch(function, lambda _function, _parameters: by)

    def dispatch(self, function: Any, dispatcher: Callable[..., Any]) -> None:
        self.dispatchers[function.__code__] = dispatcher
        self._codes.append(function.__code__)

    def forget(self) -> None:
        """The code of functions in a test is a constant of the test: the next run of it would find it answered."""
        for code in self._codes:
            hook.forget_code(code)

    def __call__(self, function: Any, code: CodeType) -> Any:
        assert hook.original_code(function.__code__) is code
        self.asked.append(code.co_name)
        return self.dispatchers.get(code)


@contextlib.contextmanager
def active() -> Iterator[None]:
    """What a jitted call does around its work."""
    hook.enter()
    try:
        yield
    finally:
        hook.leave()


def _with_provider(name: str) -> Iterator[Replacements]:
    before = hook.provider_name()
    hook.select(name)
    replacements = Replacements()
    former = hook.set_eval_frame(replacements)
    try:
        yield replacements
    finally:
        hook.set_eval_frame(former)
        replacements.forget()
        assert not hook.is_active() and not hook.is_installed()
        hook.select(before)


@pytest.fixture
def native() -> Iterator[Replacements]:
    """The handler of the native provider."""
    yield from _with_provider("native")


@pytest.fixture
def monitoring() -> Iterator[Replacements]:
    """The handler of the pure-Python provider."""
    if not hasattr(sys, "monitoring"):
        pytest.skip("sys.monitoring needs Python 3.12")
    yield from _with_provider("monitoring")
