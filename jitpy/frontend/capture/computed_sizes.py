"""Sizes that exist only when the graph runs: numbers that it computes taken as sizes, and sizes as numbers again.

An unbacked symbol of the capture's `SizeEnv` stands for such a size. It is told by a node: a tensor whose spec has the
symbol among its sizes, or a host number whose `ScalarSpec.expr` it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from jitpy.ir import Dim, Graph, Node, Op, ScalarSpec
from jitpy.ir.sizes import SCALAR_LIMIT, floordiv, mod, python_text, simplify
from jitpy.ir.trees import tree_leaves, tree_map

from ...ir.algebra import sympy
from .known_numbers import Known, pin
from .known_tensors import known_comparison
from .traced import GraphBuilder, TracedScalar

#: The assumed size of a number when costs are weighed.
_ESTIMATE = 64

#: Names of sympy's relations by the comparison that a `py.*` node makes.
_RELATIONS: dict[Any, str] = {
    operator.eq: "Eq",
    operator.ne: "Ne",
    operator.lt: "Lt",
    operator.le: "Le",
    operator.gt: "Gt",
    operator.ge: "Ge",
}


def as_sizes(builder: GraphBuilder, value: Any) -> Any:
    """Nested arguments with every int that the graph computes replaced by its size expression."""

    def leaf(number: Any) -> Any:
        if type(number) is not TracedScalar or number.kind is not int:
            return number
        return size_of(builder, number) if number.known is None else pin(builder, number, f"a size, {builder.loc}")

    return tree_map(leaf, value)


def has_computed_int(value: Any) -> bool:
    """Whether an int that the graph computes is among nested arguments."""
    kind = type(value)
    if kind is TracedScalar:
        return value.kind is int
    if kind is tuple or kind is list:
        return any(map(has_computed_int, value))
    return kind in (dict, slice) and any(map(has_computed_int, tree_leaves(value)))


def size_of(builder: GraphBuilder, scalar: TracedScalar) -> Dim:
    """An int (or bool) that the graph computes, as an expression over symbols. The graph checks that it is within
    `SCALAR_LIMIT`; sums and products of such numbers stay expressions."""
    return builder.sizes.canonical(_expression(builder, scalar.node, 4))


def _expression(builder: GraphBuilder, node: Node, depth: int) -> Dim:
    assert isinstance(node.spec, ScalarSpec)
    if node.spec.expr is not None:
        return node.spec.expr
    if node.op is _SIZE:
        return node.args[0]
    build = _ARITHMETIC.get(node.op.target) if node.op.name.startswith("py.") and depth else None
    if build is not None:
        parts = [_part(builder, arg, depth - 1) for arg in node.args]
        if None not in parts:
            found = build(*parts)
            if found is not None:
                return simplify(found)
    is_bool = node.spec.kind is bool
    low, high = node.meta.get("bounds", (0, 1) if is_bool else (-SCALAR_LIMIT, SCALAR_LIMIT))
    symbol = builder.sizes.new_unbacked(_ESTIMATE, max(low, -SCALAR_LIMIT), min(high, SCALAR_LIMIT))
    before = node.spec

    def undo() -> None:
        node.spec = before

    builder.journal.append(undo)
    node.spec = ScalarSpec(before.kind, symbol)
    return symbol


def _part(builder: GraphBuilder, arg: Any, depth: int) -> Dim | None:
    if isinstance(arg, Node):
        return _expression(builder, arg, depth) if arg.spec.kind is int else None  # type: ignore[union-attr]
    if type(arg) is int:
        return arg if abs(arg) < 1 << 15 else None
    return arg if isinstance(arg, sympy.Expr) else None


def _divided(rule: Callable[[Dim, Dim], Dim]) -> Callable[[Dim, Dim], Dim | None]:
    return lambda a, b: rule(a, b) if type(b) is int and b > 0 else None


def _product(a: Dim, b: Dim) -> Dim | None:
    """Of a number and a constant, or of two plain symbols: more might not fit 64 bits."""
    plain = all(type(x) is int or x.is_Symbol for x in (a, b))  # type: ignore[union-attr]
    return a * b if plain or type(a) is int or type(b) is int else None


_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    operator.add: lambda a, b: a + b,
    operator.sub: lambda a, b: a - b,
    operator.mul: _product,
    operator.floordiv: _divided(floordiv),
    operator.mod: _divided(mod),
    operator.neg: lambda a: -a,
    operator.pos: lambda a: a,
    int: lambda a: a,
    max: lambda *args: sympy.Max(*args),
    min: lambda *args: sympy.Min(*args),
}


def relation_of(builder: GraphBuilder, scalar: TracedScalar) -> Any | None:
    """A truth value that the graph computes, as a relation between sizes; None where it compares other things."""
    node = scalar.node
    relation = _RELATIONS.get(node.op.target) if node.op.name.startswith("py.") else None
    if relation is None:
        return None
    parts = [_part(builder, arg, 4) for arg in node.args]
    return None if None in parts else getattr(sympy, relation)(*parts)


def answer_of(builder: GraphBuilder, scalar: TracedScalar) -> bool | None:
    """The truth value where facts about sizes, or a random number's range, decide it; else None."""
    node = scalar.node
    known = known_comparison(node)
    if known is not None:
        return known
    if not (node.op.name.startswith("py.") and node.op.target in _RELATIONS and builder.sizes.has_unbacked):
        return None
    if not all(type(arg) is int or _is_size(arg) for arg in node.args):
        return None
    relation = relation_of(builder, scalar)
    return None if relation is None else builder.sizes.known(relation)


def _is_size(arg: Any) -> bool:
    """Whether something is known about a number: it was taken as a size before, or is made of such."""
    if not isinstance(arg, Node):
        return isinstance(arg, sympy.Expr)
    if not isinstance(arg.spec, ScalarSpec) or arg.spec.kind is not int:
        return False
    return arg.spec.expr is not None or arg.op is _SIZE or arg.op.target in _ARITHMETIC and all(
        type(a) is int or _is_size(a) for a in arg.args
    )


def require_truth(builder: GraphBuilder, scalar: TracedScalar, expected: bool, reason: str) -> bool:
    """Have the graph check a truth value; False where it is known to be the other one."""
    relation = relation_of(builder, scalar)
    if relation is None:
        relation = sympy.Eq(size_of(builder, scalar), 1)
    return builder.sizes.require(relation if expected else sympy.Not(relation), reason)


# -- sizes as numbers


def _same(value: int) -> int:
    return value


_SIZE = Op("py.size", _same, kind="host")


def number_of(builder: GraphBuilder, expr: Any) -> TracedScalar:
    """A size expression as a number that the graph computes."""
    number = builder.size_numbers.get(expr)
    if number is not None:
        return number
    known = None
    if not builder.sizes.is_unbacked(expr):
        known = Known(builder.sizes.hint(expr), frozenset(), frozenset({expr}))
    if expr.is_Symbol:
        bound, dim = (None, 0) if known is not None else _binding(builder.graph, expr)
        node = bound if dim is None else _add(builder, _SIZE, (expr,))
    else:
        # beyond a plain symbol in Python's own arithmetic, which does not overflow
        symbols = sorted(expr.free_symbols, key=str)
        names = ", ".join(map(str, symbols))
        function = eval(f"lambda {names}: {python_text(expr)}", {})
        numbers = [number_of(builder, s).node if builder.sizes.is_unbacked(s) else s for s in symbols]
        node = _add(builder, Op("py.expression", function, kind="host"), tuple(numbers))
    if known is not None:
        node.meta["size"] = expr
    found = TracedScalar(node, known)
    builder.put(builder.size_numbers, expr, found)
    return found


def _add(builder: GraphBuilder, op: Op, args: tuple[Any, ...]) -> Node:
    return builder.graph.add(op, args, {}, ScalarSpec(int), builder.loc, grad_enabled=builder.state.grad_enabled)


def _binding(graph: Graph, symbol: sympy.Symbol) -> tuple[Node | None, int | None]:
    return graph.unbacked_bindings()[symbol]


__all__ = [
    "answer_of", "as_sizes", "has_computed_int", "number_of", "relation_of", "require_truth", "size_of",
]
