"""Functions of one element: the score and mask functions of `flex_attention`, as graphs.

Such a function takes 0-d tensors, and is meant for all elements at once (torch maps over it with vmap). It is traced
once. All that does not depend on the element is computed around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ....ir import Graph, Node, NotCovered, ScalarSpec, SizeUnknown, TensorSpec, map_nodes
from ....ir import ops as table
from ....ir.builder import Builder
from ...breaks import GraphBreak
from ...capture.traced import Uncapturable
from ...interpreter.frame import TracedException
from ...values import Interpreter, Value
from .higher_order import trace_body

_READ = "aten.index.Tensor"


@dataclass(slots=True)
class Element:
    """`graph` computes one element; `captures` are the nodes around it that it takes behind its parameters. `dtype` is
    that of the function's result."""

    graph: Graph
    captures: list[Node]
    dtype: torch.dtype


def trace_element(interp: Interpreter, fn: Value, what: str, specs: Sequence[TensorSpec], source: Node,
                  result: torch.dtype) -> Element:
    """Trace `fn` on 0-d tensors; `source` is any tensor of the graph. The result has the dtype `result`, or is
    converted to it where it is a number."""
    builder = interp.builder
    parameters = [builder.graph.add(builder.op("aten.clone.default"), (source,), {}, spec, builder.loc)
                  for spec in specs]
    code = getattr(fn, "code", None)
    place = f", {os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""
    with _of_element(interp, f"{what} {fn.describe()}{place}"):
        body = trace_body(interp, fn, [interp.context.tensor_value(builder.fresh(node)) for node in parameters], {},
                          parameters, inside=_inside)
        if body.structure != 0:
            raise NotCovered("a result that is no tensor")
        _simplify(body.graph, len(specs), result)
        captures = [_on_device(builder, node, own, specs[0].device)
                    for node, own in zip(body.captures, body.graph.inputs[len(specs):], strict=True)]
    return Element(body.graph, captures, body.specs[0].dtype)


def _on_device(builder: Any, node: Node, own: Node, device: torch.device) -> Node:
    """A capture where the elements are: a number may lie on the host. `own` is the graph's input for it."""
    if isinstance(node.spec, ScalarSpec) or node.tensor.device == device:
        return node
    if node.tensor.ndim:
        raise NotCovered(f"a tensor on {node.tensor.device} among tensors on {device}")
    own.spec = own.tensor.with_(device=device)
    moved: Node = builder.emit("aten._to_copy.default", (node,), {"device": device})
    return moved


@contextmanager
def _of_element(interp: Interpreter, what: str) -> Iterator[None]:
    """Refuse with the function's name, and its line where tracing stopped."""
    state, frames, handled = interp.builder.state, len(interp.frames), interp.handled
    outer, state.of_element = state.of_element, True
    try:
        yield
    except (GraphBreak, SizeUnknown, Uncapturable, NotCovered, TracedException) as error:
        place = f" ({interp.loc()})" if len(interp.frames) > frames else ""
        why = error.value.cls.__name__ if isinstance(error, TracedException) else str(error)
        del interp.frames[frames:]
        interp.handled = handled
        raise GraphBreak("flex_attention", f"{what}: {why}{place}") from None
    finally:
        state.of_element = outer


def _inside(recorded: list[Node], parameters: list[Node]) -> set[Node]:
    """The nodes that depend on the element; and numbers, which need no memory."""
    found = set(parameters)
    for node in recorded:
        sources = node.input_nodes()
        is_number = not sources and node.op.kind == "factory" and isinstance(node.spec, TensorSpec) and \
            not node.tensor.ndim and node.tensor.device == parameters[0].tensor.device
        if is_number or not found.isdisjoint(sources):
            found.add(node)
    return found


def _simplify(graph: Graph, count: int, result: torch.dtype) -> None:
    """Bring a graph into the form that `ir.flex_attention` describes. NotCovered where it has another. So many inputs
    tell which element it is."""
    made: list[Node] = []
    b = Builder(graph, into=made)
    #: parts of captures that leave some axes to be indexed: the capture, and the indices of its leading axes
    rows: dict[Node, tuple[Node, list[Any]]] = {
        node: (node, []) for node in graph.inputs if isinstance(node.spec, TensorSpec) and node.spec.ndim}
    kept: dict[Node, Node] = {node: node for node in graph.inputs if node not in rows}
    for node in graph.nodes:
        b.loc, b.grad_enabled = node.loc, node.grad_enabled
        spec, sources = node.spec, node.input_nodes()
        if sources and sources[0] in rows:
            capture, places = rows[sources[0]]
            places = [*places, *(kept[p] if isinstance(p, Node) else p for p in _places(node))]
            if len(places) < capture.tensor.ndim:
                rows[node] = capture, places
                continue
            places = [p if isinstance(p, Node) else
                      b.call("aten.full.default", [], p, dtype=torch.int64, device=capture.tensor.device)
                      for p in places]
            kept[node] = b.call(_READ, capture, places, spec=spec)
        elif not isinstance(spec, TensorSpec) or spec.ndim or any(source not in kept for source in sources):
            raise NotCovered(f"{node.op} on more than one element ({node.loc})")
        elif node.op.kind == "view" and node.op.index is not None and sources[0].tensor.with_(offset=0) == spec:
            kept[node] = kept[sources[0]]
        elif node.op.kind in ("pointwise", "factory") or node.op.name == "aten.detach.default":
            if node.op.is_random or node.op.is_uninitialised:
                raise NotCovered(f"{node.op} ({node.loc})")
            node.replace_inputs(kept.__getitem__)
            made.append(node)
            kept[node] = node
        else:
            raise NotCovered(f"{node.op}, which is no function of single elements ({node.loc})")
    _widen(graph, graph.inputs[:count], made)
    (output,) = graph.outputs
    found = kept.get(output)
    if found is None:
        raise NotCovered("a result that is no single element")
    if found.tensor.dtype is not result:
        if result is torch.bool:
            raise NotCovered(f"a result of {found.tensor.dtype}")
        found = b.call("aten.to.dtype", found, result)
    graph.nodes[:] = made
    graph.outputs = [found]


def _widen(graph: Graph, parameters: list[Node], nodes: list[Node]) -> None:
    """Compute with 64 bits what tells the element, as eager does: it traces with 32."""
    narrow = [node for node in parameters if node.tensor.dtype is torch.int32]
    for node in narrow:
        node.spec = node.tensor.with_(dtype=torch.int64)
    for node in nodes if narrow else []:
        node.spec = table.infer(node.op, graph.sizes, node.args, node.kwargs, node.grad_enabled)


def _places(node: Node) -> list[Any]:
    """The indices by which a node takes a part of its operand, along the leading axes."""
    if node.op.name == _READ:
        places = node.args[1]
        if all(isinstance(p, Node) and not p.tensor.ndim and p.tensor.dtype in (torch.int32, torch.int64)
               for p in places):
            return list(places)
    if node.op.name == "aten.select.int" and node.args[1] == 0 and not isinstance(node.args[2], Node):
        return [node.args[2]]
    raise NotCovered(f"{node.op} of a tensor from outside, which reads more than one element ({node.loc})")


def spread(builder: Any, element: Element, inputs: Sequence[Node]) -> Node:
    """The element's nodes again, on tensors of four axes that hold all elements, in the graph that is recorded."""

    def wide(node: Node) -> Node:
        if isinstance(node.spec, ScalarSpec) or node.tensor.ndim:
            return node
        return add("aten.view.default", (node, [1, 1, 1, 1]), {})

    def add(op: Any, args: Any, kwargs: Any) -> Node:
        found = table.get(op) if isinstance(op, str) else op
        spec = table.infer(found, builder.sizes, args, kwargs, builder.state.grad_enabled)
        return builder.graph.add(found, args, kwargs, spec, builder.loc, grad_enabled=builder.state.grad_enabled)

    values = dict(zip(element.graph.inputs, map(wide, (*inputs, *element.captures)), strict=True))
    for node in element.graph.nodes:
        args, kwargs = map_nodes((node.args, node.kwargs), values.__getitem__)
        values[node] = wide(add(node.op, args, kwargs))
    return values[element.graph.outputs[0]]


__all__ = ["Element", "spread", "trace_element"]
