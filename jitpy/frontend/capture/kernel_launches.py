"""Launches of Triton kernels, as nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitpy.ir import Op
from jitpy.ir import ops as table

from .graph_effects import note_act, on_memory
from .overlap import apart
from .traced import GraphBuilder, TracedTensor, Uncapturable


def record_launch(builder: GraphBuilder, name: str, make: Callable[[list[Any]], tuple[Op, tuple[int, ...]]],
                  grids: Any, tensors: list[TracedTensor], numbers: list[Any]) -> None:
    """Put a launch into the graph. `make(numbers)` gives its op, and which tensors it writes to.

    Autograd does not see what a kernel writes: neither a history nor a version.
    """
    mark = builder.checkpoint()
    try:
        if builder.state.transforms:
            raise Uncapturable("unsupported_op", f"{name} under a transform")
        numbers = builder.to_node(numbers)
        op, written = make(numbers)
        targets = [tensors[place] for place in written]
        _check(builder, name, tensors, targets)
        with builder.state.grad_mode(False):
            nodes = tuple([builder.node(tensor, detached=True) for tensor in tensors])
            call = builder.to_node(grids), nodes, tuple(numbers)
            op, args, kwargs, targets = on_memory(builder, op, call, {}, targets, tensors)
            node = builder.graph.add(op, args, kwargs, table.infer(op, builder.sizes, args, kwargs, False), builder.loc,
                                     name=name, grad_enabled=False)
            for number, target in enumerate(targets):
                builder.write(target, builder.part(node, number), unseen=True)
    except Uncapturable:
        builder.rollback(mark)
        raise


def _check(builder: GraphBuilder, name: str, tensors: list[TracedTensor], targets: list[TracedTensor]) -> None:
    for tensor in tensors:
        if True in tensor.lazy_bits:
            raise Uncapturable("unsupported_op", f"{name} of a tensor whose conjugation or negation is pending")
    for target in targets:
        if any(other is not target and other.storage is target.storage and not apart(other, target)
               for other in tensors):
            raise Uncapturable("unsupported_op", f"{name} writes to memory that it is given twice")
        has_history = target.spec.requires_grad or target.storage.base.tensor.requires_grad
        if has_history and (target.storage.input is None or not target.is_leaf or target.chain):
            raise Uncapturable("unsupported_op", f"{name} writes to a tensor that has a history")
        if target.storage.input is not None:
            note_act(builder, name)
