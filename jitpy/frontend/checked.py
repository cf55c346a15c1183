"""Graphs that check sizes which depend on data, and what happens where a check fails.

A graph is functional up to its copy-backs, so that a call which fails a check has changed nothing but the state of
random generators. That is put back, and the frame runs as plain Python: with eager's values, or eager's error.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from jitpy import logs
from jitpy.ir import Graph
from jitpy.ir.sizes import SizeCheckFailed


class Checked:
    """A compiled graph that returns None where a check of its sizes fails."""

    def __init__(self, compiled: Callable[..., tuple[Any, ...]], graph: Graph) -> None:
        self.compiled = compiled
        self.name = graph.name
        self.is_random = any(node.op.is_random for node in graph.nodes)
        #: how often a check failed
        self.failures = 0

    def __call__(self, *inputs: Any) -> tuple[Any, ...] | None:
        state = _random_state() if self.is_random else None
        try:
            return self.compiled(*inputs)
        except SizeCheckFailed as error:
            self.failures += 1
            reason = str(error)
            logs.log("graph", lambda: f"{self.name} gave up a call: {reason}")
        if state is not None:
            _set_random_state(state)
        return None


def _random_state() -> tuple[torch.Tensor, list[torch.Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _set_random_state(state: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


def run_plainly(code: types.CodeType, globals: dict[str, Any], cells: tuple[Any, ...], params: tuple[Any, ...]) -> Any:
    """Run a frame's own code, all of whose parameters are positional."""
    return types.FunctionType(code, globals, code.co_name, None, cells or None)(*params)


__all__ = ["Checked", "run_plainly"]
