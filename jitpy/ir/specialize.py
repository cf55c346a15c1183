"""A copy of a graph with its symbolic sizes replaced by the sizes of one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .algebra import sympy
from .graph import Graph, Node
from .sizes import evaluate
from .spec import ScalarSpec, Spec, TensorSpec


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
    if isinstance(value, Node):
        assert mapping is not None
        return mapping[value]
    if isinstance(value, TensorSpec):
        if value.is_static and isinstance(value.offset, int):
            return value
        return value.with_(shape=_bind(value.shape, values), stride=_bind(value.stride, values),
                           offset=_bind(value.offset, values))
    if isinstance(value, sympy.Basic):
        return evaluate(value, values) if values else value
    if isinstance(value, tuple):
        return tuple(_bind(v, values, mapping) for v in value)
    if isinstance(value, list):
        return [_bind(v, values, mapping) for v in value]
    if isinstance(value, dict):
        return {k: _bind(v, values, mapping) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*(_bind(v, values, mapping) for v in (value.start, value.stop, value.step)))
    return value


def spec_mentions_symbols(spec: Spec) -> bool:
    """Whether a size, stride or offset is no plain int."""
    if isinstance(spec, tuple):
        return any(map(spec_mentions_symbols, spec))
    if isinstance(spec, TensorSpec):
        return not (spec.is_static and isinstance(spec.offset, int))
    return isinstance(spec, ScalarSpec) and spec.expr is not None
