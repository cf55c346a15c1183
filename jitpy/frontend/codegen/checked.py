"""Graphs that may fail when they run: a size that depends on data is not what was assumed, or a node raises.

A graph is functional up to its copy-backs, so that a call which fails has changed nothing but the state of random
generators. That is put back, and the frame runs as plain Python: with eager's values, or with eager's exception at its
own place, after the side effects that come before it and inside the handlers that are around it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import _StopRecomputationError

from jitpy import config, logs
from jitpy.errors import BackendError
from jitpy.ir import Graph, Node
from jitpy.ir.graph import own_generators
from jitpy.runtime.autograd_node import random_state, set_random_state

#: Failures in a row after which a graph is tried less and less often, and the most calls between two trials.
_PATIENCE = 4
_LONGEST_PAUSE = 1024


class Checked:
    """A compiled graph that returns None where it fails; `take_failure` then says why.

    One that keeps failing is not run every time, so that a program whose sizes are never as expected costs little more
    than plain Python.
    """

    def __init__(self, compiled: Callable[..., tuple[Any, ...]], graph: Graph) -> None:
        self.compiled = compiled
        self.name = graph.name
        self.is_random = any(node.op.is_random for node in graph.nodes)
        self.generators = own_generators(graph)
        #: how often a check failed since the last success, and for how many calls the graph is left alone
        self.failures = 0
        self.pause = 0
        self._local = threading.local()

    def __call__(self, *inputs: Any) -> tuple[Any, ...] | None:
        if self.pause:
            self.pause -= 1
            return None
        state = random_state(self.generators) if self.is_random else None
        try:
            result = self.compiled(*inputs)
            self.failures = 0
            return result
        except (BackendError, _StopRecomputationError):  # a checkpoint around the call has all that it saved
            raise
        except Exception as error:
            self.failures += 1
            if self.failures > _PATIENCE:
                self.pause = min(1 << (self.failures - _PATIENCE), _LONGEST_PAUSE)
            self._local.failure = error
            reason = f"{type(error).__name__}: {error}"
            logs.log("fallbacks", lambda: f"{self.name} gave up a call: {reason}")
        if state is not None:
            set_random_state(state)
        return None

    def take_failure(self) -> Exception | None:
        """Why this thread's last call returned None, where that is an error of jitpy's own unless the program raises
        too; errors of that kind no operation raises for its values."""
        failure: Exception | None = self._local.__dict__.pop("failure", None)
        return failure if config.raise_errors and isinstance(failure, _INTERNAL) else None


_INTERNAL = (AttributeError, NameError, AssertionError, SystemError)


def runs_once(node: Node) -> bool:
    """Whether a node must not run a second time, as it would where a check fails after it: it may have effects."""
    op = node.op
    ours = op.name.startswith(("py.", "ir.")) or isinstance(op.target, torch._ops.OpOverload)
    return not (op.is_pure and ours)


__all__ = ["Checked", "runs_once"]
