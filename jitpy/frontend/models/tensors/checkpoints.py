"""`torch.utils.checkpoint.checkpoint`: the call is inlined, and its nodes are marked.

Nothing that a region computes is kept for the backward pass, which computes it again (`autograd/partition.py`), with
the same random numbers. Eager runs the Python code again as well: a region with a side effect runs as plain Python.

With `use_reentrant=True` eager runs the function without gradients first, and at its turn runs it again with them and
goes backward from there. That comes to the same where the function does not ask in which of the two it is, and where
all that it reads is its arguments and leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import torch
import torch.utils.checkpoint as torch_checkpoint

from jitpy.ir import INPUT, Node
from jitpy.ir.alias import needs_grad
from jitpy.ir.graph import REENTRANT, REGION

from ...breaks import GraphBreak
from ...capture.traced import Storage
from ...interpreter.callees import code_model
from ...interpreter.frame import Frame
from ...values import FunctionValue, Interpreter, Value, const
from ..builtins.warned import warn_at
from .higher_order import as_whole, state_of

_CHECKPOINT = inspect.unwrap(torch_checkpoint.checkpoint)
_OPTIONS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")


@code_model(_CHECKPOINT)
def _checkpoint(interp: Interpreter, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Any:
    if interp.builder.state.transforms:
        raise _refusal("a function that is transformed: torch.func refuses hooks on what is kept")
    options = {name: kwargs[name] for name in _OPTIONS if name in kwargs}
    keywords = {name: value for name, value in kwargs.items() if name not in options}
    preserve = _flag(options, "preserve_rng_state", True)
    reentrant = _flag(options, "use_reentrant", None)
    if reentrant not in (True, False):
        raise _refusal("use_reentrant is not given: eager warns")
    context = options.get("context_fn")
    if context is not None and context.real_object(interp) is not torch_checkpoint.noop_context_fn:
        raise _refusal("context_fn")
    if _flag(options, "debug", False) or not args:
        raise _refusal("debug=True, or no function")
    own = [value.tensor for value in args[1:] if value.tensor is not None]
    if reentrant and keywords:
        raise _refusal("use_reentrant=True with keyword arguments")
    if reentrant and not any(tensor.spec.requires_grad for tensor in own):
        return _without_gradients(interp, args)
    builder, context = interp.builder, interp.context
    start = len(builder.graph.nodes)
    storages = {value.traced.storage: value.traced.storage.generation for value in context.tensors.values()}
    before, questions = state_of(interp), builder.state.grad_questions
    given = {builder.node(tensor, detached=True) for tensor in own} if reentrant else set()
    with as_whole(interp, _refusal):
        result = interp.call_sync(args[0], args[1:], keywords)
    if reentrant:
        if builder.state.grad_questions != questions:
            raise _refusal("use_reentrant=True, and the function asks about gradients: eager gives it two answers")
        _check_results(interp, result, storages, builder.state.grad_enabled)
    recorded = builder.graph.nodes[start:]
    if not any(needs_grad(node.spec) for node in recorded):
        return result
    if state_of(interp) != before:
        raise _refusal("a function with a side effect, which eager repeats")
    for value in list(context.tensors.values()):
        storage = value.traced.storage
        if storage.generation != storages.get(storage, storage.generation if storage.input is None else 0):
            raise _refusal("a function that writes to a tensor from outside, which eager repeats")
    if not preserve and any(node.op.is_random for node in recorded):
        raise _refusal("other random numbers in the backward pass (preserve_rng_state=False)")
    if reentrant:
        _check_sources(interp, recorded, given)
    mark(recorded, bool(reentrant))
    return result


def _without_gradients(interp: Interpreter, args: list[Value]) -> Value:
    """A reentrant region none of whose arguments requires grad: eager warns, runs it once, and gives it no history."""
    forward = torch_checkpoint.CheckpointFunction.forward.__code__
    place = Frame(None, forward, interp.context.globals_of(vars(torch_checkpoint)))
    place.ip = 1 + next(k for k, one in enumerate(place.instructions) if "check_backward_validity" in str(one.arg))
    warn_at(interp, const("None of the inputs have requires_grad=True. Gradients will be None"), UserWarning, place)
    storages = {value.traced.storage for value in interp.context.tensors.values()}
    with as_whole(interp, _refusal), interp.builder.state.grad_mode(False):
        result = interp.call_sync(args[0], args[1:], {})
    _check_results(interp, result, storages, False)
    return result


def mark(nodes: list[Node], reentrant: bool = False) -> None:
    """Make nodes one region; regions inside it become part of it."""
    region = object()
    for node in nodes:
        node.meta[REGION] = region
        if reentrant:
            node.meta[REENTRANT] = True


def _check_sources(interp: Interpreter, recorded: list[Node], given: Collection[Node]) -> None:
    """A reentrant region reads what has a history from its arguments alone."""
    known = {*recorded, *given}
    leaves = {node for node, entry in zip(interp.builder.graph.inputs, interp.builder.inputs, strict=True)
              if isinstance(entry.value, torch.nn.Parameter)}
    for source in (source for node in recorded for source in node.input_nodes()):
        if needs_grad(source.spec) and source not in known and not (source.op is INPUT and source in leaves):
            raise _refusal("use_reentrant=True, and the function reads a value with a history besides its arguments")


def _check_results(interp: Interpreter, result: Value, before: Collection[Storage], grad_enabled: bool) -> None:
    """A reentrant region returns tensors of its own, and those depend on its arguments."""
    items = result.listed(interp) if result.cls is tuple else None
    values = [result] if items is None else items
    tensors = [value.tensor for value in values if value.tensor is not None]
    if len(tensors) != sum(not value.is_constant for value in values):
        raise _refusal("use_reentrant=True with results of special kinds")
    made = {tensor.storage for tensor in tensors}
    if len(made) < len(tensors) or any(storage in before or storage.input is not None for storage in made):
        raise _refusal("use_reentrant=True with results that share memory")
    if grad_enabled and not all(t.spec.requires_grad for t in tensors if t.dtype.is_floating_point):
        raise _refusal("use_reentrant=True with a result that does not depend on the arguments")


def _flag(options: dict[str, Value], name: str, default: Any) -> Any:
    value = options.get(name)
    if value is None:
        return default
    if not value.is_constant:
        raise _refusal(f"{name} is not known while tracing")
    return value.literal


def _refusal(detail: str) -> GraphBreak:
    return GraphBreak("autograd", f"torch.utils.checkpoint: {detail}")
