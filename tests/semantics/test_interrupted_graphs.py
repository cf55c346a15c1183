"""What a graph raises that no graph is expected to raise (the user interrupts, memory is short): behind a break, the
`with` and `try` blocks that the break is in are left with it, so that modes, locks and files are as in eager.
"""

from __future__ import annotations

import array
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


class _Noted:
    """As `noted`, traced."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        _left.append(f"{self.name}: {kind}")


def behind_the_block(x: torch.Tensor) -> torch.Tensor:
    memory = array.array("i", [0])
    with _Noted("outer"), _Noted("inner"), torch.no_grad():
        memory[0] = 1  # breaks the graph, and the next instruction leaves the block
    return interrupted(x) + 1


def behind_inner_blocks(x: torch.Tensor) -> torch.Tensor:
    memory = array.array("i", [0])
    with _Noted("outer"):
        with _Noted("inner"), torch.no_grad():
            memory[0] = 1
        return interrupted(x) + 1


def _returns_inside(x: torch.Tensor) -> torch.Tensor:
    with _Noted("callee"), torch.no_grad():
        return _unseen(x)


@jitpy.disable
def _unseen(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def behind_a_callee(x: torch.Tensor) -> torch.Tensor:
    with _Noted("caller"):
        return interrupted(_returns_inside(x)) + 1


def behind_callees_alone(x: torch.Tensor) -> torch.Tensor:
    return interrupted(_returns_inside(x)) + 1


def left_by_continue(x: torch.Tensor) -> torch.Tensor:
    memory = array.array("i", [0])
    for k in range(2):
        with torch.no_grad():
            if k == 0:
                memory[0] = 1
                continue
        x = interrupted(x) * 2
    return x


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
@pytest.mark.parametrize("function", [grad_mode, caught, in_callee, callee_with_the_block, in_loop, at_last,
                                      behind_the_block, behind_inner_blocks, behind_a_callee,
                                      behind_callees_alone, left_by_continue],
                         ids=lambda function: function.__name__)
def test_blocks_are_left(function: Callable[..., Any], backend: str) -> None:
    jitted = jitpy.jit(function, backend=backend)
    try:
        for failure in (None, KeyboardInterrupt, RuntimeError, None):
            _fails[:] = [] if failure is None else [failure]
            assert _outcome(jitted) == _outcome(function), failure
    finally:
        _fails.clear()
