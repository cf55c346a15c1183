"""Warnings and log messages: what is said, in which order, and which line it is said of. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import functools
import io
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from jitpy import graph_break
from tests.semantics.harness import case, jit, make_test

FUNCTIONS: list[tuple[Callable[..., Any], bool]] = []


def warns(whole: bool = True) -> Callable[[Any], Any]:
    """Register a function that warns; `whole` says that it is one graph where warnings are no errors."""

    def register(function: Any) -> Any:
        FUNCTIONS.append((function, whole))
        return function

    return register


def _old(x, k=2):
    warnings.warn("old", DeprecationWarning)
    return x * k


def _old_of_caller(x):
    warnings.warn("old for its caller", FutureWarning, stacklevel=2)
    return x + 1


def _between(x):
    return _old_of_caller(x) * 2


def deprecated(text):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            warnings.warn(f"{function.__name__}: {text}", category=DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return wrapper

    return decorate


@deprecated("use another")
def _scaled(x, k=3):
    return x * k


@warns()
def in_the_function(x):
    y = x + 1
    warnings.warn("plain")
    return y.sin()


@warns()
def in_a_callee(x):
    return _old(x + 1, k=3).sin()


@warns()
def of_the_callers_line(x):
    y = _between(x)
    return _old_of_caller(y) + 1


@warns()
def of_the_line_that_calls_the_function(x):
    warnings.warn("called", stacklevel=2)
    return _far(x)


def _far(x):
    warnings.warn("called from afar", stacklevel=3)
    warnings.warn("called from nowhere", stacklevel=300)
    return x * 2


@warns()
def deprecated_function(x):
    return _scaled(x + 1) + _scaled(x, k=4)


@warns()
def several_of_one_line(x):
    for i in range(3):
        warnings.warn(f"number {i} of {x.shape[0]}")
        warnings.warn("the same")
        x = x + i
    return x


@warns()
def an_instance(x):
    error = DeprecationWarning("an instance", 1)
    warnings.warn(error)
    return x + 1


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.warned = False

    def forward(self, x):
        if not self.warned:
            warnings.warn("once for each layer", stacklevel=1)
            self.warned = True
        warnings.warn("the module's caller", stacklevel=2)
        warnings.warn("the caller of the module", stacklevel=4)
        return x * 2


@warns()
def in_a_module(x):
    return Layer()(x) + 1


@warns(whole=False)
def around_a_break(x):
    x = _old(x)
    graph_break()
    x = _between(x)
    warnings.warn("behind", stacklevel=2)
    return x + 1


def _breaks(x):
    x = _old_of_caller(x)
    graph_break()
    warnings.warn("behind a break in a callee", stacklevel=2)
    return x * 2


@warns(whole=False)
def around_a_break_in_a_callee(x):
    return _breaks(x + 1) * 3


@warns(whole=False)
def caught(x):
    try:
        x = _old(x) + 1
    except DeprecationWarning as error:
        return x - 1, str(error)
    return x, None


@warns(whole=False)
def written_before(x):
    x.add_(1)
    x = _old(x)
    x.add_(1)
    return x


@warns(whole=False)
def refused(x):
    try:
        warnings.warn("a", int)
    except TypeError as error:
        return str(error), x + 1


@warns(whole=False)
def recorded_inside(x):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        y = _old(x)
    return y + 1, [(str(one.message), one.lineno) for one in said]


@warns(whole=False)
def an_error_inside(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            y = _old(x)
        except DeprecationWarning as error:
            return str(error), x + 2
    return y


@warns(whole=False)
def ignored_inside(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = _between(_old(x))
    return y * 2


def _played(called: Callable[..., Any], action: str) -> Any:
    globals().pop("__warningregistry__", None)
    seen = []
    for _ in range(3):
        x = torch.arange(4.0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter(action)
            try:
                result = called(x)
            except Warning as error:
                result = ("raised", type(error).__name__, str(error))
        where = [(str(one.message), one.category.__name__, os.path.basename(one.filename), one.lineno) for one in said]
        shown = [part.tolist() if isinstance(part, torch.Tensor) else part
                 for part in (result if isinstance(result, tuple) else (result,))]
        seen.append((shown, x.tolist(), where))
    registry = {key for key in globals().get("__warningregistry__", {}) if key != "version"}
    return seen, registry


@pytest.mark.parametrize("action", ["always", "default", "once", "ignore", "error"])
@pytest.mark.parametrize(("function", "whole"), FUNCTIONS, ids=lambda one: getattr(one, "__name__", ""))
def test_warnings(function: Any, whole: bool, action: str) -> None:
    jitpy.reset()
    options = {"fullgraph": True} if whole and action != "error" else {}
    called = jit(function, backend="eager", **options)
    assert _played(called, action) == _played(function, action)


def test_filters_that_change_between_calls() -> None:
    jitpy.reset()
    called = jit(in_a_callee, backend="eager")
    for action in ("always", "error", "ignore", "error", "always"):
        assert _played(called, action) == _played(in_a_callee, action)


def test_a_filter_for_others_is_no_error() -> None:
    jitpy.reset()
    called = jit(in_a_callee, backend="eager", fullgraph=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warnings.simplefilter("error", UserWarning)
        called(torch.ones(2))
    assert [str(one.message) for one in said] == ["old"]


def test_what_shows_warnings_runs_at_its_place() -> None:
    state = {"level": 0}
    seen = []

    def function(x):
        state["level"] = 1
        warnings.warn("now")
        state["level"] = 2
        return x + 1

    def show(message, *rest, **others):
        seen.append((str(message), state["level"]))

    jitpy.reset()
    called = jit(function, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        called(torch.ones(2))
        called(torch.ones(2))
    assert seen == [("now", 1), ("now", 1)]


# -- logging --------------------------------------------------------------------------------------------------


class Keeping(logging.Handler):
    """A handler of the program's own, which sees what the program has written by then."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append((record.getMessage(), record.levelname, record.funcName, record.lineno))


def _logger(name: str, *handlers: logging.Handler, level: int = logging.INFO) -> logging.Logger:
    log = logging.getLogger(f"{__name__}.{name}")
    log.setLevel(level)
    log.propagate = False
    log.handlers[:] = handlers
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(funcName)s:%(lineno)d %(message)s"))
    return log


LOG = _logger("log")


def _logs(x):
    LOG.info("shape %s of %d", x.shape, x.dim())
    LOG.debug("not said %s", x)
    return x + 1


def _logs_for_its_caller(x):
    LOG.warning("for the caller", stacklevel=2)
    return x * 2


@functools.lru_cache(None)
def _once(text):
    LOG.warning(text)


def logging_everywhere(x):
    print("first")
    y = _logs(x * 2)
    LOG.warning("warned %s", "a")
    LOG.log(logging.ERROR, "dict %(a)s", {"a": x.shape[0]})
    y = _logs_for_its_caller(y)
    print("last")
    if LOG.isEnabledFor(logging.INFO):
        y = y + 1
    if LOG.isEnabledFor(logging.DEBUG):
        y = y + 10
    return y


def _logged(called: Callable[..., Any]) -> Any:
    seen = []
    for level in (logging.INFO, logging.INFO, logging.DEBUG, logging.CRITICAL, logging.INFO):
        stream = io.StringIO()
        _logger("log", logging.StreamHandler(stream), level=level)
        seen.append((called(torch.arange(3.0)).tolist(), stream.getvalue()))
    return seen


def test_logging() -> None:
    jitpy.reset()
    assert _logged(jit(logging_everywhere, backend="eager")) == _logged(logging_everywhere)


def test_logging_is_one_graph() -> None:
    jitpy.reset()
    stream = io.StringIO()
    _logger("log", logging.StreamHandler(stream))
    jit(logging_everywhere, backend="eager", fullgraph=True)(torch.arange(3.0))
    assert "INFO" in stream.getvalue()


@case(lambda: (torch.arange(4.0),), factory=True)
def a_handler_of_the_program():
    handler = Keeping()
    log = _logger("own", handler)

    def function(x):
        log.info("shape %s", x.shape)
        seen = len(handler.kept)
        log.info("seen %d", seen)
        return x + seen

    return function, handler.kept


@case(lambda: (torch.arange(4.0),), fullgraph=True)
def loggers_by_name(x):
    log = logging.getLogger("tests.semantics.test_warnings_and_logging.log")
    log.debug("said to nobody")
    return x + 1, log is LOG, logging.getLogger() is logging.root


@case(lambda: (torch.arange(4.0),))
def logger_that_is_new(x):
    log = logging.getLogger(f"{__name__}.new{x.shape[0]}")
    log.debug("said to nobody")
    return x + 1, log.name


@case(lambda: (torch.arange(4.0),))
def an_exception_logged(x):
    try:
        raise ValueError("v")
    except ValueError:
        logging.getLogger("tests.semantics.test_warnings_and_logging.log").debug("q", exc_info=True)
        x = x * 2
    return x


test_all = make_test(__name__)
