"""`loss.backward()` and `torch.autograd.grad` while tracing: the recorded graph is differentiated where it stands.

The work of eager's engine becomes nodes of the same graph (`jitpy.autograd.reverse`), and gradients land in `.grad`
as `AccumulateGrad` leaves them: a new tensor in the parameter's layout, or an addition in place to the one that is
there. A backward pass that reaches what was computed before the frame, or that others watch by hooks, runs as plain
Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitpy.ir import GETITEM, INPUT, Node, NotCovered, SizeUnknown, TensorSpec
from jitpy.ir.alias import alias_kind, needs_grad
from jitpy.ir.graph import REENTRANT
from jitpy.ir.spec import contiguous_stride

from ....runtime.autograd_node import accumulation_has_hooks
from ...breaks import GraphBreak
from ...capture.inputs import is_leaf
from ...capture.layouts import copy_into, dense_order, same_layout
from ...capture.traced import GraphBuilder, GraphInput, TracedTensor, Uncapturable
from ...interpreter.callees import builtin
from ...interpreter.calls import recording_whole
from ...polyfills.autograd import batched_gradients
from ...values import TensorValue, TupleValue, Value, const
from ..builtins.iteration import iterate
from .torch_objects import assign_grad, load_grad

if TYPE_CHECKING:
    from ...values import Interpreter

_aten = torch.ops.aten


# -- the calls ------------------------------------------------------------------------------------------------------


def _models(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Register the model of a Python function of torch's; it is given the bound arguments, defaults included."""
    signature = inspect.signature(function)

    def register(model: Callable[..., Any]) -> Any:
        def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise GraphBreak("exception", str(error)) from None
            given = {name: bound.arguments.get(name, _NOT_GIVEN) for name in signature.parameters}
            defaults = {name: const(p.default) for name, p in signature.parameters.items()
                        if given[name] is _NOT_GIVEN and p.default is not p.empty}
            return model(interp, **{**given, **defaults})

        builtin(function)(handler)
        return model

    return register


_NOT_GIVEN = object()


@_models(torch.Tensor.backward)
def _method(interp: Interpreter, self: Value, gradient: Value, retain_graph: Value, create_graph: Value,
            inputs: Value) -> Value:
    return _backward(interp, self, gradient, retain_graph, create_graph, const(None), inputs)


@_models(torch.autograd.backward)
def _backward(interp: Interpreter, tensors: Value, grad_tensors: Value, retain_graph: Value, create_graph: Value,
              grad_variables: Value, inputs: Value) -> Value:
    """Gradients of all leaves that the outputs depend on, into `.grad`."""
    outputs, cotangents = _checked(interp, tensors, grad_tensors)
    create = _flag(create_graph)
    retain = _flag(retain_graph, create)
    if grad_variables.literal is not None:
        raise GraphBreak("unsupported_call", "backward(grad_variables=...)")
    only = None if inputs.literal is None else _tensors(interp, inputs)
    with recording_whole(interp, "backward"), _grad_mode_on(interp, create):
        _run_backward(interp, outputs, cotangents, retain, create, only)
    return const(None)


@_models(torch.autograd.grad)
def _grad(interp: Interpreter, outputs: Value, inputs: Value, grad_outputs: Value, retain_graph: Value,
          create_graph: Value,
          only_inputs: Value, allow_unused: Value, is_grads_batched: Value, materialize_grads: Value) -> Value:
    """The gradients of the outputs with respect to given tensors, as a tuple."""
    if not _flag(only_inputs):
        raise GraphBreak("unsupported_call", "torch.autograd.grad of all inputs")
    if _flag(is_grads_batched):
        return _batched_grad(interp, outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused,
                             materialize_grads)
    made, cotangents = _checked(interp, outputs, grad_outputs)
    create = _flag(create_graph)
    retain = _flag(retain_graph, create)
    wanted = _tensors(interp, inputs)
    zeros = _flag(materialize_grads)
    unused_allowed = _flag(allow_unused, zeros)
    if zeros and not unused_allowed:
        raise GraphBreak("exception", "allow_unused=False with materialize_grads=True")
    with recording_whole(interp, "torch.autograd.grad"):
        with _grad_mode_on(interp, create):
            found = _run_grad(interp.builder, made, cotangents, [v.traced for v in wanted], retain, create,
                              unused_allowed,
                              zeros)
    return TupleValue([interp.from_payload(payload) for payload in found])


def _batched_grad(interp: Interpreter, outputs: Value, inputs: Value, grads: Value, retain_graph: Value,
                  create_graph: Value,
                  allow_unused: Value, materialize_grads: Value) -> Value:
    """A pass for each row of the gradients: one under vmap."""
    from jitpy.autograd.reverse import active_nodes

    if grads.literal is None or _is_watched() or _flag(materialize_grads):
        raise GraphBreak("autograd", "a batch of gradients that is left out, or that others watch, or with zeros in it")
    made, wanted = _tensors(interp, outputs), _tensors(interp, inputs)
    builder = interp.builder
    to, at = [builder.node(value.traced) for value in wanted], [builder.node(value.traced) for value in made]
    active = active_nodes(builder.graph.nodes, to, at)
    reached = [node in active for node in to]
    if not any(reached) or not all(reached) and not _flag(allow_unused, False):
        raise GraphBreak("autograd", "a batch of gradients to what nothing depends on")
    retain = _flag(retain_graph, _flag(create_graph))
    body = interp.context.const_object(batched_gradients)
    used: list[Value] = [value for value, is_used in zip(wanted, reached, strict=True) if is_used]
    result = interp.call_sync(body, [TupleValue(made), TupleValue(used), TupleValue(_tensors(interp, grads)),
                                     create_graph])
    if not retain:
        builder.history.free(active_nodes(builder.graph.nodes, to, at))
    found = iter(result.items)
    return TupleValue([next(found) if is_used else const(None) for is_used in reached])


def _checked(interp: Interpreter, outputs: Value, grads: Value) -> tuple[list[TracedTensor], list[TracedTensor | None]]:
    """Output payloads, and their gradients or None."""
    if _is_watched():
        raise GraphBreak("autograd", "anomaly mode, or hooks on saved tensors")
    made = [v.traced for v in _tensors(interp, outputs)]
    given: list[TracedTensor | None] = [None] * len(made)
    if grads.literal is not None:
        items = [grads] if grads.tensor is not None else _items(interp, grads)
        if len(items) != len(made):
            raise GraphBreak("exception", "as many gradients as outputs")
        given = [None if v.literal is None else _tensor(v).traced for v in items]
    return made, given


def _is_watched() -> bool:
    """Whether a mode is on in which others see what the backward pass does."""
    return torch.is_anomaly_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _grad_mode_on(interp: Interpreter, create_graph: bool) -> Any:
    """Where its results get a history, a backward pass runs with grad mode on, whatever mode it is called in."""
    state = interp.builder.state
    return state.grad_mode(create_graph or state.grad_enabled)


def _flag(value: Value, default: bool | None = None) -> bool:
    """A flag's value; where there is a default, None stands for that."""
    if default is not None and value.literal is None:
        return default
    if not isinstance(value.literal, bool):
        raise GraphBreak("autograd", "a flag of the backward pass that is not known while tracing")
    return value.value


def _tensors(interp: Interpreter, value: Value) -> list[TensorValue]:
    """One tensor, or a sequence of them."""
    found = [value] if value.tensor is not None else [_tensor(v) for v in _items(interp, value)]
    if not found:
        raise GraphBreak("exception", "a backward pass of or to no tensors")
    return found


def _items(interp: Interpreter, value: Value) -> list[Value]:
    return [interp.context.force(v) for v in iterate(interp, value)]


def _tensor(value: Value) -> TensorValue:
    if value.tensor is None:
        raise GraphBreak("autograd", f"a {value.cls.__name__} where a tensor is due")
    return value


# -- backward() -----------------------------------------------------------------------------------------------------


def _run_backward(interp: Interpreter, outputs: list[TracedTensor], cotangents: list[TracedTensor | None], retain: bool,
                  create_graph: bool, only: list[TensorValue] | None) -> None:
    builder = interp.builder
    reached = _reached_inputs(builder, _output_nodes(builder, outputs))
    if only is not None:
        asked = {builder.parameters.root(value.traced) for value in only}
        if any(node.op is not INPUT and node not in builder.speculation.leaves for node in asked):
            raise Uncapturable("autograd", "backward(inputs=...) of a tensor that is no leaf")
        _check_histories(builder, _output_nodes(builder, outputs), list(asked))
        _check_roots(builder, [value.traced for value in only], reached)
        reached = [node for node in reached if node in asked]
    leaves = [leaf_of(interp, node) for node in reached]
    if len(set(map(id, leaves))) < len(leaves):
        raise Uncapturable("autograd", _BOTH)
    before = [_present_grad(interp, leaf, create_graph) for leaf in leaves]
    taken = set(builder.graph.all_nodes())
    grads = gradients(builder, outputs, cotangents, reached, retain, create_graph, taken)
    made: list[Value | None] = []
    for leaf, grad, present in zip(leaves, grads, before, strict=True):
        if grad is None:
            made.append(None)
        elif present is not None and create_graph:
            total = builder.record(_aten.add.Tensor, (present, builder.fresh(grad)), {})
            made.append(interp.from_payload(total))
        elif present is not None:
            builder.record(_aten.add_.Tensor, (present, builder.fresh(grad)), {})
            made.append(None)
        else:
            made.append(interp.from_payload(builder.fresh(_own_memory(builder, grad, leaf.traced.spec, taken))))
    for leaf, value in zip(leaves, made, strict=True):
        if value is not None:
            assign_grad(interp, leaf, value)


def _reached_inputs(builder: GraphBuilder, outputs: Sequence[Node]) -> list[Node]:
    """The inputs through which a backward pass from `outputs` leaves the graph, and leaves that it ends at."""
    from jitpy.autograd.reverse import active_nodes

    inputs = [*(node for node in builder.graph.inputs if needs_grad(node.spec)), *builder.speculation.leaves]
    active = active_nodes(builder.graph.nodes, inputs, outputs)
    return [node for node in inputs if node in active]


def leaf_of(interp: Interpreter, node: Node) -> TensorValue:
    """The program's tensor that a node stands for, if its gradient can be left in `.grad`."""
    builder = interp.builder
    begun = builder.speculation.leaves.get(node)
    if begun is not None:
        if begun.input is None:
            return interp.from_payload(begun.tensor)
        node = builder.graph.inputs[begun.input]
    entry = builder.inputs[builder.graph.inputs.index(node)]
    value = interp.context.value_of(entry.value)
    if entry.payload in builder.speculation.off:
        raise Uncapturable("autograd", f"{entry.source} was told not to require grad after it was used")
    if not entry.payload.is_leaf:
        raise Uncapturable("autograd", f"{entry.source} was computed before: its history is outside the graph")
    if value is None or value.tensor is None or value.source is None:
        raise Uncapturable("autograd", f"{entry.source} is a tensor of a special kind")
    _guard_hooks(builder, entry)
    return value


def _guard_hooks(builder: GraphBuilder, entry: GraphInput) -> None:
    """Nobody sees a gradient arrive at this input, nor what the backward pass does: now, and in later calls. A leaf is
    one in later calls."""
    if not runs_no_hooks(entry.value):
        raise Uncapturable("autograd", f"{entry.source} has hooks")
    builder.guards.add(entry.source, "python", is_leaf_without_hooks if entry.payload.is_leaf else runs_no_hooks)
    first = next(other for other in builder.inputs if isinstance(other.value, torch.Tensor))
    builder.guards.add(first.source, "python", _is_unwatched)  # about the thread: asked once a call


def runs_no_hooks(tensor: Any) -> bool:
    """Guard: nothing else happens when a gradient arrives at a tensor."""
    return not (tensor._backward_hooks or tensor._post_accumulate_grad_hooks or accumulation_has_hooks(tensor))


def is_leaf_without_hooks(tensor: Any) -> bool:
    """Guard: gradients are added up in the tensor, and nothing else happens."""
    return is_leaf(tensor) and runs_no_hooks(tensor)


def _is_unwatched(tensor: Any) -> bool:
    """Guard: no mode is on in which others see what a backward pass does."""
    return not _is_watched()


def _present_grad(interp: Interpreter, leaf: TensorValue, create_graph: bool) -> TracedTensor | None:
    """The tensor in `.grad`, to which a gradient is added: in place, or, where that gets a history, as a new tensor."""
    found = load_grad(interp, leaf)
    if found.literal is None:
        return None
    if found.tensor is None:
        raise Uncapturable("autograd", "a .grad of a special kind")
    want, have = leaf.traced.spec, found.traced.spec
    # sizes that are symbolic on one side (all of a gradient's are with dynamic=True, none of a parameter's) are guarded
    same_kind = (len(have.shape), have.dtype, have.device) == (len(want.shape), want.dtype, want.device) and all(
        interp.builder.sizes.equal(a, b, "sizes of .grad") for a, b in zip(have.shape, want.shape, strict=True))
    if not same_kind or have.requires_grad and not create_graph:
        raise Uncapturable("autograd", "a .grad with a history, or of another kind than its tensor")
    return found.traced


def _own_memory(builder: GraphBuilder, grad: Node, spec: TensorSpec, taken: set[Node]) -> Node:
    """A gradient in memory that is nobody else's (that of no node in `taken`), laid out as the tensor it belongs to."""
    layout = spec.with_(requires_grad=False, offset=0)
    if dense_order(builder.sizes, spec) is None:
        layout = layout.with_(stride=contiguous_stride(spec.shape))
    if grad in taken or memory_of(builder, grad) is not grad or not same_layout(grad.tensor, layout):
        grad = copy_into(builder, grad, layout, builder.fresh(grad))
    taken.add(grad)
    return grad


def memory_of(builder: GraphBuilder, node: Node) -> Node | None:
    """The node in whose memory a value is: itself, or what it is a view of. None where that is not known."""
    kind = alias_kind(builder.graph, node)
    while kind == "view" and node.op is not GETITEM:
        node = node.input_nodes()[0]
        kind = alias_kind(builder.graph, node)
    return node if kind == "copy" else None


# -- autograd.grad() ------------------------------------------------------------------------------------------------


def _run_grad(builder: GraphBuilder, outputs: list[TracedTensor], cotangents: list[TracedTensor | None],
              inputs: list[TracedTensor], retain: bool, create_graph: bool, unused_allowed: bool,
              zeros: bool) -> list[TracedTensor | None]:
    for tensor in inputs:
        if tensor.hides_history:
            raise Uncapturable("autograd", "a pass to a view that was made under no_grad")
        if not tensor.spec.requires_grad:
            raise Uncapturable("exception", "the gradient of a tensor that does not require grad")
    for entry in builder.inputs:
        if isinstance(entry.value, torch.Tensor) and entry.value.requires_grad and not entry.payload.storage.unrecorded:
            _guard_hooks(builder, entry)
    wrt = [builder.parameters.root(tensor) for tensor in inputs]
    _check_histories(builder, _output_nodes(builder, outputs), wrt)
    _check_roots(builder, inputs, _reached_inputs(builder, _output_nodes(builder, outputs)))
    if any(node in builder.speculation.hooked for node in wrt):
        raise Uncapturable("autograd", "the gradient of a tensor with hooks: it is what they get, or what they return")
    taken = set(builder.graph.all_nodes())
    found: list[TracedTensor | None] = []
    grads = gradients(builder, outputs, cotangents, wrt, retain, create_graph, taken)
    for tensor, grad in zip(inputs, grads, strict=True):
        if grad is not None:
            memory = memory_of(builder, grad)
            if memory is None or memory in taken:
                if builder.state.transforms:
                    raise Uncapturable("autograd", "a gradient in a transform that shares memory with another tensor")
                builder.speculation.share(memory or grad)
                shown = [t for t in (*cotangents, *found) if t is not None and memory in t.storage.values]
                memory = grad = builder.emit(_aten.clone.default, (grad,))
                copy = builder.fresh(grad)
                builder.speculation.copied(copy, shown)
                found.append(copy)
            else:
                found.append(builder.fresh(grad))
            taken.add(memory)
        elif zeros:
            if create_graph:
                raise Uncapturable("autograd", "zeros for a gradient that is not there: a new leaf")
            found.append(builder.fresh(builder.emit(_aten.zeros_like.default, (builder.node(tensor),))))
        elif unused_allowed:
            found.append(None)
        else:
            raise Uncapturable("exception", "the gradient of a tensor that nothing depends on")
    return found


def _check_histories(builder: GraphBuilder, outputs: Sequence[Node], wrt: Sequence[Node]) -> None:
    """Uncapturable where the way to one of `wrt` may lead through what was computed before the frame, or through a
    reentrant checkpoint: eager refuses that."""
    from jitpy.autograd.reverse import active_nodes

    if any(REENTRANT in node.meta for node in active_nodes(builder.graph.nodes, wrt, outputs)):
        raise Uncapturable("autograd", "a pass to some tensors through a reentrant checkpoint")
    wanted = {node for node in wrt if node.op is INPUT or node in builder.speculation.leaves}
    for node in _reached_inputs(builder, outputs):
        if node in builder.speculation.leaves:
            continue
        entry = builder.inputs[builder.graph.inputs.index(node)]
        if not entry.payload.is_leaf and wanted - {node}:
            raise Uncapturable("autograd", f"{entry.source} was computed before: its history is outside the graph")


def _check_roots(builder: GraphBuilder, wrt: Sequence[TracedTensor], reached: Sequence[Node]) -> None:
    """Uncapturable where a pass reaches a former value of a leaf, too: eager knows but one leaf."""
    for tensor in wrt:
        former = builder.speculation.nodes_of(tensor) - {builder.parameters.root(tensor)}
        if not former.isdisjoint(reached):
            raise Uncapturable("autograd", _BOTH)


_BOTH = "a pass to a leaf that was changed under no_grad after it was read"


# -- gradients ------------------------------------------------------------------------------------------------------


def gradients(builder: GraphBuilder, outputs: Sequence[TracedTensor], cotangents: Sequence[TracedTensor | None],
              wrt: Sequence[Node], retain: bool, create_graph: bool, taken: set[Node]) -> list[Node | None]:
    """Record the backward pass from `outputs` to `wrt`. Memory that it hands to hooks is added to `taken`. Raises
    Uncapturable where eager raises, and for what there are no rules for."""
    from jitpy.autograd.reverse import GradientHooks, active_nodes, vjp

    nodes = _output_nodes(builder, outputs)
    given = [_cotangent(builder, output, grad, create_graph)
             for output, grad in zip(outputs, cotangents, strict=True)]
    graph = builder.graph
    active = active_nodes(graph.nodes, wrt, nodes)
    if builder.history.is_spent(active):
        raise Uncapturable("exception", "a second pass through what one has freed")
    speculation = builder.speculation
    if speculation.in_pass:
        raise Uncapturable("autograd", "a backward pass in a hook of another")
    speculation.check_pass(active)
    _remember(builder)
    if create_graph:
        speculation.differentiated.update(node for node in wrt if node in speculation.leaves)
    hooked = {node: hooks for node, hooks in speculation.hooked.items() if node in active and hooks.hooks.vals}
    hooks = None
    if hooked:
        hooks = GradientHooks(
            [node for node, one in hooked.items() if not one.is_leaf], [n for n, one in hooked.items() if one.is_leaf],
            lambda node, grad: hooked[node].run(grad, create_graph, taken))
    speculation.in_pass = True
    try:
        found = vjp(graph, nodes, given, wrt, create_graph=create_graph, in_parts=False, hooks=hooks)
    except (NotCovered, SizeUnknown) as error:
        raise Uncapturable("autograd", str(error)) from None
    finally:
        speculation.in_pass = False
    if hooked:
        speculation.check_pass(active)  # a hook may write to what is kept
    if not retain:
        builder.history.free(active_nodes(graph.nodes, wrt, nodes))  # by now in the ops that have rules
    return found


def _output_nodes(builder: GraphBuilder, outputs: Iterable[TracedTensor]) -> list[Node]:
    for output in outputs:
        if not output.spec.requires_grad:
            raise Uncapturable("exception", "a pass from a tensor that does not require grad")
    return [builder.node(output) for output in outputs]


def _cotangent(builder: GraphBuilder, output: TracedTensor, grad: TracedTensor | None, create_graph: bool) -> Node:
    spec = output.spec
    if grad is None:
        if not builder.sizes.equal(spec.numel, 1, "a gradient that is left out"):
            raise Uncapturable("exception", "a gradient is left out, of more than one number")
        return builder.emit(_aten.ones_like.default, (builder.node(output),), {},
                             spec.with_(requires_grad=False, offset=0))
    have = grad.spec
    if (have.shape, have.dtype, have.device) != (spec.shape, spec.dtype, spec.device):
        raise Uncapturable("autograd", "a gradient of another shape or dtype than its output")
    if create_graph:
        return builder.node(grad)
    node = builder.node(grad, detached=True)
    if have.requires_grad:
        node = builder.emit(_aten.detach.default, (node,))
    return node


def _remember(builder: GraphBuilder) -> None:
    """Have a rollback undo what `vjp` does to nodes that are there already."""
    graph = builder.graph
    nodes = list(graph.nodes)
    states = [(node.op, node.args, node.kwargs, node.spec) for node in nodes]

    def restore() -> None:
        graph.nodes[:] = nodes
        for node, state in zip(nodes, states, strict=True):
            node.op, node.args, node.kwargs, node.spec = state

    builder.journal.append(restore)


__all__ = ["gradients"]
