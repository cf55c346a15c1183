"""torch.cond and torch.while_loop: branches and bodies become graphs inside the graph.

A body is traced like any other call. Its nodes are then cut out of the graph: the values that it reads from
around it become the inner graph's inputs. Eager compiles these functions as well and allows them no side effects, so a
body that has one, or results that fit badly, break the graph, and eager says what is wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder

from ....ir import Graph, Node, Op, TensorSpec, map_nodes
from ....ir.algebra import sympy
from ....ir.interpret import interpret, own_memory
from ....ir.trees import tree_leaves
from ...breaks import GraphBreak
from ...capture.traced import TracedTensor
from ...guards.source import item
from ...interpreter.callees import builtin
from ...values import (
    DictValue,
    Interpreter,
    Missing,
    ObjectValue,
    TupleValue,
    Value,
)
from ...values.tree import tree_iter, tree_pack, tree_unpack

_aten = torch.ops.aten


@dataclass(slots=True)
class Body:
    """A traced function. `captures` are the nodes around it that it reads; `result` holds its tensors in `structure`,
    where they are numbered."""

    graph: Graph
    captures: list[Node]
    specs: tuple[TensorSpec, ...]
    structure: Any
    #: the placeholders that it takes first, and all that was recorded, as they were in the graph around it
    parameters: list[Node]
    recorded: list[Node]


@dataclass(slots=True)
class Branches:
    """The target of a `torch.cond` node: only the branch that is taken."""

    true: Graph
    false: Graph

    def __call__(self, predicate: torch.Tensor, true: tuple[Any, ...], false: tuple[Any, ...]) -> tuple[Any, ...]:
        taken, captures, others = (self.true, true, false) if predicate else (self.false, false, true)
        results = own_memory(interpret(taken, captures, torch.is_grad_enabled()), captures)
        if not any(result.requires_grad for result in results):
            return results
        # As in eager, what only the other branch reads gets a gradient too: zeros.
        read = {id(capture) for capture in captures}
        unread = [t for t in others if isinstance(t, torch.Tensor) and t.requires_grad and id(t) not in read]
        return _Connected.apply(len(results), *results, *unread) if unread else results


@dataclass(slots=True)
class Loop:
    """The target of a `torch.while_loop` node."""

    condition: Graph
    body: Graph

    def __call__(self, carried: tuple[Any, ...], condition: tuple[Any, ...], body: tuple[Any, ...]) -> tuple[Any, ...]:
        first = carried
        grad = torch.is_grad_enabled()
        while interpret(self.condition, (*carried, *condition), grad)[0]:
            carried = interpret(self.body, (*carried, *body), grad)
        return own_memory(carried, (*first, *body))


class _Connected(torch.autograd.Function):
    """Copies of the first `count` tensors, from which gradients of zero flow to the others."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.shapes = [(t.shape, t.dtype, t.device) for t in tensors[count:]]
        return tuple(t.clone() for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, *grads, *(torch.zeros(s, dtype=dtype, device=device) for s, dtype, device in ctx.shapes)


# -- torch.cond ---------------------------------------------------------------------------------------------


@builtin(torch.cond, torch.ops.higher_order.cond)
def cond(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """A predicate that is no tensor chooses now, as in eager; one that is chooses when the graph runs."""
    given = _bind(("pred", "true_fn", "false_fn", "operands"), args, kwargs)
    predicate, true, false = given["pred"], given["true_fn"], given["false_fn"]
    operands = _items(interp, given.get("operands", TupleValue([])))
    if predicate.is_constant or predicate.is_computed:
        return interp.call(true if interp.truth(predicate) else false, operands, {})
    if predicate.tensor is None or interp.builder.sizes.hint(predicate.tensor.spec.numel) != 1:
        raise _refusal("a predicate that is no single number")
    if not all(leaf.tensor is not None for operand in operands for leaf in tree_iter(interp, operand)):
        raise _refusal("operands that are no tensors")
    with interp.recording("torch.cond"):
        bodies = [_trace(interp, branch, operands) for branch in (true, false)]
        if bodies[0].structure != bodies[1].structure or bodies[0].specs != bodies[1].specs:
            raise _refusal("the branches return different things")
        target = Branches(bodies[0].graph, bodies[1].graph)
        inputs = (interp.builder.node(predicate.traced), tuple(bodies[0].captures), tuple(bodies[1].captures))
        return _add(interp, "ir.cond", target, inputs, bodies[0])


# -- torch.while_loop ---------------------------------------------------------------------------------------


@builtin(torch.while_loop)
def while_loop(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """`torch.while_loop` on tensors that need no gradients."""
    given = _bind(("cond_fn", "body_fn", "carried_inputs"), args, kwargs)
    carried = _items(interp, given["carried_inputs"])
    if not carried or not all(value.tensor is not None for value in carried):
        raise _refusal("carried values that are no tensors")
    with interp.recording("torch.while_loop"):
        builder = interp.builder
        nodes = [builder.node(value.traced) for value in carried]  # type: ignore[attr-defined]
        condition = _trace(interp, given["cond_fn"], nodes)
        body = _trace(interp, given["body_fn"], nodes)
        if [(s.shape, s.dtype) for s in condition.specs] != [((), torch.bool)] or condition.structure != 0:
            raise _refusal("a condition that is no bool tensor")
        expected = tuple(node.tensor.with_(requires_grad=False, offset=0) for node in nodes)
        if body.specs != expected or body.structure != tuple(range(len(nodes))):
            raise _refusal("a body that returns other things than it takes")
        target = Loop(condition.graph, body.graph)
        return _add(interp, "ir.while_loop", target, (tuple(nodes), tuple(condition.captures), tuple(body.captures)),
                    body)


def _add(interp: Interpreter, name: str, target: Callable[..., Any], inputs: tuple[Any, ...], body: Body) -> Value:
    """The node, and its results in the structure that the body returned them in."""
    specs = body.specs
    op = Op(name, target, infer=lambda env, *args, **kwargs: specs,
            aliasing=lambda *a, **k: "copy", is_recordable=True)
    op.is_random = any(node.op.is_random for graph in _graphs_of(target) for node in graph.nodes)
    builder = interp.builder
    node = builder.graph.add(op, inputs, {}, specs, builder.loc, grad_enabled=builder.state.grad_enabled)
    results = builder.results(node, specs)

    values = list(map(interp.context.tensor_value, results))
    return tree_pack(interp, values.__getitem__, body.structure)


def _graphs_of(target: Any) -> tuple[Graph, ...]:
    return (target.true, target.false) if isinstance(target, Branches) else (target.condition, target.body)


@builtin(invoke_subgraph_placeholder)
def call_region(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """A function under `torch.compiler.nested_compile_region`, as in plain Python. Only Dynamo sees more in it."""
    return interp.call(args[0], args[1:], kwargs)


# -- tracing a body -----------------------------------------------------------------------------------------


def _trace(interp: Interpreter, fn: Value, arguments: list[Any]) -> Body:
    """Trace `fn(*arguments)`, whose results must be new tensors. Nodes stand for new tensors of that kind."""
    builder = interp.builder
    parameters: list[Node] = []
    values: list[Value] = []
    for argument in arguments:
        if isinstance(argument, Node):
            spec = argument.tensor.with_(requires_grad=False, offset=0)
            parameters.append(builder.emit(_aten.clone.default, (argument,), {}, spec))
            argument = interp.context.tensor_value(builder.fresh(parameters[-1]))
        values.append(argument)
    return trace_body(interp, fn, values, {}, parameters, fresh=True)


@contextlib.contextmanager
def as_whole(interp: Interpreter, refuse: Callable[[str], GraphBreak]) -> Iterator[None]:
    """Trace a call as a whole, like one in a frame: where the graph would break inside, it breaks at the call."""
    outer, depth = interp.ordinary_depth, len(interp.frames)
    interp.ordinary_depth = interp.sync_depth + 1
    try:
        yield
    except GraphBreak as error:
        del interp.frames[depth:]
        raise refuse(str(error)) from None
    finally:
        interp.ordinary_depth = outer


def trace_body(interp: Interpreter, fn: Value, args: list[Value], kwargs: dict[str, Value], parameters: list[Node],
               fresh: bool = False, may_skip: bool = False,
               inside: Callable[[list[Node], list[Node]], set[Node]] | None = None) -> Body:
    """Trace a call into a graph of its own. `parameters`, the last nodes of the graph, stand for its new tensors.

    `fresh`: its results must have memory of their own. Otherwise they may be the parameters or views of them.
    `may_skip`: None may stand where a tensor is due. `inside`: which recorded nodes do not stay outside.
    """
    builder, context = interp.builder, interp.context
    nodes = builder.graph.nodes
    start = len(nodes) - len(parameters)
    inputs = set(parameters)
    known = {id(value.traced): value.traced for value in context.tensors.values()}
    storages = {tensor.storage: tensor.storage.generation for tensor in known.values()}
    before = state_of(interp)
    result = interp.call_sync(fn, args, kwargs)
    if state_of(interp) != before:
        raise _refusal("a function with a side effect")
    found = {value.traced.storage for value in context.tensors.values() if value.traced.storage.input is not None}
    if any(storage.generation != storages.get(storage, 0) for storage in found | storages.keys()):
        raise _refusal("a function that writes to a tensor from outside")
    tensors: list[TracedTensor] = []
    structure = structure_of(interp, result, tensors, may_skip)
    for tensor in tensors:
        own = tensor.storage.values[0] in inputs
        if tensor.storage.input is not None or not own and tensor.storage in storages or own and fresh:
            raise _refusal("a result that shares memory with a tensor from outside")
    if fresh and len({tensor.storage for tensor in tensors}) != len(tensors):
        raise _refusal("two results that share memory")
    outputs = [builder.node(tensor) for tensor in tensors]
    recorded = nodes[start:]
    region = inside(recorded, parameters) if inside is not None else set(recorded)
    graph, captures = _cut(builder, region, parameters, outputs)
    _forget(builder, start, [*captures, *(t.node for t in known.values() if t.storage.values[0] not in inputs)])
    specs = tuple(tensor.spec.with_(offset=0) for tensor in tensors)
    return Body(graph, captures, specs, structure, parameters, recorded)


def structure_of(interp: Interpreter, value: Value, tensors: list[TracedTensor], may_skip: bool = False) -> Any:
    """A result with the numbers of its tensors in their places; fills `tensors`."""

    def number(leaf: Value) -> int | None:
        if may_skip and leaf.literal is None:
            return None
        if leaf.tensor is None:
            raise _refusal("a result that is no tensor")
        tensors.append(leaf.traced)
        return len(tensors) - 1

    return tree_unpack(interp, number, value)


def _cut(builder: Any, region: set[Node], parameters: list[Node], outputs: list[Node]) -> tuple[Graph, list[Node]]:
    """The part of `region` that `outputs` need, as a graph; and the nodes outside that it takes after its
    parameters."""
    graph = Graph("body", sizes=builder.sizes)
    copies: dict[Node, Node] = {node: graph.add_input(node.spec, node.name) for node in parameters}  # type: ignore[arg-type]
    captures: list[Node] = []

    def capture(node: Node) -> Node:
        captures.append(node)
        return graph.add_input(node.spec, node.name)  # type: ignore[arg-type]

    def copy(node: Node) -> Node:
        found = copies.get(node)
        if found is None:
            if node not in region:
                if type(node.spec) is tuple:
                    raise _refusal("a part of a result from outside")
                found = capture(node)
            else:
                args, kwargs = map_nodes(node.args, copy), {k: map_nodes(v, copy) for k, v in node.kwargs.items()}
                found = graph.add(node.op, args, kwargs, node.spec, node.loc, node.name, node.grad_enabled)
            copies[node] = found
        return found

    # In the order of recording, so that random numbers are drawn in it.
    needed = _needed(region, outputs)
    for node in builder.graph.nodes:
        if node in needed and node not in copies:
            copy(node)
    graph.outputs = [copy(node) for node in outputs]
    bound = set(graph.symbol_bindings())
    bindings = builder.graph.symbol_bindings()
    for symbol in sorted(_symbols(graph) - bound, key=str):
        if symbol not in bindings or symbol in graph.symbol_bindings():
            continue
        capture(builder.graph.inputs[bindings[symbol][0]])
    return graph, captures


def _needed(region: set[Node], outputs: list[Node]) -> set[Node]:
    """Nodes of the region that the outputs depend on, and those that draw random numbers."""
    found: set[Node] = set()
    stack = [*outputs, *(node for node in region if node.op.is_random)]
    while stack:
        node = stack.pop()
        if node in region and node not in found:
            found.add(node)
            stack += node.input_nodes()
    return found


def _forget(builder: Any, start: int, kept: list[Node]) -> None:
    """Take the body's nodes out of the graph, except where an older tensor was brought up to date by them."""
    nodes = builder.graph.nodes
    needed = _needed({node for node in nodes[start:] if not node.op.is_random}, kept)
    nodes[start:] = [node for node in nodes[start:] if node in needed]
    if builder.first_grad_node is not None and builder.first_grad_node >= start:
        builder.first_grad_node = start


def _symbols(graph: Graph) -> set[sympy.Symbol]:
    sizes = [leaf for node in graph.nodes for leaf in tree_leaves((node.args, node.kwargs))
             if isinstance(leaf, sympy.Basic)]
    return set().union(*(size.free_symbols for size in sizes))


def state_of(interp: Interpreter) -> Any:
    """All that a program could have changed outside the function that is about to be traced, as something to compare.

    Objects from outside count their changes, or have a log; of objects that tracing made, everything reachable from
    the frames is listed. """
    context = interp.context
    listed: dict[int, Any] = {}

    def visit(value: Any) -> None:
        if not isinstance(value, Value) or id(value) in listed:
            return
        listed[id(value)] = None
        from_outside = value.source is not None
        parts = list(ObjectValue.children(value) if isinstance(value, DictValue) and from_outside else value.children())
        if not from_outside:
            # what is only read later on, or for the first time, has not changed
            listed[id(value)] = value, tuple(p for p in parts if isinstance(p, Value)), (len(parts), value.progress())
        for part in parts:
            visit(part)

    for frame in interp.frames:
        for value in frame.children():
            visit(value)
    for value in context.dirty:
        if isinstance(value, DictValue):
            context.settle_keys(value)
    dicts = {id(d): (d, dict(d.vals), sum(isinstance(new, Missing) for _, new in d.log))
             for d in (*context._by_id.values(), *context.dirty) if isinstance(d, DictValue) and d.source is not None}
    return _Unchanged([entry for entry in listed.values() if entry is not None], dicts, context.touches,
                      len(interp.host_calls) + len(interp.front_calls), interp.builder.state.snapshot())


@dataclass(slots=True, eq=False)
class _Unchanged:
    """See `state_of`. An item that was still lazy when the first was made may be a Value in the second."""

    entries: list[tuple[Value, tuple[Value, ...], Any]]
    dicts: dict[int, tuple[DictValue, dict[Any, Any], int]]
    touches: int
    host_calls: int  # behind the graph and in front of it
    modes: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Unchanged):
            return NotImplemented
        mine = {id(value): (parts, count) for value, parts, count in self.entries}
        for value, parts, count in other.entries:
            found = mine.get(id(value))
            if found is None or found[1] != count or not set(map(id, parts)) <= set(map(id, found[0])):
                return False
        for key, (written, values, deleted) in self.dicts.items():
            _, old, deleted_before = other.dicts.get(key, (written, {}, 0))
            same = (_same_entry(written, name, old.get(name), values.get(name)) for name, _ in written.log)
            if deleted != deleted_before or not all(same):
                return False
        return (self.touches, self.host_calls, self.modes) == (other.touches, other.host_calls, other.modes)


def _same_entry(of: DictValue, key: Any, old: Any, new: Any) -> bool:
    """Whether a key of a dict from outside holds what it held before; what was not read then is known by its source."""
    if isinstance(new, Missing) or new is None:
        return isinstance(old, Missing) or old is None
    if old is not None and not isinstance(old, Missing):
        return new is old
    return new.source is not None and new.source == item(of.source, key)


# -- arguments ----------------------------------------------------------------------------------------------


def _bind(names: tuple[str, ...], args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(args) > len(names) or not set(given) <= set(names) or len(given) < 3:
        raise _refusal("unusual arguments")
    return given


def _items(interp: Interpreter, value: Value) -> list[Value]:
    items = value.listed(interp)
    if items is None:
        raise _refusal("operands that are no tuple")
    return items


def _refusal(detail: str) -> GraphBreak:
    return GraphBreak("higher_order", detail)
