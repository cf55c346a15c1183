"""A copy of a graph with its symbolic sizes replaced by the sizes of one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .algebra import sympy
from .graph import Graph, Node
from .sizes import evaluate
from .spec import ScalarSpec, TensorSpec
from .trees import tree_map


def specialize(graph: Graph, values: Mapping[sympy.Symbol, int]) -> Graph:
    """A new graph for inputs of exactly these sizes; `graph` stays as it is. With no values: a copy.

    KeyError names a symbol of the graph without a value.
    """
    copy = graph.derived(graph.name)
    mapping: dict[Node, Node] = {}
    for node in graph.inputs:
        spec = _bind(node.spec, values)
        assert isinstance(spec, (TensorSpec, ScalarSpec))
        mapping[node] = copy.add_input(spec, node.name, **node.meta)
    for node in graph.nodes:
        kwargs = {key: _bind(value, values, mapping) for key, value in node.kwargs.items()}
        args = _bind(node.args, values, mapping)
        made = copy.add(node.op, args, kwargs, _bind(node.spec, values), node.loc, node.name, node.grad_enabled)
        made.meta.update(node.meta)
        mapping[node] = made
    copy.outputs = [mapping[node] for node in graph.outputs]
    copy.mutations = [replace(m, value=mapping[m.value]) for m in graph.mutations]
    return copy


def _bind(value: Any, values: Mapping[sympy.Symbol, int], mapping: Mapping[Node, Node] | None = None) -> Any:
    def bound(leaf: Any) -> Any:
        if isinstance(leaf, Node):
            assert mapping is not None
            return mapping[leaf]
        if isinstance(leaf, TensorSpec) and not (leaf.is_static and isinstance(leaf.offset, int)):
            return leaf.with_(shape=_bind(leaf.shape, values), stride=_bind(leaf.stride, values),
                              offset=_bind(leaf.offset, values))
        return evaluate(leaf, values) if values and isinstance(leaf, sympy.Basic) else leaf

    return tree_map(bound, value)
