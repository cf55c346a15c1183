"""`tensor.data = other`: a tensor looks at the memory of another one from then on, and stays the object that it was.

In the graph it becomes a view of that memory with a version counter of its own, as `other.data` is. A tensor from
outside gets its memory when the graph has run, as all changes of objects are made. A leaf that requires grad still
does: its history begins at what it shows when it is next read under autograd (`capture/speculation.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from jitpy.ir.alias import needs_grad

from ...capture.inputs import is_leaf
from ...capture.torch_calls.tensor_attributes import shows_inference_tensor
from ...capture.traced import TracedTensor, Uncapturable
from ...values import TensorValue, Value, unsupported
from ...values.tensor import sets_attribute

if TYPE_CHECKING:
    from ...values import Interpreter


@sets_attribute("data")
def store_data(interp: Interpreter, value: TensorValue, new: Value) -> None:
    """`value.data = new`."""
    if new.tensor is None or new.cls not in (torch.Tensor, torch.nn.Parameter):
        raise unsupported(value, ".data = ...")
    if new is value:
        return  # torch gives it what it has
    with interp.recording(".data = ..."):
        _check(interp, value, new.traced)
        _replace(interp, value, new.traced)


def _check(interp: Interpreter, value: TensorValue, new: TracedTensor) -> None:
    """Raises Uncapturable where plain Python has to do it."""
    builder, tensor = interp.builder, value.traced
    have, given = tensor.spec, new.spec
    what = None
    if True in new.lazy_bits or new.storage.frozen or builder.state.inference_mode or \
            shows_inference_tensor(builder, tensor) or shows_inference_tensor(builder, new):
        what = "memory of a special kind"
    elif have.requires_grad and not given.dtype.is_floating_point:
        what = "numbers that have no gradient, in a tensor that requires grad"
    elif builder.speculation.is_own_leaf(tensor):
        if (have.shape, have.dtype, have.device) != (given.shape, given.dtype, given.device):
            what = "another kind of tensor than a leaf that was made inside"
    elif value.source is None or value.real is None:
        if have.requires_grad or tensor.chain or tensor.storage.frozen or tensor.storage.leaf is not None:
            what = "a tensor made inside that is a view, a parameter, or requires grad"
    elif value.flag is not None or tensor in builder.speculation.off or tensor.storage.frozen and tensor.chain:
        what = "a tensor whose requires_grad was changed"
    elif not have.is_static or not given.is_static:
        what = "sizes that change from call to call"
    elif value.real._base is not None:
        what = "a tensor from outside that is a view"
    elif have.requires_grad and any(node.op.is_view and needs_grad(node.spec) for node in builder.graph.nodes
                                    if tensor.node in node.input_nodes()):
        what = "a tensor that requires grad, of which there are views"
    elif have.requires_grad and not builder.attribute(tensor, "is_leaf"):
        what = "a tensor that was computed"
    elif value.grad_assigned and (have.shape, have.dtype, have.device) != (given.shape, given.dtype, given.device):
        what = "another kind of tensor than the .grad that was assigned"
    if what is not None:
        raise Uncapturable("unsupported_op", f".data = ...: {what}")


def owns_its_memory(tensor: torch.Tensor) -> bool:
    """Guard: a leaf that is no view."""
    return tensor._base is None and is_leaf(tensor)


def _replace(interp: Interpreter, value: TensorValue, new: TracedTensor) -> None:
    builder, old = interp.builder, value.traced
    is_own_leaf = builder.speculation.is_own_leaf(old)
    builder.check_replaced(old.storage)
    shown = builder.attribute(new, "data")
    made = TracedTensor(builder, shown.storage, shown.chain, shown.node, shown.spec, shown.anchored)
    made.generation = shown.generation
    builder.set(value, "traced", made)
    interp.context.tensors[id(made)] = value
    interp.context.touch(value)
    if is_own_leaf:
        builder.speculation.renew(old, made)
    if value.source is None or value.real is None:
        return
    builder.guards.add(value.source, "python", owns_its_memory, ".data was assigned")
    number = builder.number_of(value.real)
    builder.speculation.replace(number, made)
    if old.spec.requires_grad:
        made.stands_for, made.is_leaf = number, True
        made._spec = replace(made._spec, requires_grad=True)
    # nobody else shows a value that was made for this: it may be the result as it is
    plain = new.storage.input is None and not new.spec.requires_grad and not new.chain
    held = TracedTensor(builder, new.storage, (), new.node, new.spec, new.anchored) if plain else shown
    held.generation = new.generation if plain else shown.generation
    builder.set(value, "data", interp.context.tensor_value(held))


__all__ = ["store_data"]
