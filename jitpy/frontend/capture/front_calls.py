"""Calls that compiled code makes in front of the graph, in the program's order: random numbers drawn outside torch, and
clocks.

Nobody can tell whether a number was drawn there or between the operations of the graph, as long as all goes well; where
the graph gives up a call (`codegen/checked.py`), the generators are put back and the program draws for itself. Tracing
does not make the calls: what they return enters the graph as inputs, whose values are never known.

A clock is read in front of the graph where no operation comes before it, else behind it (`late`), if none comes after
it and the graph does not need what it says. That is an assumption; where it is lost, another graph begins at the clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jitpy.ir import Node, Op, ScalarSpec

from ...ir.failures import cannot_raise
from ..breaks import GraphBreak, RestartAnalysis
from ..guards.source import CallSource
from ..values import UNKNOWN, ScalarValue, Value, tree_map
from .traced import GraphBuilder, GraphInput, TracedScalar

if TYPE_CHECKING:
    from ..values import Interpreter


@dataclass(frozen=True, slots=True, eq=False)
class FrontCall:
    """`function(*args, **kwargs)`; its results go to `results`, one each, or nowhere."""

    function: Callable[..., Any]
    args: list[Value]
    kwargs: dict[str, Value]
    results: tuple[CallSource, ...]
    #: whether the results are the items of what the call returns
    unpack: bool = False
    #: the generator that it advances
    generator: Value | None = None
    #: the step at which the program made it, and how many operations had come before
    step: int = -1
    position: int = 0

    @property
    def late(self) -> bool:
        return any(source.late for source in self.results)


def _same(value: Any) -> Any:
    return value


#: An int that such a call returned: a node, because a graph's sizes are told by nodes.
_INT = Op("py.drawn", _same, kind="host", failure="never")


def new_source(interp: Interpreter, function: Callable[..., Any], late: bool = False) -> CallSource:
    """A place for one more result."""
    number = sum(max(1, len(call.results)) for call in interp.front_calls)
    return CallSource(number, f"{getattr(function, '__name__', 'call')}()", late)


def number_input(builder: GraphBuilder, kind: type, source: CallSource, bounds: tuple[Any, Any] | None) -> ScalarValue:
    """A graph input that brings a number which a call returned, within `bounds` where these are known."""
    node = builder.graph.add_input(ScalarSpec(kind), kind.__name__, source=source)
    found = TracedScalar(node)
    builder.inputs.append(GraphInput(None, source, found))
    if kind is int:
        node = builder.graph.add(_INT, (node,), {}, ScalarSpec(int), builder.loc, grad_enabled=False)
        found = TracedScalar(node)
    if bounds is not None:
        node.meta["bounds"] = bounds
    return ScalarValue(found)


#: a number that takes more steps is computed by the graph
_LONGEST = 24


def is_beside_graph(node: Any) -> bool:
    """Whether a number is computed from results of such calls, without the graph and without raising."""
    return _steps(node, _LONGEST) <= _LONGEST and bool(_calls_behind(node))


def is_in_front(node: Any) -> bool:
    """... of calls in front of the graph."""
    return is_beside_graph(node) and not any(source.late for source in _calls_behind(node))


def _steps(value: Any, limit: int) -> int:
    if type(value) in (int, float, bool):
        return 0
    meta = getattr(value, "meta", None)
    if meta is None or limit < 0:
        return limit + 1
    if isinstance(meta.get("source"), CallSource):
        return 0
    if value.op.kind != "host" or value.kwargs or value.op is not _INT and not cannot_raise(value.op):
        return limit + 1
    total = 1
    for arg in value.args:
        total += _steps(arg, limit - total)
        if total > limit:
            break
    return total


def _calls_behind(*values: Any) -> set[CallSource]:
    """The results that numbers are computed from."""
    found: set[CallSource] = set()
    seen: set[Any] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if not isinstance(value, Node) or value in seen:
            continue
        seen.add(value)
        source = value.meta.get("source")
        if isinstance(source, CallSource):
            found.add(source)
        elif value.op.kind == "host":
            waiting += value.args
    return found


def violated_assumption(interp: Interpreter) -> RestartAnalysis | None:
    """The way out where a clock is read behind the graph that has to be read in its middle."""
    late = [call for call in interp.front_calls if call.late]
    nodes = interp.builder.graph.nodes if late else []
    asked: set[CallSource] = set()
    for node in nodes:
        told = {source for source in _calls_behind(*node.input_nodes()) if source.late}
        if told and (node.op.kind != "host" or node.op is not _INT and not cannot_raise(node.op)
                     or isinstance(node.spec, ScalarSpec) and node.spec.expr is not None):
            asked |= told
    asked |= _calls_behind(*interp.builder.graph.outputs)
    for call in late:
        if not asked.isdisjoint(call.results) or any(node.op.kind != "host" for node in nodes[call.position:]):
            return RestartAnalysis(call.step, GraphBreak("clock", f"{call.results[0]}", split=True))
    return None


def is_late(node: Any) -> bool:
    """Whether a graph's input is told behind the graph."""
    source = node.meta.get("source")
    return isinstance(source, CallSource) and source.late


def function_of(node: Any) -> Callable[..., Any] | None:
    """The function that computes a number from others, None where it is one of them."""
    return None if node.op is _INT else node.op.target


def is_loadable(interp: Interpreter, value: Value) -> bool:
    """Whether a value can be had in front of the graph, as it is now."""
    items = value.listed(interp) if value.cls in (tuple, list) else None
    if items is not None:
        return all(is_loadable(interp, item) for item in items)
    if value.expr is not None:
        return not interp.context.sizes.is_unbacked(value.expr)
    if value.scalar is not None:
        return value.scalar.known is not None and value.source is not None or is_in_front(value.scalar.node)
    return value.is_fixed(interp) or value.opaque is not UNKNOWN and value.source is not None


def frozen(interp: Interpreter, value: Value) -> Value:
    """The value with lists as they are now."""
    return tree_map(interp, lambda leaf: leaf, value)


def example(interp: Interpreter, value: Value) -> Any:
    """An example of an argument, for the question of a call's result."""
    if value.scalar is not None:
        known = value.scalar.known
        return value.cls(1 if value.cls is int else 0.5) if known is None else known.value
    if value.opaque is not UNKNOWN:
        return value.opaque
    return value.numpy_fake(interp, lambda item: example(interp, item))


def make(interp: Interpreter, call: FrontCall) -> None:
    """Have a call made in front of the graph."""
    interp.front_calls.append(call)
    interp.context.writes += 1


def reads_late(node: Any) -> bool:
    """Whether a number is computed from what is told behind the graph."""
    return any(source.late for source in _calls_behind(node))


# -- run by compiled code -----------------------------------------------------------------------------------------


def call_in_front(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def states_of(*generators: Any) -> list[tuple[Any, Any]]:
    """The states of generators, for `put_back`."""
    return [(generator, _state(generator)) for generator in generators]


def put_back(states: list[tuple[Any, Any]]) -> None:
    """Have generators in the states that they were in."""
    for generator, state in states:
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif hasattr(generator, "set_state"):
            generator.set_state(state)
        else:
            generator.bit_generator.state = state


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "get_state"):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state
