"""`torch._higher_order_ops.scan` and `map`: the function is traced once for each step.

So gradients and kernels see ordinary operations. Torch wants a function that has no side effects and returns new
tensors: one that does not, many steps, and results of other kinds break the graph, and torch says what is wrong.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

import torch
from torch._higher_order_ops.utils import _maybe_compile_and_run_fn

from ...capture.traced import TracedTensor
from ...interpreter.callees import builtin
from ...values import Interpreter, ListValue, TupleValue, Value, const
from ...values.tree import tree_iter, tree_pack
from .higher_order import _bind, _items, _refusal, as_whole, state_of, structure_of

_scan, _map = (importlib.import_module(f"torch._higher_order_ops.{name}") for name in ("scan", "map"))

#: Longer ones break the graph: what is compiled grows with the steps.
STEP_LIMIT = 64


def _codes_in(function: Any) -> set[types.CodeType]:
    return {constant for constant in function.__code__.co_consts if isinstance(constant, types.CodeType)}


_RUNS = _codes_in(_scan.scan) | _codes_in(_map.map)


@builtin(_maybe_compile_and_run_fn)
def compile_and_run(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """Torch compiles such a function as a whole: here it is called. Where that breaks the graph, torch gets all of it:
    its operators do not check by themselves what they are given."""
    if args[0].code not in _RUNS:
        raise _refusal("torch compiles it as a whole")
    with as_whole(interp, _refusal):
        return interp.call_sync(args[0], args[1:], kwargs)


@builtin(_scan.scan_op)
def scan(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _bind(("combine_fn", "init", "xs", "additional_inputs"), args, kwargs)
    carry = _items(interp, given["init"])
    specs = [_kind(value) for value in carry]
    steps: list[Value] = []
    last: Value = const(None)
    for slices in _slices(interp, given["xs"]):
        parts = _items(interp, _step(interp, given["combine_fn"], [*carry, *slices]))
        if len(parts) != 2:
            raise _refusal("a step of a scan that returns no pair")
        last, carry = parts[0], list(tree_iter(interp, parts[0]))
        if [_kind(value) for value in carry] != specs:
            raise _refusal("a step of a scan that returns another carry than it takes")
        steps.append(parts[1])
    return TupleValue([last, _stacked(interp, steps)])


@builtin(_map.map_impl)
def over_rows(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _bind(("f", "xs", "pos_args"), args, kwargs)
    others = _items(interp, given["pos_args"])
    return _stacked(interp, [_step(interp, given["f"], [*slices, *others]) for slices in _slices(interp, given["xs"])])


def _kind(value: Value) -> Any:
    if value.tensor is None:
        raise _refusal("a step that carries what is no tensor")
    spec = value.traced.spec
    return spec.shape, spec.dtype, spec.device


def _slices(interp: Interpreter, xs: Value) -> list[list[Value]]:
    """For each step the parts of all tensors."""
    tensors = _items(interp, xs)
    if not tensors or not all(value.tensor is not None for value in tensors):
        raise _refusal("steps over what is no tensor")
    count = tensors[0].traced.spec.shape[0]  # type: ignore[attr-defined]
    if type(count) is not int or count > STEP_LIMIT:
        raise _refusal(f"more than {STEP_LIMIT} steps, or a number of them that changes")
    return [[interp.record(torch.Tensor.select, [value, const(0), const(k)], {}) for value in tensors]
            for k in range(count)]


def _step(interp: Interpreter, fn: Value, args: list[Value]) -> Value:
    """The result of one call, which has no side effect, and new tensors."""
    known = {value.traced.storage: value.traced.storage.generation for value in interp.context.tensors.values()}
    before = state_of(interp)
    result = interp.call_sync(fn, args, {})
    if state_of(interp) != before or any(storage.generation != count for storage, count in known.items()):
        raise _refusal("a function with a side effect")
    made: list[TracedTensor] = []
    structure_of(interp, result, made)
    storages = {tensor.storage for tensor in made}
    if len(storages) != len(made) or not storages.isdisjoint(known) or any(s.input is not None for s in storages):
        raise _refusal("a result that shares memory with another tensor")
    return result


def _stacked(interp: Interpreter, steps: list[Value]) -> Value:
    """The results of all steps as one, in their structure."""
    columns: list[list[TracedTensor]] = []
    structures = []
    for step in steps:
        columns.append([])
        structures.append(structure_of(interp, step, columns[-1]))
    if any(structure != structures[0] for structure in structures):
        raise _refusal("steps that return different things")
    with interp.recording("torch.stack"):
        made = [interp.record(torch.stack, [ListValue([interp.context.tensor_value(t) for t in column])], {})
                for column in zip(*columns, strict=True)]
    return tree_pack(interp, made.__getitem__, structures[0])
