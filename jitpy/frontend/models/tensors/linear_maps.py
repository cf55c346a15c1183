"""torch.func.vjp and linearize: what they return besides values is a function, the derivative at a point.

The differentiated function is traced once (see `transforms.py`). A call of the derivative records the real transform
again, on the values that its arguments had then: what is computed twice by that is computed once in the graph. A
derivative that leaves the graph, or cannot be called in it, makes tracing start again, and break where it was made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ....ir import INPUT
from ...breaks import GraphBreak, RestartAnalysis
from ...capture.traced import Storage, TracedTensor
from ...codegen.frame_code import Emitter, builds
from ...interpreter.callees import builtin
from ...interpreter.calls import recording_whole
from ...values import ConstValue, Interpreter, TensorValue, TupleValue, Value
from .higher_order import Body
from .transforms import Run, Slot, TransformValue, constant, refusal, trace, tree_of, value_of


@dataclass
class _Derivative:
    """primals: the point, as a tree and as tensors. memory: where that lies, what the function reads and what it has
    returned, and how often each had been written to: eager keeps some of it. step: where it was made."""

    transform: Any
    options: dict[str, Any]
    body: Body
    primals: Any
    tensors: list[TracedTensor]
    memory: dict[Storage, int]
    step: int

    @property
    def name(self) -> str:
        return f"torch.func.{self.transform.__name__}"

    def lost(self, why: str) -> RestartAnalysis:
        return RestartAnalysis(self.step, GraphBreak("transform", f"{self.name}: {why}"))


class DerivativeValue(TransformValue):
    """The function that vjp or linearize returns."""

    __slots__ = ("made",)

    def __init__(self, func: Value, made: _Derivative) -> None:
        super().__init__(made.transform, func, made.options)
        self.made = made

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return _call(interp, self, args, kwargs)


@builtin(torch.func.vjp)
def _vjp(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(kwargs)
    options = {"has_aux": constant(interp, given.pop("has_aux", ConstValue(False)))}
    if not args or given or type(options["has_aux"]) is not bool:
        raise refusal("unusual arguments")

    def call(function: Callable[..., Any], filled: Any) -> Any:
        result = torch.func.vjp(function, *filled[0], **options)
        return (result[0], result[2]) if options["has_aux"] else (result[0],)

    return _make(interp, torch.func.vjp, args[0], options, args[1:], call)


@builtin(torch.func.linearize)
def _linearize(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args or kwargs:
        raise refusal("unusual arguments")

    def call(function: Callable[..., Any], filled: Any) -> Any:
        return (function(*filled[0]),)

    return _make(interp, torch.func.linearize, args[0], {}, args[1:], call)


def _make(interp: Interpreter, transform: Any, func: Value, options: dict[str, Any], primals: list[Value],
          call: Callable[..., Any]) -> Value:
    builder = interp.builder
    tensors: list[TensorValue] = []
    tree = (tree_of(interp, TupleValue(list(primals)), tensors), {})
    leaves = pytree.tree_leaves(tree[0])
    if not leaves or not all(isinstance(leaf, Slot) for leaf in leaves):
        raise refusal("a derivative with respect to what is no tensor")
    fn = TransformValue(transform, func, options)
    with recording_whole(interp, f"torch.func.{transform.__name__}"):
        body = trace(interp, fn, tree, tensors, [None] * len(tensors), set(range(len(tensors))))
        if any(node.op.is_random for node in body.graph.nodes):
            raise refusal("a function that draws random numbers, whose derivative is called later")
        nodes = [builder.node(tensor.traced) for tensor in tensors]
        read = {*nodes, *body.captures}
        if transform is torch.func.linearize:
            if any(node.tensor.requires_grad for node in read):
                raise refusal("values with a history, which it would lose")
            if any(node.op is INPUT or node.op.is_view for node in body.graph.outputs):
                raise refusal("a function that returns what it is given, or a view: its own copies everything")
        before = _storages(interp)
        run = Run(call, tree, body, builder, transform.__name__)
        results = run.record(interp, [tensor.traced for tensor in tensors])
    memory = {storage: storage.generation for storage in _storages(interp)
              if storage not in before or not read.isdisjoint(storage.values)}
    made = _Derivative(transform, options, body, tree[0], [value_of(builder, node) for node in nodes], memory,
                       interp.step)
    return TupleValue([results.items[0], DerivativeValue(func, made), *results.items[1:]])


def _storages(interp: Interpreter) -> set[Storage]:
    return {value.traced.storage for value in interp.context.tensors.values()}


def _call(interp: Interpreter, fn: DerivativeValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = fn.made
    if kwargs:
        raise made.lost("keyword arguments of the function that it returned")
    if any(storage.generation != count for storage, count in made.memory.items()):
        raise made.lost("what the function reads or has returned was written to since")
    count = len(made.tensors)
    directions: list[TensorValue] = [None] * count  # type: ignore[list-item]  # numbered behind the primals
    tree = (made.primals, tree_of(interp, TupleValue(list(args)), directions))

    def call(function: Callable[..., Any], filled: Any) -> Any:
        if made.transform is torch.func.vjp:
            return torch.func.vjp(function, *filled[0], **made.options)[1](*filled[1])
        return torch.func.jvp(function, filled[0], filled[1])[1]

    try:
        with recording_whole(interp, made.name):
            run = Run(call, tree, made.body, interp.builder, made.transform.__name__)
            return run.record(interp, [*made.tensors, *(value.traced for value in directions[count:])])
    except GraphBreak as cause:
        raise made.lost(f"the function that it returned: {cause.detail}") from None


@builds(DerivativeValue)
def _build(emitter: Emitter, value: DerivativeValue) -> None:
    raise value.made.lost("the function that it returned leaves the graph")


__all__ = ["DerivativeValue"]
