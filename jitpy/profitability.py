"""Functions whose graph breaks cost more than their graphs save run as plain Python.

A compiled part of a function saves eager's work for its operations, the bytecode that tracing interpreted once and for
all, and the memory traffic of results that nobody but the part reads. It costs a call, the code that hands over live
values and carries out side effects, and guards: paths through objects that each call makes anew are walked each time.
All of this is known for each variant; calls and walked paths are counted at its entry.

Once no variant has been added to a function for some calls, its balance is drawn. One that loses is left to Python for
good; one whose costs are many times its savings is so after few calls. Functions that it calls may still be compiled by
themselves, and are reviewed alike. Their parts of its savings and its costs are known: those that would lose by
themselves are not compiled. While a function runs, the frame hook slows down all frames below it, which it
counts: where what was compiled of them saves less than that, it stays off. So the answers depend on what was compiled
and called, never on a clock.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import config
from .frontend.bytecode.code import CodeTable
from .frontend.bytecode.resume_codes import origin_code
from .frontend.codegen.loop_bodies import owner_of
from .frontend.interpreter.interpreter import SymbolicInterpreter
from .ir import Graph, ScalarSpec, TensorSpec
from .ir.graph import GETITEM

#: Costs in nanoseconds: typical figures of small programs on a CPU. Only their ratios matter.
_OPERATION = 1500
_INSTRUCTION = 10
_BYTES_PER_NANOSECOND = 16
_CALL = 500
_PATH = 15
#: an instruction of generated code, of which most call something
_GENERATED = 25
_FRAME = 40
_WATCH = 2_000
#: calls between two reviews, at most
_LONGEST = 1 << 30
#: the first review comes after this part of `config.review_after`, and asks for a loss of so much in each call: what
#: was called so far may be no more than the cheap branches
_EARLY = 8
_EARLY_LOSS = 20_000


@dataclass(frozen=True, slots=True)
class Worth:
    """The savings and the cost of a variant at each call, and whether it ends in a break. The payload of its entry."""

    saved: float
    cost: float
    breaks: bool
    #: of the calls of each function inside: its code, the part of `saved` and of `cost`
    inside: tuple[tuple[weakref.ref[types.CodeType], float, float], ...] = ()


def worth_of(graph: Graph | None, breaks: bool, interp: SymbolicInterpreter, made: types.CodeType) -> Worth:
    """Of a variant that was traced by an interpreter, and of its code."""
    instructions = interp.step
    generated = sum(1 for at in range(0, len(made.co_code), 2) if made.co_code[at])  # caches are zeros
    saved = float(_INSTRUCTION * instructions)
    if graph is not None:
        nodes = [node for node in graph.nodes if node.op is not GETITEM and not isinstance(node.spec, ScalarSpec)]
        returned = {id(node) for node in graph.outputs} | {id(mutation.value) for mutation in graph.mutations}
        inner = sum(graph.sizes.hint(node.spec.nbytes) for node in nodes if isinstance(node.spec, TensorSpec)
                    and node.op.kind != "view" and id(node) not in returned)
        # a node of autograd's costs as much as the two passes of one operation
        differentiated = any(isinstance(node.spec, TensorSpec) and node.spec.requires_grad for node in graph.outputs)
        saved += _OPERATION * (2 * len(nodes) - 2 if differentiated else len(nodes)) + inner / _BYTES_PER_NANOSECOND
    root, *others = interp.counted()
    node = (saved - _INSTRUCTION * instructions) / max(root.nodes, 1)
    cost = _CALL + _GENERATED * generated
    inside = [(one.code, _INSTRUCTION * one.instructions + node * one.nodes,
               _CALL * one.calls + cost * one.at_break / max(root.at_break, 1)) for one in others]
    return Worth(saved, cost, breaks, tuple(inside))


class _Mark(NamedTuple):
    """The state of a function when it began to be asked whether frames below it are worth watching."""

    added: int  # variants of the engine
    saved: float  # by what was compiled below
    hits: int
    frames: int


class Reviews:
    """The reviews of one engine's functions."""

    def __init__(self) -> None:
        self._added = 0
        #: functions that would lose if they were compiled by themselves
        self.losers: CodeTable[bool] = CodeTable()
        #: calls since the last variant of its function, when a dispatcher is reviewed next
        self._waited: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._left: weakref.WeakSet[Any] = weakref.WeakSet()
        self._unwatched: weakref.WeakSet[Any] = weakref.WeakSet()
        self._marks: weakref.WeakKeyDictionary[Any, _Mark] = weakref.WeakKeyDictionary()

    def expect(self, dispatchers: Iterable[Any], dispatcher: Any, breaks: bool, review: Callable[[Any], None]) -> None:
        """A variant was added: review its function once it has settled. Without a break there is nothing to lose."""
        self._added += 1
        function = function_of(dispatchers, dispatcher.code)
        if config.review_after and (breaks or any(one.review_in for one in function)):
            for one in function:
                one.on_review = review
                self._wait(one, 0)

    def _wait(self, dispatcher: Any, waited: int) -> None:
        """Review after twice as many calls."""
        dispatcher.review_in = min(waited or max(config.review_after // _EARLY, 1), _LONGEST)
        self._waited[dispatcher] = waited + dispatcher.review_in

    def losing(self, dispatchers: Iterable[Any], dispatcher: Any) -> list[Any]:
        """The dispatchers of a function that has settled, if it loses."""
        waited = self._waited[dispatcher]
        self._wait(dispatcher, waited)
        function = function_of(dispatchers, dispatcher.code)
        costs, gains = _balance(function)
        is_early = waited < config.review_after and costs - gains < _EARLY_LOSS * waited
        if dispatcher in self._left or is_early or not _outweigh(costs, gains, waited):
            return []
        for one in function:
            one.review_in = 0
        self._look_inside(function)
        self._marks.clear()  # the counts of these go
        return function

    def _look_inside(self, function: list[Any]) -> None:
        """Find the functions whose breaks make another one lose that calls them: by themselves they would break too."""
        losses: dict[int, tuple[types.CodeType, float]] = {}
        for entry in [entry for one in function for entry in one.entries if isinstance(entry.payload, Worth)]:
            walked = _PATH * entry.guard.walked / entry.payload.cost
            for ref, saved, cost in entry.payload.inside:
                if (code := ref()) is not None:
                    loss = (cost - saved) * entry.hits + cost * walked
                    losses[id(code)] = code, losses.get(id(code), (code, 0.0))[1] + loss
        for code, loss in losses.values():
            if loss > 0:
                self.losers.set(code, True)

    def left(self, dispatcher: Any) -> None:
        """A function was left to Python: see later whether the frames below it are worth watching."""
        self._left.add(dispatcher)
        self._wait(dispatcher, 0)

    def watched_in_vain(self, dispatchers: Iterable[Any], dispatcher: Any) -> list[Any]:
        """The dispatchers of a function, if what was compiled below saves less than the frame hook costs there."""
        function = function_of(dispatchers, dispatcher.code)
        root = _root_of(function)
        if root is None or root in self._unwatched:
            return []
        own = set(map(id, function))
        costs, gains = _balance(one for one in dispatchers if id(one) not in own)
        entries = [entry for one in function for entry in one.entries]
        now = _Mark(self._added, gains - costs, sum(entry.hits for entry in root.entries),
                    sum(entry.frames for entry in entries))
        mark = self._marks.setdefault(root, now)
        if mark.added != self._added:
            self._marks[root] = now  # frames below are still being compiled
            return []
        calls = now.hits - mark.hits
        # a function that stays compiled may call rarely what is worth it
        costs = _FRAME * (now.frames - mark.frames) + _WATCH * (calls if root in self._left else -calls)
        if calls < config.review_after // _EARLY or costs <= 0 or not _outweigh(costs, now.saved - mark.saved, calls):
            return []
        self._unwatched.add(root)
        return function

    def watches(self, dispatchers: Iterable[Any], dispatcher: Any) -> bool:
        """Whether the frame hook is on below a function."""
        return not self._unwatched or _root_of(function_of(dispatchers, dispatcher.code)) not in self._unwatched


def _outweigh(costs: float, gains: float, calls: int) -> bool:
    """Whether costs are larger than gains, after some calls: the fewer there were, the larger."""
    return costs * min(calls, config.review_after) > gains * config.review_after


def _root_of(function: list[Any]) -> Any:
    """The dispatcher that the program calls, of those of a function. None for a function that the frame hook found."""
    return next((one for one in function if one.original is not None), None)


def function_of(dispatchers: Iterable[Any], code: types.CodeType) -> list[Any]:
    """The dispatchers of the function to which code belongs: its own, those of its resume functions and loops."""
    origin = _origin(code)
    return [one for one in dispatchers if _origin(one.code) is origin]


def _origin(code: types.CodeType) -> types.CodeType:
    return origin_code(owner_of(origin_code(code)))


def _balance(dispatchers: Iterable[Any]) -> tuple[float, float]:
    """Nanoseconds that all calls so far have cost, and that they have saved."""
    costs = gains = 0.0
    for one in dispatchers:
        for entry in one.entries:
            if isinstance(entry.payload, Worth):
                costs += entry.payload.cost * entry.hits + _PATH * entry.guard.walked
                gains += entry.payload.saved * entry.hits
    return costs, gains
