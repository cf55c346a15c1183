"""Numbers that are in the graph although their values are known while tracing: floats that changed from call to call,
and arithmetic on them and on symbolic sizes.

Learning rates, temperatures and step counters then compile once, not once for each value. Where the program needs to
know such a number (a branch, an index, a key), the fact that it relied on becomes a guard: a comparison of an input
with a constant as it is, anything else by fixing the inputs' values.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy

from jitpy.ir import ScalarSpec

from .source import Source
from .traced import GraphInput, TracedScalar

if TYPE_CHECKING:
    from .recorder import Recorder


@dataclass(frozen=True, slots=True)
class Known:
    """The value of a number in this call, and what it is computed from: floats at sources, expressions over sizes."""

    value: Any
    floats: frozenset[Source]
    sizes: frozenset[sympy.Expr]


def known_result(function: Callable[..., Any], args: tuple[Any, ...], hint: Callable[[Any], Any]) -> Known | None:
    """What is known of `function(*args)`, where every argument is a plain number, an expression over sizes or a known
    `TracedScalar`; None where one is computed from tensors. Raises what the function raises."""
    values: list[Any] = []
    floats: frozenset[Source] = frozenset()
    sizes: frozenset[sympy.Expr] = frozenset()
    for arg in args:
        if isinstance(arg, sympy.Basic):
            values.append(hint(arg))
            sizes |= {arg}
        elif type(arg) is TracedScalar:
            known: Known | None = arg.known
            if known is None:
                return None
            values.append(known.value)
            floats |= known.floats
            sizes |= known.sizes
        else:
            values.append(arg)
    return Known(function(*values), floats, sizes)


_SYMBOLS = {operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==",
            operator.ne: "!="}
_MIRRORED = {operator.lt: operator.gt, operator.le: operator.ge, operator.gt: operator.lt, operator.ge: operator.le,
             operator.eq: operator.eq, operator.ne: operator.ne}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A guard on a float: how it compares with a constant."""

    function: Callable[[float, float], bool]
    constant: float
    expected: bool

    def __call__(self, value: Any) -> bool:
        return type(value) is float and self.function(value, self.constant) is self.expected

    def __repr__(self) -> str:
        return f"{'' if self.expected else 'not '}value {_SYMBOLS[self.function]} {self.constant!r}"


#: one object for equal comparisons: guards on Python functions are told apart by identity
_comparison = functools.lru_cache(4096)(Comparison)


def float_input(recorder: Recorder, value: float, source: Source) -> TracedScalar:
    """A graph input that brings the float found at `source`, whatever its value."""
    found = recorder.float_inputs.get(source)
    if found is None:
        recorder.guards.add(source, "type", float)
        node = recorder.graph.add_input(ScalarSpec(float), "float", source=source)
        found = recorder.float_inputs[source] = TracedScalar(node, Known(value, frozenset({source}), frozenset()))
        recorder._inputs.append(GraphInput(value, source, found))
        recorder._journal.append(lambda: recorder.float_inputs.pop(source))
    return found


def pin(recorder: Recorder, traced: TracedScalar, what: str) -> Any:
    """The number's value, which guards hold from now on; None where it is computed from tensors."""
    known: Known | None = traced.known
    if known is None:
        return None
    for source in known.floats:
        recorder.guards.add(source, "eq", recorder.float_inputs[source].known.value)
        recorder.pinned.setdefault(source, what)
    for expr in known.sizes:
        recorder.sizes.specialize(expr, what)
    return known.value


def pinned_arguments(recorder: Recorder, args: Any, what: str) -> Any | None:
    """Nested payloads with every known number replaced by its value, which is guarded; None if there is none."""
    found = False

    def visit(value: Any) -> Any:
        nonlocal found
        kind = type(value)
        if kind is TracedScalar and value.known is not None:
            found = True
            return pin(recorder, value, what)
        if kind is tuple or kind is list:
            return kind([visit(v) for v in value])
        if kind is dict:
            return {k: visit(v) for k, v in value.items()}
        return value

    result = visit(args)
    return result if found else None


def decide(recorder: Recorder, traced: TracedScalar, what: str) -> bool | None:
    """`bool(number)` of a known number, guarded; None where it is computed from tensors."""
    known: Known | None = traced.known
    if known is None:
        return None
    comparison = _as_comparison(traced)
    if comparison is None:
        return bool(pin(recorder, traced, what))
    source, function, constant = comparison
    truth = bool(known.value)
    recorder.guards.add(source, "python", _comparison(function, constant, truth))
    return truth


def _as_comparison(traced: TracedScalar) -> tuple[Source, Callable[[float, float], bool], float] | None:
    """The number as a comparison of one float input with a constant, if that is what it is."""
    known, node = traced.known, traced.node
    assert known is not None
    if len(known.floats) != 1 or known.sizes:
        return None
    (source,) = known.floats
    if node.op.kind == "input":
        return source, operator.ne, 0.0
    function = node.op.target
    if function not in _SYMBOLS or len(node.args) != 2:
        return None
    a, b = node.args
    if _is_input(a) and type(b) in (int, float) and not _beyond_float(b):
        return source, function, b
    if _is_input(b) and type(a) in (int, float) and not _beyond_float(a):
        return source, _MIRRORED[function], a
    return None


def _is_input(arg: Any) -> bool:
    return getattr(getattr(arg, "op", None), "kind", None) == "input"


def _beyond_float(value: float) -> bool:
    return type(value) is float and math.isnan(value)
