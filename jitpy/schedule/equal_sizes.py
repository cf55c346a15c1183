"""Sizes that the capture's guards make equal are written the same way, so that shapes can be compared at a glance."""

from __future__ import annotations

from typing import Any

from ..ir.algebra import sympy
from ..ir.graph import Graph
from ..ir.sizes import SizeEnv
from ..ir.sizes_expr import simplify
from ..ir.spec import TensorSpec
from ..ir.trees import tree_map


def write_equal_sizes_alike(graph: Graph) -> None:
    """Replace symbols that the recorded relations determine, in every spec and argument of the graph but the specs
    from which symbols are bound: a relation about such a symbol is checked when the graph runs."""
    mapping = solved(graph.sizes)
    if not mapping:
        return
    bound = {node for node, _ in graph.unbacked_bindings().values()}
    for node in graph.all_nodes():
        if node not in bound:
            node.spec = _replaced(node.spec, mapping)
        node.args = _replaced(node.args, mapping)
        if node.kwargs:
            node.kwargs = _replaced(node.kwargs, mapping)


def solved(env: SizeEnv) -> dict[sympy.Symbol, sympy.Expr]:
    """Symbols that equations among the relations give in terms of others: the newer one by the older ones."""
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    for relation in env.relations:
        if not isinstance(relation, sympy.Eq):
            continue
        difference = sympy.expand((relation.lhs - relation.rhs).xreplace(mapping))
        for symbol in sorted(difference.free_symbols, key=lambda s: (env.is_unbacked(s), *_age(s)), reverse=True):
            factor = difference.coeff(symbol)
            rest = difference - factor * symbol
            if env.is_unbacked(rest) and not env.is_unbacked(symbol):
                continue
            if factor in (1, -1) and symbol not in rest.free_symbols:
                value = sympy.expand(-rest * factor)
                mapping = {known: sympy.expand(e.xreplace({symbol: value})) for known, e in mapping.items()}
                mapping[symbol] = value
                break
    return mapping


def _age(symbol: sympy.Symbol) -> tuple[int, str]:
    return len(symbol.name), symbol.name


def _replaced(value: Any, mapping: dict[sympy.Symbol, sympy.Expr]) -> Any:
    def replaced(leaf: Any) -> Any:
        if isinstance(leaf, TensorSpec) and not (leaf.is_static and isinstance(leaf.offset, int)):
            return leaf.with_(shape=_replaced(leaf.shape, mapping), stride=_replaced(leaf.stride, mapping),
                              offset=_replaced(leaf.offset, mapping))
        if not isinstance(leaf, sympy.Expr) or not leaf.free_symbols & mapping.keys():
            return leaf
        return simplify(sympy.expand(leaf.xreplace(mapping)))

    return tree_map(replaced, value)
