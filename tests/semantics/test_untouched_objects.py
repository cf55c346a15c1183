"""Compiling leaves alone what the program itself does not touch."""

from __future__ import annotations

from collections.abc import Callable

import torch

import jitpy


class _Silent:
    """Nobody may ask for its text."""

    def __repr__(self) -> str:
        raise AssertionError("asked for its text")


_silent = _Silent()


def _makes(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def callee(x: torch.Tensor) -> torch.Tensor:
        jitpy.graph_break()
        return x * number

    return callee


def test_globals_of_a_callee_that_breaks_inside_a_block() -> None:
    callee = _makes(3)

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return callee(x) + 1

    jitted = jitpy.jit(function, backend="eager")
    for _ in range(2):
        assert jitted(torch.ones(3)).tolist() == [4, 4, 4]
