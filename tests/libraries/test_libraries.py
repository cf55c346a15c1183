"""Programs of well-known libraries, jitted and plain: the same results call by call, and no error inside jitpy.

`make test` runs the light ones, `make test-all` every one. `-s` prints how warm calls compare.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

from .programs import PROGRAMS, Program, declare_torchvisions_operators, missing

#: Calls with data of their own. The last ones are timed.
CALLS, TIMED = 12, 4


def _timed(fn: Callable[..., Any], arguments: tuple[Any, ...], seed: int) -> tuple[Any, float]:
    torch.manual_seed(seed)
    started = time.perf_counter()
    result = fn(*arguments)
    return result, time.perf_counter() - started


def _run(program: Program) -> dict[str, list[float]]:
    """Compares all calls. Returns the seconds of the warm ones."""
    torch.manual_seed(0)
    eager, inputs = program.make()
    torch.manual_seed(0)
    jitted = jitpy.jit(program.make()[0])
    taken: dict[str, list[float]] = {"eager": [], "jitted": []}
    for number in range(CALLS):
        torch.manual_seed(100 + number)
        arguments = inputs(number)
        torch.manual_seed(100 + number)
        copies = inputs(number)
        want, eagers = _timed(eager, arguments, number)
        got, ours = _timed(jitted, copies, number)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(copies, arguments, rtol=0, atol=0)
        if number >= CALLS - TIMED:
            taken["eager"].append(eagers)
            taken["jitted"].append(ours)
    return taken


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if program.light else pytest.mark.extended)
                                  for name, program in PROGRAMS.items()])
def test_as_eager(name: str) -> None:
    program = PROGRAMS[name]
    if (library := missing(program)) is not None:
        pytest.skip(f"{library} is not installed")
    declare_torchvisions_operators()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        taken = _run(program)
    ours = [str(w.message) for w in caught if str(w.message).startswith("jitpy")]
    assert [text for text in ours if "recompile_limit" not in text] == []
    ratio = statistics.median(taken["eager"]) / statistics.median(taken["jitted"])
    print(f"{name}: {ratio:.2f} times as fast as eager when warm")
