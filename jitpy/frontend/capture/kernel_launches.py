"""Launches of Triton kernels, as nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitpy.ir import Op
from jitpy.ir import ops as table

from .graph_effects import note_act, on_memory
from .overlap import apart
from .traced import TracedTensor, Uncapturable

if TYPE_CHECKING:
    from .graph_builder import Recorder


def record_launch(recorder: Recorder, name: str, make: Callable[[list[Any]], tuple[Op, tuple[int, ...]]],
                  grids: Any, tensors: list[TracedTensor], numbers: list[Any]) -> None:
    """Put a launch into the graph. `make(numbers)` gives its op, and which tensors it writes to.

    Autograd does not see what a kernel writes: neither a history nor a version.
    """
    mark = recorder.checkpoint()
    grad = recorder.state.grad_enabled
    try:
        if recorder.state.transforms:
            raise Uncapturable("unsupported_op", f"{name} under a transform")
        numbers = recorder.to_node(numbers)
        op, written = make(numbers)
        targets = [tensors[place] for place in written]
        _check(recorder, name, tensors, targets)
        recorder.state.set("grad_enabled", False)
        nodes = tuple([recorder.node(tensor, detached=True) for tensor in tensors])
        call = recorder.to_node(grids), nodes, tuple(numbers)
        op, args, kwargs, targets = on_memory(recorder, op, call, {}, targets, tensors)
        node = recorder.graph.add(op, args, kwargs, table.infer(op, recorder.sizes, args, kwargs, False), recorder.loc,
                                  name=name, grad_enabled=False)
        for number, target in enumerate(targets):
            recorder.write(target, recorder._part(node, number), unseen=True)
        recorder.state.set("grad_enabled", grad)
    except Uncapturable:
        recorder.rollback(mark)
        raise


def _check(recorder: Recorder, name: str, tensors: list[TracedTensor], targets: list[TracedTensor]) -> None:
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
            note_act(recorder, name)
