"""Functions whose graph breaks cost more than their graphs save run as plain Python.

A compiled part of a function saves eager's work for its operations, the bytecode that tracing interpreted once and for
all, and the memory traffic of results that nobody but the part reads. It costs a call, the hand-over of live values
behind a break, and guards: paths through objects that each call makes anew are walked each time. All of this is known
for each variant; calls and walked paths are counted at its entry. Once no variant has been added to a function for some
calls, its balance is drawn. A function that loses is left to Python for good. Functions that it calls may still be
compiled by itself, and is reviewed alike. So the answer depends on what was compiled and called, never on a clock.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from . import config
from .frontend.bytecode.resume_codes import origin_code
from .frontend.codegen.loop_bodies import owner_of
from .ir import Graph, ScalarSpec, TensorSpec
from .ir.graph import GETITEM

#: Costs in nanoseconds: typical figures of small programs on a CPU. Only their ratios matter.
_OPERATION = 1500
_INSTRUCTION = 10
_BYTES_PER_NANOSECOND = 16
_CALL = 500
_PATH = 150
_FRAME_HOOK = 20_000


@dataclass(frozen=True, slots=True)
class Worth:
    """The savings of one variant at each call, and whether it ends in a graph break. The payload of its entry."""

    saved: float
    breaks: bool


def worth_of(graph: Graph | None, breaks: bool, instructions: int) -> Worth:
    """Of a variant that was traced in so many instructions."""
    saved = float(_INSTRUCTION * instructions - _CALL)
    if graph is not None:
        nodes = [node for node in graph.nodes if node.op is not GETITEM and not isinstance(node.spec, ScalarSpec)]
        returned = {id(node) for node in graph.outputs} | {id(mutation.value) for mutation in graph.mutations}
        inner = sum(graph.sizes.hint(node.spec.nbytes) for node in nodes if isinstance(node.spec, TensorSpec)
                    and node.op.kind != "view" and id(node) not in returned)
        # a node of autograd's costs as much as the two passes of one operation
        differentiated = any(isinstance(node.spec, TensorSpec) and node.spec.requires_grad for node in graph.outputs)
        saved += _OPERATION * (2 * len(nodes) - 2 if differentiated else len(nodes)) + inner / _BYTES_PER_NANOSECOND
    return Worth(saved, breaks)


class Reviews:
    """The reviews of one engine's functions."""

    def __init__(self) -> None:
        self._added = 0
        #: functions that were left to Python: variants of the engine then, and the balance of all others
        self._left: weakref.WeakKeyDictionary[Any, tuple[int, float]] = weakref.WeakKeyDictionary()

    def expect(self, dispatchers: Iterable[Any], dispatcher: Any, breaks: bool, review: Callable[[Any], None]) -> None:
        """A variant was added: review its function once it has settled. Without a break there is nothing to lose."""
        self._added += 1
        function = function_of(dispatchers, dispatcher.code)
        if config.review_after and (breaks or any(one.review_in for one in function)):
            for one in function:
                one.on_review, one.review_in = review, config.review_after

    def losing(self, dispatchers: Iterable[Any], dispatcher: Any) -> list[Any]:
        """The dispatchers of a function that has settled, if it loses."""
        function = function_of(dispatchers, dispatcher.code)
        if dispatcher in self._left or balance(function) >= 0:
            return []
        for one in function:
            one.review_in = 0
        return function

    def left(self, dispatchers: Iterable[Any], dispatcher: Any) -> None:
        """A function was left to Python: see later whether the frames below it are worth watching."""
        self._left[dispatcher] = self._added, balance(dispatchers)
        dispatcher.review_in = config.review_after

    def is_watched_in_vain(self, dispatchers: Iterable[Any], dispatcher: Any) -> bool:
        """Whether the functions below one that was left to Python save less than the frame hook costs."""
        if dispatcher not in self._left:
            return False
        added, before = self._left[dispatcher]
        if added == self._added:
            return balance(dispatchers) - before < _FRAME_HOOK * config.review_after
        self.left(dispatchers, dispatcher)  # they are still being compiled
        return False


def function_of(dispatchers: Iterable[Any], code: types.CodeType) -> list[Any]:
    """The dispatchers of the function to which code belongs: its own, those of its resume functions and loops."""
    origin = _origin(code)
    return [one for one in dispatchers if _origin(one.code) is origin]


def _origin(code: types.CodeType) -> types.CodeType:
    return origin_code(owner_of(origin_code(code)))


def balance(dispatchers: Iterable[Any]) -> float:
    """Nanoseconds that all calls so far have saved."""
    return sum(entry.hits * entry.payload.saved - _PATH * entry.guard.walked for one in dispatchers
               for entry in one.entries if isinstance(entry.payload, Worth))
