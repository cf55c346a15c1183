"""Numbers that are in the graph although their values are known while tracing: floats that changed from call to call,
and arithmetic on them and on symbolic sizes.

Learning rates, temperatures and step counters then compile once, not once for each value. Where the program needs to
know such a number (a branch, an index, a key), the fact that it relied on becomes a guard: that the number, computed
again from what it came from, is true, or has this value. Expressions that are too long to be written down fix the
inputs' values. """

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jitpy.ir import Node, ScalarSpec
from jitpy.ir.trees import tree_map

from ...ir.algebra import sympy
from ..guards.guard_set import NumberFact
from ..guards.source import Source
from .traced import GraphBuilder, GraphInput, TracedScalar


@dataclass(frozen=True, slots=True)
class Known:
    """The value of a number in this call, and what it is computed from: floats at sources, expressions over sizes."""

    value: Any
    floats: frozenset[Source]
    sizes: frozenset[sympy.Expr]


def known_result(function: Callable[..., Any], args: tuple[Any, ...], hint: Callable[[Any], Any]) -> Known | None:
    """The known facts about `function(*args)`, where every argument is a plain number, an expression over sizes or a
    known `TracedScalar`; None where one is computed from tensors. Raises what the function raises."""
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


def real_power(base: float, exponent: float) -> float:
    """A power of which a float is one side; ArithmeticError where it is complex (the call is then given up)."""
    result = base**exponent
    if type(result) is not float:
        raise ArithmeticError("a power of a negative number is complex")
    return result


#: how functions of numbers are written in a guard
_INFIX: dict[Any, str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", real_power: "**", operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=", operator.eq: "==", operator.ne: "!=", operator.and_: "&", operator.or_: "|", operator.xor: "^",
    operator.lshift: "<<", operator.rshift: ">>",
}
_PREFIX: dict[Any, str] = {operator.neg: "-", operator.pos: "+", operator.invert: "~", operator.not_: "not "}
_CALLED = frozenset((float, int, bool, abs, min, max, round, operator.abs))
#: longer texts are not written: the inputs are fixed instead
_LONGEST = 400


class _NoText(Exception):
    """A number that is computed in a way which a guard does not repeat."""


class _Writer:
    """Writes a number of the graph as a Python expression over `p0, p1, ...` (numbers at sources) and `q0, q1, ...`
    (sizes)."""

    def __init__(self) -> None:
        self.sources: dict[Source, str] = {}
        self.sizes: dict[sympy.Expr, str] = {}
        self.visits = 0

    def text(self, arg: Any) -> str:
        if isinstance(arg, sympy.Basic):
            return self.sizes.setdefault(arg, f"q{len(self.sizes)}")
        kind = type(arg)
        if kind in (int, bool) or kind is float and math.isfinite(arg):
            return f"({arg!r})" if arg < 0 or kind is float and math.copysign(1, arg) < 0 else repr(arg)
        if kind is float:
            return f"float({str(arg)!r})"
        if not isinstance(arg, Node):
            raise _NoText
        if "size" in arg.meta:
            return self.text(arg.meta["size"])
        if arg.op.kind == "input":
            source = arg.meta.get("source")
            if source is None:
                raise _NoText
            return self.sources.setdefault(source, f"p{len(self.sources)}")
        self.visits += 1
        if arg.op.kind != "host" or arg.kwargs or self.visits > _LONGEST // 2:  # each adds two characters or more
            raise _NoText
        text = self._applied(arg.op.target, [self.text(a) for a in arg.args])
        if len(text) > _LONGEST:
            raise _NoText
        return text

    def _applied(self, function: Any, args: list[str]) -> str:
        if function in _INFIX and len(args) == 2:
            return f"({args[0]} {_INFIX[function]} {args[1]})"
        if function in _PREFIX:
            return f"({_PREFIX[function]}{args[0]})"
        name = f"math.{function.__name__}" if getattr(function, "__module__", "") == "math" else None
        if name is None and function in _CALLED:
            name = function.__name__
        if name is None:
            raise _NoText
        return f"{name}({', '.join(args)})"


def _written(traced: TracedScalar) -> tuple[str, _Writer] | None:
    """The number as an expression over what brings it, None where that cannot be written down."""
    writer = _Writer()
    try:
        return writer.text(traced.node), writer
    except _NoText:
        return None


def float_input(builder: GraphBuilder, value: float, source: Source) -> TracedScalar:
    """A graph input that brings the float found at `source`, whatever its value."""
    found = builder.float_inputs.get(source)
    if found is None:
        builder.guards.add(source, "type", float)
        node = builder.graph.add_input(ScalarSpec(float), "float", source=source, value=value)
        found = TracedScalar(node, Known(value, frozenset({source}), frozenset()))
        builder.inputs.append(GraphInput(value, source, found))
        builder.put(builder.float_inputs, source, found)
    return found


def pin(builder: GraphBuilder, traced: TracedScalar, what: str) -> Any:
    """The number's value, which a guard holds from now on; None where it is computed from tensors. Where it was pinned
    to several values before, GraphBreak: plain Python does it for all of them."""
    known: Known | None = traced.known
    if known is None:
        return None
    for source in known.floats:
        builder.pinned.setdefault(source, what)
    written = None if traced.node.op.kind == "input" else _written(traced)
    if written is not None:
        text, writer = written
        if builder.need is not None:
            builder.need((text, *(s.key() for s in writer.sources)), hash(known.value), what)
        _guard(builder, f"constants_equal({text}, {_literal(known.value)})", writer, what)
        return known.value
    for source in known.floats:
        value = builder.float_inputs[source].known.value
        if builder.need is not None:
            builder.need((source.key(), "value"), hash(value), f"{source}: {what}")
        builder.guards.add(source, "eq", value)
    for expr in known.sizes:
        builder.sizes.specialize(expr, what)
    return known.value


def _literal(value: Any) -> str:
    return f"float({str(value)!r})" if type(value) is float and not math.isfinite(value) else repr(value)


def _guard(builder: GraphBuilder, text: str, writer: _Writer, why: str) -> None:
    builder.guards.add(None, "numbers", NumberFact(text, tuple(writer.sources), tuple(writer.sizes)), why)


def pinned_arguments(builder: GraphBuilder, args: Any, what: str) -> Any | None:
    """Nested payloads with every known number replaced by its value, which is guarded; None if there is none."""
    found = False

    def visit(value: Any) -> Any:
        nonlocal found
        if type(value) is not TracedScalar or value.known is None:
            return value
        found = True
        return pin(builder, value, what)

    result = tree_map(visit, args)
    return result if found else None


def is_within(builder: GraphBuilder, traced: TracedScalar, low: int, high: int, infinite: bool) -> bool:
    """Whether a known number is from `low` to `high`, or, with `infinite`, none of those that are finite: guarded."""
    known: Known | None = traced.known
    if known is None:
        return False
    value = known.value
    if not (low <= value <= high or infinite and not math.isfinite(value)):
        return False
    written = _written(traced)
    if written is None:
        pin(builder, traced, "a number's range")
        return True
    text, writer = written
    fits = f"not {high} < abs({text}) < float('inf')" if infinite else f"{low} <= {text} <= {high}"
    _guard(builder, fits, writer, "a number's range")
    return True


def decide(builder: GraphBuilder, traced: TracedScalar, what: str) -> bool | None:
    """`bool(number)` of a known number, guarded; None where it is computed from tensors."""
    known: Known | None = traced.known
    if known is None:
        return None
    written = _written(traced)
    if written is None:
        return bool(pin(builder, traced, what))
    text, writer = written
    truth = bool(known.value)
    _guard(builder, text if truth else f"not {text}", writer, what)
    return truth
