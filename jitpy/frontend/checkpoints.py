"""`torch.utils.checkpoint.checkpoint`: the call is inlined, and its nodes are marked.

Nothing that a region computes is kept for the backward pass, which computes it again (`autograd/partition.py`), with
the same random numbers. Eager runs the Python code again as well: a region with a side effect runs as plain Python.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch.utils.checkpoint as torch_checkpoint

from jitpy.ir import Node
from jitpy.ir.alias import needs_grad
from jitpy.ir.graph import REGION

from .breaks import GraphBreak
from .calls import WRAPPED
from .executor import Executor
from .higher_order import state_of
from .values.base import ConstValue, FunctionValue, PyValue, Value

_CHECKPOINT = inspect.unwrap(torch_checkpoint.checkpoint)
_OPTIONS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")


def _checkpoint(ex: Executor, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Any:
    options = {name: kwargs[name] for name in _OPTIONS if name in kwargs}
    keywords = {name: value for name, value in kwargs.items() if name not in options}
    preserve = _flag(options, "preserve_rng_state", True)
    if _flag(options, "use_reentrant", None) is not False:
        raise _refusal("use_reentrant=True: it runs an inner backward pass")
    context = options.get("context_fn")
    if context is not None and (not isinstance(context, (PyValue, FunctionValue))
                                or _real(context) is not torch_checkpoint.noop_context_fn):
        raise _refusal("context_fn")
    if _flag(options, "debug", False) or not args:
        raise _refusal("debug=True, or no function")
    recorder, world = ex.recorder, ex.world
    start = len(recorder.graph.nodes)
    storages = {value.traced.storage: value.traced.storage.generation for value in world.tensors.values()}
    before = state_of(ex)
    outer, depth, ex.ordinary_depth = ex.ordinary_depth, len(ex.frames), ex.sync_depth + 1
    try:
        result = ex.call_sync(args[0], args[1:], keywords)
    except GraphBreak as error:
        del ex.frames[depth:]
        raise _refusal(str(error)) from None
    finally:
        ex.ordinary_depth = outer
    recorded = recorder.graph.nodes[start:]
    if not any(needs_grad(node.spec) for node in recorded):
        return result
    if state_of(ex) != before:
        raise _refusal("a function with a side effect, which eager repeats")
    for value in list(world.tensors.values()):
        storage = value.traced.storage
        if storage.generation != storages.get(storage, storage.generation if storage.input is None else 0):
            raise _refusal("a function that writes to a tensor from outside, which eager repeats")
    if not preserve and any(node.op.is_random for node in recorded):
        raise _refusal("other random numbers in the backward pass (preserve_rng_state=False)")
    mark(recorded)
    return result


def mark(nodes: list[Node]) -> None:
    """Make nodes one region; regions inside it become part of it."""
    region = object()
    for node in nodes:
        node.meta[REGION] = region


def _flag(options: dict[str, Value], name: str, default: Any) -> Any:
    value = options.get(name)
    if value is None:
        return default
    if not isinstance(value, ConstValue):
        raise _refusal(f"{name} is not known while tracing")
    return value.value


def _real(value: Any) -> Any:
    return value.real if isinstance(value, FunctionValue) else value.obj


def _refusal(detail: str) -> GraphBreak:
    return GraphBreak("autograd", f"torch.utils.checkpoint: {detail}")


WRAPPED[id(_CHECKPOINT.__code__)] = _checkpoint
