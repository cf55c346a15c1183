"""The graph's invariants as a table of rules.

`verify(graph, after="simplify")` raises `VerifyError` for the first that is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .algebra import sympy
from .alias import alias_kind
from .graph import CONSTANT, GETITEM, INPUT, Graph, Node
from .op import Op
from .spec import Dim, ScalarSpec, Spec, TensorSpec
from .trees import tree_leaves


class VerifyError(AssertionError):
    """A graph that breaks a rule: a bug in whatever made it, never in the user's code."""


#: A check yields one `(node or None, what is wrong)` for each breach.
Check = Callable[[Graph], Iterator[tuple[Node | None, str]]]


@dataclass(frozen=True)
class VerifyRule:
    """One invariant."""

    name: str
    check: Check


def verify(graph: Graph, after: str = "", *, specs: bool = False) -> None:
    """Check every rule of `RULES`; with `specs=True` also that `infer` gives the specs that the nodes have (slow).

    Raises `VerifyError` that names node, rule, and `after`, the pass that ran last.
    """
    for rule in (*RULES, *(SPEC_RULES if specs else ())):
        for node, problem in rule.check(graph):
            where = f" at {node.name} = {node.op}" if node is not None else ""
            origin = f" after {after}" if after else ""
            place = f" ({node.loc})" if node is not None and node.loc else ""
            raise VerifyError(f"graph {graph.name!r}{origin} breaks rule {rule.name!r}{where}{place}: {problem}")


def _inputs(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    for node in graph.inputs:
        if node.op is not INPUT or node.args or node.kwargs:
            yield node, "an input must be an ir.input without arguments"
        if not isinstance(node.spec, (TensorSpec, ScalarSpec)):
            yield node, f"an input is a tensor or a number, not {node.spec}"
    for node in graph.nodes:
        if node.op is INPUT:
            yield node, "ir.input among the computed nodes"


def _definition_before_use(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    defined: set[Node] = set()
    for node in graph.inputs:
        if node in defined:
            yield node, "listed twice"
        defined.add(node)
    for node in graph.nodes:
        for source in node.input_nodes():
            if source not in defined:
                yield node, f"reads {source.name}, which is not defined yet"
        if node in defined:
            yield node, "listed twice"
        defined.add(node)
    for what, nodes in (("output", graph.outputs), ("mutation value", [m.value for m in graph.mutations])):
        for node in nodes:
            if node not in defined:
                yield node, f"{what} that the graph does not compute"


def _unique_names(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    seen: set[str] = set()
    for node in graph.all_nodes():
        if node.name in seen:
            yield node, f"two nodes are called {node.name!r}"
        if not node.name.isidentifier():
            yield node, f"{node.name!r} is no identifier"
        seen.add(node.name)


_CONSTANT_TYPES = (int, float, complex, bool, str, bytes, type(None), type(...), torch.dtype, torch.device,
                   torch.layout, torch.memory_format, torch.Generator, torch._C.ScriptObject,
                   sympy.Basic)


def _argument_kinds(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    for node in graph.nodes:
        if node.op is CONSTANT:
            if len(node.args) != 1 or not isinstance(node.args[0], torch.Tensor) or node.kwargs:
                yield node, "a constant holds one tensor"
            continue
        for arg in (*node.args, *node.kwargs.values()):
            wrong = _wrong_argument(arg)
            if wrong is not None:
                yield node, f"argument of type {type(wrong).__name__}: {wrong!r}"
        if node.op.name.startswith("py.") or node.op.kind == "host":
            continue
        for arg in (*node.args, *node.kwargs.values()):
            if isinstance(arg, Node) and isinstance(arg.spec, tuple) and node.op is not GETITEM:
                yield node, f"reads {arg.name}, which has several results, as a whole"


def _wrong_argument(arg: Any) -> Any:
    """The part of a nested argument that may not be one, or None."""
    # functions and classes are constants of ops that carry them (a user's own operator, a dtype's Python type)
    return next((leaf for leaf in tree_leaves(arg) if isinstance(leaf, torch.Tensor) or not (
        isinstance(leaf, (Node, *_CONSTANT_TYPES)) or callable(leaf))), None)


def _getitems(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    for node in graph.nodes:
        if node.op is not GETITEM:
            continue
        if len(node.args) != 2 or not isinstance(node.args[0], Node) or type(node.args[1]) is not int:
            yield node, f"ir.getitem takes a node and an int, not {node.args}"
            continue
        source, index = node.args
        if not isinstance(source.spec, tuple):
            yield node, f"{source.name} has one result, {source.spec}"
        elif not 0 <= index < len(source.spec):
            yield node, f"part {index} of {len(source.spec)}"
        elif source.spec[index] != node.spec:
            yield node, f"spec {node.spec} where part {index} of {source.name} is {source.spec[index]}"


def _mutations(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    written: set[int] = set()
    for mutation in graph.mutations:
        value = mutation.value
        if not 0 <= mutation.input < len(graph.inputs):
            yield value, f"mutation of input {mutation.input} of {len(graph.inputs)}"
            continue
        target = graph.inputs[mutation.input]
        if mutation.input in written:
            yield target, "mutated twice: one value must remain"
        written.add(mutation.input)
        if not isinstance(target.spec, TensorSpec) or not isinstance(value.spec, TensorSpec):
            yield value, f"{target.name}: {target.spec} receives {value.spec}"
        elif (target.spec.dtype, target.spec.shape) != (value.spec.dtype, value.spec.shape):
            sizes = [graph.sizes.hints(map(graph.sizes.canonical, n.tensor.shape)) for n in (target, value)]
            if sizes[0] != sizes[1] or target.spec.dtype != value.spec.dtype:
                yield value, f"{target.name}: {target.spec} receives {value.spec}"


def _symbols(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    for node in graph.all_nodes():
        if node.spec.__class__ is TensorSpec and node.spec.is_static and node.op is INPUT:
            continue
        for symbol in _symbols_of((*_dims(node.spec), *node.args, *node.kwargs.values())):
            if symbol not in graph.sizes.symbols:
                yield node, f"symbol {symbol} is not one of the graph's sizes"


def _unbacked(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    bindings = graph.unbacked_bindings()
    bound: set[sympy.Symbol] = set()
    if not graph.sizes.has_unbacked:
        return
    for node in graph.all_nodes():
        used = graph.sizes.unbacked_in_all((node.args, node.kwargs))
        if not isinstance(node.spec, tuple):
            bound.update(symbol for symbol in graph.sizes.unbacked_in_all(node.spec)
                         if symbol in bindings and bindings[symbol][0] is node)
            used |= graph.sizes.unbacked_in_all(node.spec)
        for symbol in used - bound:
            yield node, f"the size {symbol} is not known there"
    for relation, _ in graph.sizes.run_time_checks():
        for symbol in graph.sizes.unbacked_in(relation) - bound:
            yield None, f"{relation} is to be checked, and nothing says what {symbol} is"


def _dims(spec: Spec) -> list[Dim]:
    if isinstance(spec, TensorSpec):
        return [*spec.shape, *spec.stride, spec.offset]
    if isinstance(spec, tuple):
        return [dim for part in spec for dim in _dims(part)]
    return [spec.expr] if isinstance(spec, ScalarSpec) and spec.expr is not None else []


def _symbols_of(value: Any) -> Iterator[sympy.Symbol]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, sympy.Basic):
            yield from leaf.free_symbols  # type: ignore[misc]


def _functional(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    for node in graph.nodes:
        if writes_to_arguments(node.op):
            yield node, "the op writes to its arguments; a graph holds functional ops only"


def writes_to_arguments(op: Op) -> bool:
    """Whether the schema says that the op writes to an argument."""
    # a generator's state is written by random ops, and not part of the graph
    schema = getattr(op.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    return any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)


def _spec_shapes(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    for node in graph.all_nodes():
        for spec in node.spec if isinstance(node.spec, tuple) else (node.spec,):
            if isinstance(spec, TensorSpec):
                if len(spec.shape) != len(spec.stride):
                    yield node, f"{len(spec.shape)} sizes and {len(spec.stride)} strides"
                if any(not isinstance(d, (int, sympy.Expr)) or isinstance(d, bool) for d in _dims(spec)):
                    yield node, f"a size that is no int and no expression in {spec.shape}, {spec.stride}, {spec.offset}"
                if any(isinstance(d, sympy.Integer) for d in _dims(spec)):
                    yield node, f"a sympy Integer where an int must be in {spec}"
                if spec.requires_grad and not node.grad_enabled and node.op is not INPUT \
                        and alias_kind(graph, node) == "copy" and node.op is not CONSTANT:
                    yield node, "requires grad though it was computed with grad mode off"


def _reinferred(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    from . import ops

    for node in graph.nodes:
        if node.op.name.startswith("ir."):
            continue
        found = ops.infer(node.op, graph.sizes, node.args, node.kwargs, node.grad_enabled)
        if _comparable(found, graph) != _comparable(node.spec, graph):
            yield node, f"spec {node.spec} where its arguments give {found}"


def _comparable(spec: Spec, graph: Graph) -> Any:
    if isinstance(spec, tuple):
        return tuple(_comparable(part, graph) for part in spec)
    if isinstance(spec, TensorSpec):
        return spec.dtype, graph.sizes.hints(spec.shape), graph.sizes.hints(spec.stride), spec.device
    return spec.kind if isinstance(spec, ScalarSpec) else spec


#: Checked after every pass where errors are raised (`JITPY_RAISE=1`, `JITPY_DEBUG=1`).
RULES = (
    VerifyRule("inputs are ir.input", _inputs),
    VerifyRule("definition before use", _definition_before_use),
    VerifyRule("unique names", _unique_names),
    VerifyRule("kinds of arguments", _argument_kinds),
    VerifyRule("getitem takes a part", _getitems),
    VerifyRule("mutations fit", _mutations),
    VerifyRule("symbols are known", _symbols),
    VerifyRule("sizes are known where they are used", _unbacked),
    VerifyRule("functional", _functional),
    VerifyRule("specs are well formed", _spec_shapes),
)

#: Checked on demand.
SPEC_RULES = (VerifyRule("specs as inferred", _reinferred),)
