"""Hooks that the traced program registers and uses up itself.

Torch numbers hooks, and keeps them in dicts of the tensor or module by number. A number that is another one at each
call must not be known here: to torch's own functions it is a key that no other hook has (`HookNumberValue`), and where
the program asks which number it is, the graph breaks. Once a hook is
removed, nothing is left of it but the numbers that were used. One that is still there where the graph ends gets the
number that it would have in eager when the changes of its module are replayed. A handle of a hook of a tensor that is
left by then has to be made in plain Python: tracing starts again, and breaks at the registration.

Hooks of tensors are called by the backward passes that are captured (`backward.py`). A pass outside of the graph calls
none of them, so a history that is still needed when the graph ends means the same: see `Speculation`.
"""

from __future__ import annotations

import collections
import weakref
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from jitpy.ir import GETITEM, INPUT, Node

from ...breaks import GraphBreak, RestartAnalysis
from ...capture.speculation import Assumption, Hooks
from ...capture.traced import TracedTensor, Uncapturable
from ...codegen.frame_code import Emitter, builds
from ...interpreter.callees import builtin
from ...interpreter.calls import inline_library
from ...interpreter.frame import TracedException
from ...interpreter.library_code import stands_for_c
from ...polyfills.hooks import RETAINS, keep, kept, new_hook_id, reference_to_hooks, retain
from ...polyfills.hooks import register as register_body
from ...values import (
    DictValue,
    HookNumberValue,
    TensorValue,
    Value,
    WeakReferenceValue,
    const,
)
from .backward_calls import leaf_of, memory_of

if TYPE_CHECKING:
    from ...values import Interpreter

_REGISTERING = tuple(function.__code__ for function in (
    torch.nn.Module.register_forward_hook, torch.nn.Module.register_forward_pre_hook,
    register_module_forward_hook, register_module_forward_pre_hook, RemovableHandle.__init__))


class HooksReferenceValue(WeakReferenceValue):
    """A handle's reference to the dict of its hook, which the module or tensor holds."""

    __slots__ = ("born",)

    def __init__(self, target: Value, born: int) -> None:
        super().__init__(target)
        self.born = born

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        assert self.target is not None
        return self.target


@builtin(new_hook_id)
def _new_number(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    state = interp.builder.state
    made = HookNumberValue(state.hooks_registered)
    state.set("hooks_registered", state.hooks_registered + 1)
    made.born = _registered_at(interp)
    return made


@builtin(reference_to_hooks)
def _reference(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return HooksReferenceValue(args[0], _registered_at(interp))


def _registered_at(interp: Interpreter) -> int:
    """The step of the call that registers a hook, outside of torch's own functions for that."""
    step = interp.step
    for frame in reversed(interp.frames):
        if not stands_for_c(frame.code) and frame.code not in _REGISTERING:
            break
        step = frame.entered
    return step


@builds(HookNumberValue)
def _build_number(emitter: Emitter, value: HookNumberValue) -> None:
    emitter.make(value, _number, lambda: emitter.const(value.index))


def _number(index: int) -> int:
    """Run by compiled code, which counts the hooks of its graph after it has replayed all else."""
    return RemovableHandle.next_id + index


@builds(HooksReferenceValue)
def _build_reference(emitter: Emitter, value: HooksReferenceValue) -> None:
    if value.target is None or value.target.source is None:
        raise RestartAnalysis(value.born, GraphBreak("skipped", "a hook is registered, and its handle is left"))
    emitter.make(value, weakref.ref, value.target)


@builtin(RemovableHandle.remove)
def _remove(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and args[0].is_instance and args[0].source is None:
        return inline_library(interp, RemovableHandle.remove, args, kwargs)
    raise GraphBreak("skipped", "RemovableHandle.remove: it removes a hook that was registered before")


# -- hooks of tensors -----------------------------------------------------------------------------------------------


@builtin(torch.Tensor.register_hook)
def _register(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`tensor.register_hook(hook)`."""
    given = [*args, *kwargs.values()]
    if len(given) != 2 or kwargs.keys() - {"hook"} or given[0].tensor is None:
        raise GraphBreak("autograd", "Tensor.register_hook")
    tensor, hook = given
    if interp.sync_depth:
        raise GraphBreak("autograd", "Tensor.register_hook in a function that is called back")
    with interp.recording("Tensor.register_hook"):
        hooks = _hooks_of(interp, tensor, "Tensor.register_hook")
    interp.context.writes += 1
    return interp.call_sync(interp.context.const_object(register_body), [hooks, hook])


@builtin(torch.Tensor.retain_grad)
def _retain(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A hook of a tensor that was computed; leaves keep their gradients anyway. Tensors that leave the graph are
    results of it, which can be watched: see `autograd.cuts`."""
    value = args[0]
    if len(args) > 1 or kwargs or value.tensor is None or not value.traced.spec.requires_grad:
        raise GraphBreak("autograd", "Tensor.retain_grad")
    with interp.recording("Tensor.retain_grad"):
        if value.traced.unasked:  # torch does not bring its history up to date, as a question would
            raise Uncapturable("autograd", "an argument that is a view")
        if interp.builder.attribute(value.traced, "is_leaf"):
            return const(None)
        if interp.sync_depth or value.source is not None:
            raise Uncapturable("autograd", "an argument, or a function that is called back")
        hooks = _hooks_of(interp, value, "Tensor.retain_grad")
    interp.context.writes += 1
    if value.grad is None:
        value.grad = const(None)
    return interp.call_sync(interp.context.const_object(retain), [hooks, value])


@builtin(kept)
def _kept(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    builder = interp.builder
    node, hooked = next(item for item in builder.speculation.hooked.items() if item[1].tensor is value.traced)
    if builder.node(value.traced) is not node:
        raise hooked.assumption.violated()  # it retains the gradient of what was written to it since
    return value.grad


@builtin(keep)
def _keep(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value, grad = args
    interp.builder.set(value, "grad", grad)
    return const(None)


def _hooks_of(interp: Interpreter, value: TensorValue, what: str) -> DictValue:
    """The dict of the hooks of a tensor; `what` asks for it."""
    builder, tensor = interp.builder, value.traced
    speculation = builder.speculation
    speculation.check_view(tensor)
    if not tensor.spec.requires_grad or builder.state.transforms:
        raise Uncapturable("autograd", "a tensor that does not require grad here")
    node = builder.parameters.root(tensor)
    known = speculation.hooked.get(node)
    if known is not None and known.tensor is tensor:
        return known.hooks
    if known is not None or any(other.tensor is tensor for other in speculation.hooked.values()):
        raise Uncapturable("autograd", "a tensor that was changed since it got hooks")
    if node.op is GETITEM or tensor.input is not None and node.op is not INPUT:
        raise Uncapturable("autograd", "one of several results, or an argument that was changed")
    if node.op is INPUT:
        leaf_of(interp, node)  # raises where it is none, or where others watch it
    hooks = DictValue(cls=collections.OrderedDict)
    is_leaf = node.op is INPUT or node in speculation.leaves
    speculation.hook(node, Hooks(tensor, hooks, is_leaf, Assumption(interp.step, "autograd", what),
                          lambda grad, create, old: _run(interp, speculation.hooked[node], grad, create, old)))
    return hooks


def _run(interp: Interpreter, hooked: Hooks, grad: Node, create_graph: bool, old: set[Node]) -> Node:
    """Call the hooks of a tensor whose gradient is complete, in order; what they make of it. Memory of nodes in `old`
    is somebody else's."""
    builder = interp.builder
    memory = memory_of(builder, grad)
    is_shared = memory is None or memory in old
    own = builder.emit(torch.ops.aten.clone.default, (grad,)) if is_shared else grad
    first = builder.fresh(own)
    builder.speculation.hand(memory or grad, first, hooked.assumption, is_shared)
    old.update((memory or grad, own))
    value = interp.from_payload(first)
    try:
        with builder.state.grad_mode(create_graph):
            for _, hook in sorted(hooked.hooks.vals.items(), key=lambda item: item[0] == RETAINS):
                value = _result(interp.call_sync(hook, [value]), value)
                if builder.node(first) is not own:
                    raise Uncapturable("autograd", "a hook that changes its gradient in place")
    except TracedException:
        raise Uncapturable("autograd", "a hook that raises") from None
    if value.traced is first:
        return own
    made = _as_gradient(interp, value.traced, grad, create_graph)
    memory = memory_of(builder, made)
    if memory is not None:
        builder.speculation.hand(memory, value.traced, hooked.assumption, memory in old)
        old.add(memory)
    return made


def _result(result: Value, value: TensorValue) -> TensorValue:
    """The gradient behind a hook that was given `value`."""
    if result.literal is None:
        return value
    if result.tensor is not None:
        return result
    raise Uncapturable("autograd", f"a hook that returns a {result.cls.__name__}")


def _as_gradient(interp: Interpreter, made: TracedTensor, grad: Node, create_graph: bool) -> Node:
    builder = interp.builder
    have, want = made.spec, grad.tensor
    if (have.shape, have.dtype, have.device) != (want.shape, want.dtype, want.device):
        raise Uncapturable("autograd", "a hook that returns another kind of tensor than it was given")
    if create_graph:
        return builder.node(made)
    node = builder.node(made, detached=True)
    return builder.emit(torch.ops.aten.detach.default, (node,)) if have.requires_grad else node
