"""What reports say of breaks: all parts of a function, where each break is, and advice that fits."""

from __future__ import annotations

import contextvars
import random
import threading
import time

import numpy as np
import pytest
import torch

import jitpy

LOCK = threading.Lock()
HERE = threading.local()
HERE.scale = 2
VARIABLE = contextvars.ContextVar("VARIABLE", default=3)


def with_a_local_function(x):
    def twice(y):
        return y * 2

    x = twice(x)
    jitpy.graph_break()
    return twice(x).sin()


def draws(x):
    return x * random.betavariate(x.sum().item(), 1)


def draws_bytes(x):
    return x * random.randbytes(3)[0]


def draws_with_numpy(x):
    return x * float(np.random.uniform(x.sum().item(), 9.0))


def reads_the_clock(x):
    return x * len(time.strftime("%Y"))


def takes_a_lock(x):
    with LOCK:
        return x + 1


def reads_a_thread_local(x):
    return x * HERE.__dict__["scale"]


def reads_a_context_variable(x):
    return x * len(VARIABLE.name)


def opens_a_file(x):
    with open("/dev/null", "w") as file:
        file.write("nothing")
    return x + 1


def test_the_part_behind_a_break_is_reported_with_local_functions() -> None:
    report = jitpy.explain(with_a_local_function)(torch.ones(3))
    assert [frame.is_resume for frame in report.frames] == [False, True]
    assert report.op_count == 3
    assert [record.reason.id for record in report.break_reasons] == ["user"]


@pytest.mark.parametrize(("function", "advice"), [
    (draws, "draw them with torch"),
    (draws_bytes, "draw them with torch"),
    (draws_with_numpy, "draw them with torch"),
    (reads_the_clock, "clock"),
    (takes_a_lock, "locks"),
    (reads_a_thread_local, "pass the value in"),
    (reads_a_context_variable, "pass the value in"),
    (opens_a_file, "Files"),
])
def test_advice_fits_what_was_called(function, advice: str) -> None:
    report = jitpy.explain(function)(torch.ones(3))
    record = report.break_reasons[-1]
    assert advice in record.hint and record.hint in str(record) and record.hint == record.to_dict()["hint"]
    assert record.filename == __file__ and record.line > function.__code__.co_firstlineno
    assert record.source_line


def test_a_break_in_a_callback_says_what_broke() -> None:
    def key(value):
        jitpy.graph_break()
        return -value

    def function(x):
        return x * sorted([1, 2], key=key)[0]

    (record, *_) = jitpy.explain(function)(torch.ones(3)).break_reasons
    assert "jitpy.graph_break() was called" in str(record)
