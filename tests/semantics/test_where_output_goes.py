"""What is printed, logged and warned of goes where the program wants it then. PYTEST_DONT_REWRITE: run as written."""

from __future__ import annotations

import collections
import contextlib
import io
import logging
import os
import sys
import warnings
from typing import Any

import torch

from tests.semantics.harness import case, make_test


def graph_break(message: str = "") -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    from jitpy import graph_break  # type: ignore[no-redef]


def one() -> tuple[Any, ...]:
    return (torch.randn(4),)


@case(one)
def printed_into_a_buffer_behind_a_break(x):
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer):
        graph_break()
        print("inside", tuple(x.shape))
    print("outside")
    return x + 1, buffer.getvalue()


@case(one)
def printed_before_and_after_an_exchange_of_stdout(x):
    buffer, old = io.StringIO(), sys.stdout
    print("first")
    sys.stdout = buffer
    y = x * 2
    print("second")
    graph_break()
    print("third")
    sys.stdout = old
    print("fourth")
    return y, buffer.getvalue()


class Redirected:
    def __enter__(self):
        self.old, self.buffer = sys.stdout, io.StringIO()
        sys.stdout = self.buffer
        return self.buffer

    def __exit__(self, *error):
        sys.stdout = self.old


@case(one)
def printed_under_a_manager_of_ones_own(x):
    with Redirected() as buffer:
        graph_break()
        print("inside")
        x = x + 1
    return x, buffer.getvalue()


@case(one, factory=True)
def exchanged_through_the_modules_dict():
    buffer, kept = io.StringIO(), []

    def fn(x):
        kept.append(sys.stdout)
        print("a")
        sys.__dict__.update(stdout=buffer)
        x = x + 1
        graph_break()
        print("b")
        sys.__dict__["stdout"] = kept.pop()
        return x, buffer.getvalue()

    return fn


def _logger() -> tuple[logging.Logger, logging.StreamHandler, io.StringIO]:
    logger = logging.Logger("own", logging.INFO)
    buffer = io.StringIO()
    handler = logging.StreamHandler(buffer)
    logger.addHandler(handler)
    return logger, handler, buffer


@case(one, factory=True)
def a_logger_switched_off_behind_a_message():
    logger, _, buffer = _logger()

    def fn(x):
        logger.info("said")
        logger.disabled = True
        y = x + 1
        logger.info("not said")
        logger.disabled = False
        return y, buffer.getvalue()

    return fn


@case(one, factory=True)
def a_logger_that_ends_switched_off():
    logger, _, buffer = _logger()

    def read(x):
        return fn(x), buffer.getvalue()

    def fn(x):
        graph_break()
        logger.disabled = False
        x = x + 1
        graph_break()
        logger.info("said")
        logger.disabled = True
        return x * 2

    return read


@case(one, factory=True)
def handlers_changed_behind_a_message():
    logger, handler, buffer = _logger()
    other = io.StringIO()

    def fn(x):
        logger.info("one")
        handler.level = logging.ERROR
        handler.stream = other
        x = x + 1
        logger.handlers.clear()
        graph_break()
        logger.handlers.append(handler)
        handler.level = 0
        logger.info("two")
        handler.formatter = logging.Formatter("!%(message)s")
        graph_break()
        logger.info("three")
        handler.formatter = None
        handler.stream = buffer
        return x, buffer.getvalue(), other.getvalue()

    return fn


@case(one, factory=True)
def a_function_that_shows_warnings_set_behind_one():
    shown: list[str] = []

    def show(message, category, filename, lineno, file=None, line=None):
        shown.append(str(message))

    def fn(x):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("before", stacklevel=1)
            warnings.showwarning = show
            warnings.warn("after", stacklevel=1)
        return x + 1, list(shown)

    return fn


class Lines:
    def __init__(self):
        self.parts = []

    def write(self, text):
        self.parts.append(text)

    def flush(self):
        pass


@case(one)
def printed_to_an_object_that_the_program_reads(x):
    lines = Lines()
    with contextlib.redirect_stdout(lines):
        print("a")
        x = x + 1
        graph_break()
        print("b")
        count = len(lines.parts)
        lines.parts.append("|")
        print("c")
        graph_break()  # or the end of the block were reason enough to print at once
    return x, count, lines.parts


@case(one, factory=True)
def printed_to_an_object_that_is_read_elsewhere():
    lines, plain = Lines(), io.StringIO()
    parts = lines.parts

    def inner(x):
        graph_break()
        x = x * 2
        print("b")
        parts.append(len(parts))
        print("c")
        count = len(parts)
        graph_break()
        return x, count

    def fn(x):
        with contextlib.redirect_stdout(plain):
            first = inner(x)
        with contextlib.redirect_stdout(lines):
            second = inner(x)
        return first, second, list(parts), plain.getvalue()

    return fn


class OnlyEnter:
    def __enter__(self):
        return 1


class OnlyExit:
    def __exit__(self, *error):
        return True


@case(one)
def no_context_managers(x):
    found = []
    for manager in (OnlyEnter(), OnlyExit(), x, 3, contextlib, OnlyEnter, collections.deque(), None):
        try:
            with manager:
                x = x + 1
        except TypeError as error:
            found.append(str(error))
    return x, found


test_all = make_test(__name__)
