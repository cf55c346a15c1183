"""Filters of warnings that a function changes: what is shown, recorded, raised and left. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from jitpy import graph_break
from tests.semantics.harness import jit

FUNCTIONS: list[tuple[Callable[..., Any], bool]] = []


def filtering(whole: bool = True) -> Callable[[Any], Any]:
    """Register a function; `whole` says that it is one graph where warnings are no errors."""

    def register(function: Any) -> Any:
        FUNCTIONS.append((function, whole))
        return function

    return register


def _told(said):
    return [(str(one.message), one.category.__name__, os.path.basename(one.filename), one.lineno, one.line, one.source)
            for one in said]


def _warns(x, text="of a callee"):
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return x + 1


@filtering(whole=False)
def ignored(x):
    warnings.warn("before")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = _warns(x)
    warnings.warn("after")
    return y


@filtering()
def ignored_alone(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="of a .*")
        return _warns(_warns(x))


@filtering(whole=False)
def recorded(x):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        y = _warns(x)
        count = len(said)
        warnings.warn(UserWarning("an instance"))
    return y * count, _told(said), str(said[0])


@filtering(whole=False)
def recorded_by_default_filters(x):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for i in range(3):
            x = _warns(x)
            warnings.warn("the same")
            warnings.warn(f"number {i % 2}")
    with warnings.catch_warnings(record=True) as once:
        warnings.simplefilter("once")
        for _ in range(2):
            warnings.warn("the same")
            warnings.warn("the same")
    return x, _told(said), _told(once)


@filtering()
def raised(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            x = _warns(x)
        except DeprecationWarning as error:
            x = x * 2
            said = str(error)
    return x, said


@filtering(whole=False)
def filtered_by_text_and_category(x):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="of a .*")
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", module="nowhere")
        x = _warns(_warns(x), "to be seen")
        warnings.warn("later", FutureWarning)
        warnings.warn("now")
    return x, _told(said)


@filtering(whole=False)
def appended_filters(x):
    with warnings.catch_warnings(record=True) as said:
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning, append=True)
        warnings.simplefilter("always", append=True)
        x = _warns(x)
        warnings.warn("now")
    return x, _told(said)


@filtering(whole=False)
def nested(x):
    with warnings.catch_warnings(record=True) as outer:
        warnings.simplefilter("always")
        warnings.warn("one")
        with warnings.catch_warnings(record=True) as inner:
            warnings.warn("two")
            with warnings.catch_warnings(action="ignore"):
                x = _warns(x)
        warnings.warn("three")
    return x, _told(outer), _told(inner)


@filtering(whole=False)
def shown_under_filters_of_its_own(x):
    _warns(x, "before")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="hidden")
        warnings.warn("hidden")
        x = _warns(x, "shown")
        warnings.warn("the caller's", stacklevel=2)
    return _warns(x, "after")


@filtering(whole=False)
def a_break_inside(x):
    _warns(x, "before")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        x = _warns(x, "in front of the break")
        graph_break()
        x = _warns(x, "behind the break")
        count = len(said)
        x = _warns(x, "last")
    _warns(x, "after")
    return x * count, _told(said)


@filtering(whole=False)
def a_break_under_ignore(x):
    _warns(x, "before")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = _warns(x, "in front of the break")
        graph_break()
        x = _warns(x, "behind the break")
    return _warns(x, "after")


@filtering(whole=False)
def left_behind(x):
    warnings.filterwarnings("ignore", message="of a callee")
    return _warns(_warns(x), "seen")


@filtering(whole=False)
def error_leaves_the_block(x):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.warn("stop")
    except UserWarning as error:
        said = str(error)
    return _warns(x), said


@filtering(whole=False)
def a_function_that_records(x):
    def quiet(function):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            return function(), _told(said)

    return quiet(lambda: _warns(x)), quiet(lambda: x.sin())


def _played(called: Callable[..., Any], action: str, recorded: bool) -> Any:
    globals().pop("__warningregistry__", None)
    seen = []
    for _ in range(3):
        x = torch.arange(4.0)
        with warnings.catch_warnings(record=recorded) as said:
            warnings.simplefilter(action)
            before = list(warnings.filters)
            try:
                result = called(x)
            except Warning as error:
                result = ("raised", type(error).__name__, str(error))
            left = [one for one in warnings.filters if one not in before]
        shown = [part.tolist() if isinstance(part, torch.Tensor) else part
                 for part in (result if isinstance(result, tuple) else (result,))]
        seen.append((repr(shown), _told(said or ()), left))
    return seen, sorted(repr(key) for key in globals().get("__warningregistry__", {}) if key != "version")


@pytest.mark.parametrize("action", ["always", "default", "once", "ignore", "error"])
@pytest.mark.parametrize(("function", "whole"), FUNCTIONS, ids=lambda one: getattr(one, "__name__", ""))
def test_filters(function: Any, whole: bool, action: str) -> None:
    jitpy.reset()
    options = {"fullgraph": True} if whole and action != "error" else {}
    called = jit(function, backend="eager", **options)
    assert _played(called, action, True) == _played(function, action, True)


def test_shown() -> None:
    """Where nobody records: what is written to stderr, in a process of its own, because pytest records."""
    plain, jitted = (
        subprocess.run([sys.executable, __file__, how], capture_output=True, text=True, timeout=300, check=True,
                       env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        for how in ("plain", "jitted")
    )
    assert plain.stdout == jitted.stdout
    assert plain.stderr.count("Warning: ") > 50
    assert plain.stderr == jitted.stderr


def _show_all(how: str) -> None:
    for function, _ in FUNCTIONS:
        called = jit(function, backend="eager") if how == "jitted" else function
        for action in ("default", "always", "once"):
            print(function.__name__, action, file=sys.stderr)
            print(_played(called, action, False))


def test_filters_that_change_between_calls() -> None:
    jitpy.reset()
    called = jit(shown_under_filters_of_its_own, backend="eager")
    for action in ("always", "error", "ignore", "error", "always"):
        assert _played(called, action, True) == _played(shown_under_filters_of_its_own, action, True)


if __name__ == "__main__":
    _show_all(sys.argv[1])
