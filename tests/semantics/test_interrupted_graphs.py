"""What a graph raises that no graph is expected to raise (the user interrupts, memory is short): behind a break, the
`with` and `try` blocks that the break is in are left with it, so that modes, locks and files are as in eager.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitpy

_fails: list[type[BaseException]] = []
_left: list[str] = []


@torch.library.custom_op("jitpy_tests::interrupted", mutates_args=())
def interrupted(x: torch.Tensor) -> torch.Tensor:
    if _fails:
        raise _fails[0]("stop")
    return x.clone()


@interrupted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@contextlib.contextmanager
def noted(name: str) -> Iterator[None]:
    try:
        yield
    finally:
        _left.append(name)


def grad_mode(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        jitpy.graph_break()
        return interrupted(x) + 1


def caught(x: torch.Tensor) -> Any:
    try:
        with noted("inner"), torch.no_grad():
            jitpy.graph_break()
            return interrupted(x) + 1
    except (RuntimeError, KeyboardInterrupt):
        return "caught", torch.is_grad_enabled()


def _callee(x: torch.Tensor) -> torch.Tensor:
    jitpy.graph_break()
    return interrupted(x) * 2


def in_callee(x: torch.Tensor) -> torch.Tensor:
    number = 3
    with torch.no_grad():
        def three() -> int:
            return number

        return _callee(x) + three()


def _guarded_callee(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        jitpy.graph_break()
        return interrupted(x) * 2


def callee_with_the_block(x: torch.Tensor) -> torch.Tensor:
    return _guarded_callee(x) + 1


def in_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        with torch.no_grad():
            jitpy.graph_break()
            x = interrupted(x) + 1
    return x


def at_last(x: torch.Tensor) -> torch.Tensor:
    try:
        jitpy.graph_break()
        return interrupted(x) + 1
    finally:
        _left.append("finally")


def _outcome(function: Callable[..., Any]) -> tuple[Any, bool, list[str]]:
    _left.clear()
    try:
        found = function(torch.ones(3, requires_grad=True))
        found = found.tolist() if isinstance(found, torch.Tensor) else found
    except (RuntimeError, KeyboardInterrupt) as error:
        found = repr(error)
    mode = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return found, mode, list(_left)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("function", [grad_mode, caught, in_callee, callee_with_the_block, in_loop, at_last],
                         ids=lambda function: function.__name__)
def test_blocks_are_left(function: Callable[..., Any], backend: str) -> None:
    jitted = jitpy.jit(function, backend=backend)
    try:
        for failure in (None, KeyboardInterrupt, RuntimeError, None):
            _fails[:] = [] if failure is None else [failure]
            assert _outcome(jitted) == _outcome(function), failure
    finally:
        _fails.clear()
