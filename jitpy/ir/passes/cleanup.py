"""Passes that remove nodes: constant folding, common subexpressions, dead code."""

from __future__ import annotations

from typing import Any

import torch

from ..alias import AliasGroups
from ..builder import Builder
from ..failures import has_effect, is_programs_own
from ..folding import compute, foldable, is_factory
from ..graph import BEFORE_WRITES, CONSTANT, IN_INFERENCE_MODE, LATE_HISTORY, OWN_VERSIONS, Graph, Node
from ..spec import TensorSpec
from .pattern import Rewriter


def fold_constants(graph: Graph) -> list[str]:
    """Compute now what depends on constants only: pure, CPU, at most `FOLD_LIMIT` elements, never an output's memory
    (each call must return a tensor of its own)."""
    done: list[str] = []
    groups: AliasGroups | None = None
    values: dict[Node, torch.Tensor] = {}
    mapping: dict[Node, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if mapping:
            node.replace_inputs(lambda n: mapping.get(n, n))
        kept = node
        if node.op is CONSTANT:
            values[node] = node.args[0]
        elif foldable(node, values):
            groups = groups or AliasGroups(graph)
            if not groups.escapes(node):
                value = compute(node, values)
                if value is not None:
                    values[node] = value
                    if not is_factory(node):
                        kept = Builder(graph, into=[], loc=node.loc, grad_enabled=node.grad_enabled).constant(
                            value, node.name)
                        mapping[node] = kept
                        values[kept] = value
                        done.append(f"folded {node.name}")
        nodes.append(kept)
    graph.nodes[:] = nodes
    graph.replace_results(mapping)
    return done


def share_subexpressions(graph: Graph) -> list[str]:
    """Compute once what is computed twice: same op of torch's, same arguments, same grad mode, pure, not random.

    Results that the caller could tell apart (two outputs, a saved tensor and an output) stay apart.
    """
    done: list[str] = []
    seen: dict[Any, Node] = {}
    keys = []
    for node in graph.nodes:
        # a cheap look first: most graphs repeat nothing
        keys.append((node.op.name, len(node.args), len(node.kwargs)))
    if len(set(keys)) == len(keys):
        return done
    rewriter = Rewriter(graph)
    for node in rewriter.sweep():
        kept = node
        key = _key(node)
        if key is not None:
            first = seen.setdefault(key, node)
            if first is not node and first.spec == node.spec and not _kept_apart(rewriter, node, first):
                kept = first
                done.append(f"{node.name} is {first.name}")
        rewriter.settle(node, kept)
    rewriter.finish()
    return done


def _kept_apart(rewriter: Rewriter, node: Node, first: Node) -> bool:
    if isinstance(node.spec, TensorSpec):
        return rewriter.why_not_share(node, first) is not None
    if isinstance(node.spec, tuple):
        groups = rewriter.groups
        if rewriter.autograd:
            return groups.escapes(node) or groups.escapes(first)
        return groups.escapes(node) and groups.escapes(first)
    return False


def _key(node: Node) -> Any:
    op = node.op
    if op.is_random or not op.is_pure or op is CONSTANT or is_programs_own(op):
        return None
    try:
        key = (op.name, id(op.target), node.grad_enabled, BEFORE_WRITES in node.meta, LATE_HISTORY in node.meta,
               IN_INFERENCE_MODE in node.meta, id(node.meta.get(OWN_VERSIONS)), _hashable(node.args),
               tuple((k, _hashable(v)) for k, v in sorted(node.kwargs.items())))
        hash(key)
    except TypeError:
        return None
    return key


def _hashable(value: Any) -> Any:
    """Equal for arguments that mean the same; 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(value, (tuple, list)):
        return ("sequence", *map(_hashable, value))
    if isinstance(value, slice):
        return ("slice", *map(_hashable, (value.start, value.stop, value.step)))
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, (torch.Tensor, Node)):
        return ("id", id(value))
    return (type(value), value)


def remove_dead_code(graph: Graph) -> list[str]:
    """Drop nodes that nothing reads.

    Kept although unread: what has an effect (`failures.has_effect`); nodes whose results bind a symbol that others
    mention, or that the graph checks.
    """
    live: set[Node] = set(graph.outputs)
    live.update(m.value for m in graph.mutations)
    sizes, bindings = graph.sizes, graph.unbacked_bindings()
    if bindings:
        for relation, _ in sizes.run_time_checks():
            live.update(bindings[symbol][0] for symbol in sizes.unbacked_in(relation))
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node in live or has_effect(node):
            live.update(node.input_nodes())
            if bindings:
                mentioned = sizes.unbacked_in_all((node.args, node.kwargs, node.spec))
                live.update(bindings[symbol][0] for symbol in mentioned if symbol in bindings)
            kept.append(node)
    done = []
    if len(kept) != len(graph.nodes):
        alive = set(kept)
        done = [f"dead: {node.name}" for node in graph.nodes if node not in alive]
        graph.nodes[:] = kept[::-1]
    return done
