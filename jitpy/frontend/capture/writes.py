"""Writes: operations that change the memory of their arguments, recorded as functional operations.

A write replaces the storage's value. Aliases see it when they are read again; writes to inputs end up in
`Graph.mutations`. Writes that autograd would refuse are refused here, in eager's words.
"""

from __future__ import annotations

from typing import Any

import torch

from jitpy.ir import GETITEM, Node, Spec, TensorSpec
from jitpy.ir import ops as table
from jitpy.ir.ops.functional import COPYING
from jitpy.ir.ops.random_order import filling_order, fills_alike, fills_by_index
from jitpy.ir.ops.schemas import SchemaFacts
from jitpy.runtime.autograd_node import write_test

from . import aliasing, layouts, overlap, views
from . import graph_effects as effects
from .autograd_facts import WRITES_STATISTICS, keepers, keeps_result, requires_grad, saved_values, shows
from .final_graph import no_view
from .inputs import check_write_under_grad, related_views, sharing_arrays
from .number_checks import check_converted, check_written
from .traced import GraphBuilder, Storage, TracedTensor, Uncapturable, tensors_in
from .views import NOT_OUTSIDE

_aten = torch.ops.aten

_LEAF_WRITTEN = "an in-place operation on a leaf that requires grad"


def record_write(
    builder: GraphBuilder, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec | None
) -> Any:
    functional = facts.functional_for(args, kwargs)
    if functional is None:
        raise Uncapturable("unsupported_op", f"{facts.overload} writes to its arguments and has no functional form")
    if facts.inplace_view:
        return views.record_inplace_view(builder, facts, args, kwargs)
    is_programs = functional.namespace == COPYING
    if not functional._schema.returns:  # nothing to write to was given
        return effects.record_effect(builder, functional, args, kwargs)
    if is_programs:
        effects.check_write(builder, facts, args, kwargs)
    overlap.check_operands(builder, facts, args, kwargs)
    if builder.state.grad_enabled and not facts.outs:
        check_late(builder, facts, args, kwargs)
    if not facts.outs and not is_programs:
        check_written(facts.overload, builder.seen_as_nodes(args), builder.seen_as_nodes(kwargs))
    if facts.overload is _aten.normal_.default and not fills_alike(builder.sizes, args[0].spec):
        raise Uncapturable("unsupported_op", "normal_() of memory with gaps, which draws its own numbers")
    if facts.overload is _aten.copy_.default:
        target, source = args[:2]
        if not isinstance(source, TracedTensor):  # a number
            source = builder.record(_aten.full.default, ([], source), {"dtype": target.dtype,
                                                                    "device": target.spec.device})
        write(builder, target, layouts.copy_into(builder, builder.node(source), target.spec, target), replaces=True)
        return target
    outs = facts.outs
    call_args, call_kwargs = facts.functional_call(args, kwargs)
    if is_programs:
        call_args, call_kwargs = table.normalize(table.get(functional), call_args, call_kwargs)
    fresh = 0 if outs else sum(name is None for name in facts.returns)
    if spec is not None:
        needs = builder.state.grad_enabled and table.get(functional).has_derivative and any(
            t.spec.requires_grad for t in tensors_in((call_args, call_kwargs)))
        spec = (*spec[:fresh], *_with_grad(spec[fresh:], needs)) if type(spec) is tuple else _with_grad(spec, needs)
    under_grad = builder.state.grad_enabled
    if under_grad and not table.get(functional).has_derivative:
        builder.state.set("grad_enabled", False)
    if facts.overload is _aten.bernoulli_.float and not fills_by_index(call_args[0].spec):
        order = filling_order(builder.sizes, call_args[0].spec)
        inner = builder.emit(_aten.permute.default, (builder.node(call_args[0]), order))
        drawn = builder.emit(functional, (inner, *builder.to_node(call_args[1:])), builder.to_node(call_kwargs))
        node = builder.emit(_aten.permute.default, (drawn, [order.index(axis) for axis in range(len(order))]))
    elif is_programs:
        return effects.record_write(builder, facts, functional, call_args, call_kwargs, spec)
    else:
        node = builder.emit(functional, builder.to_node(call_args), builder.to_node(call_kwargs), spec)
    if under_grad != builder.state.grad_enabled:
        builder.state.set("grad_enabled", under_grad)
    if functional in WRITES_STATISTICS:
        node.spec = (*node.spec[:fresh], *_with_grad(node.spec[fresh:], False))
    if requires_grad(node.spec):
        targets = [facts.argument(name, args, kwargs) for name in facts.mutated]
        operands = [facts.argument(name, args, kwargs) for name in facts.names if name not in facts.mutated]
        check_own_operands(builder, targets, operands, node)
    parts = (
        [node]
        if type(node.spec) is TensorSpec
        else [builder.part(node, i) if type(s) is TensorSpec else None for i, s in enumerate(node.spec)]
    )
    if type(node.spec) is tuple and any(type(s) is tuple for s in node.spec):
        raise Uncapturable("unsupported_op", f"{facts.overload} writes to lists of tensors")
    results = [builder.fresh(p) if p is not None else None for p in parts[:fresh]]
    written: dict[str, TracedTensor] = {}
    tensors: list[TracedTensor] = []
    names: list[str] = []
    for name in facts.mutated:
        value = facts.argument(name, args, kwargs)
        if value is None:
            continue
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            tensors.append(tensor)
            names.append(name)
    for name, tensor, part in zip(names, tensors, parts[fresh:], strict=True):
        if outs and tensor.dtype != part.tensor.dtype:
            check_converted(facts.overload, part.op, builder.seen_as_nodes(args), builder.seen_as_nodes(kwargs),
                            {tensor.dtype, part.tensor.dtype})
        if outs and resizes(builder, tensor, part):
            replace_memory(builder, tensor, part)
        else:
            write(builder, tensor, part, bool(outs), unseen=functional in WRITES_STATISTICS)
        written[name] = tensor
    ordered = [written[n] if n is not None else results.pop(0) for n in facts.returns]
    if not ordered:
        return None
    return ordered[0] if len(ordered) == 1 else tuple(ordered)


def check_late(builder: GraphBuilder, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Eager's error for a write to a view that it takes for a leaf."""
    for name in facts.mutated:
        for target in tensors_in(facts.argument(name, args, kwargs)):
            if target.is_late:
                raise Uncapturable("exception", _LEAF_WRITTEN)
            if target.unasked and not write_test()(builder.inputs[target.input].value):  # type: ignore[index]
                raise Uncapturable("input_mutation", "a write to a view that is not to be asked for its history")


def resizes(builder: GraphBuilder, target: TracedTensor, value: Node) -> bool:
    """Whether an out= argument gets new memory: an empty tensor of the program's own making."""
    return (
        target.spec.numel == 0
        and value.tensor.shape != target.shape
        and not target.chain
        and target.storage.input is None
        and target.dtype == value.tensor.dtype
    )


def replace_memory(builder: GraphBuilder, target: TracedTensor, value: Node) -> None:
    builder.save(target)
    memory = Storage(value, inference=target.storage.inference)
    target.storage, target.node, target.generation, target.anchored = memory, value, 0, True
    target._spec = value.tensor


def write(builder: GraphBuilder, target: TracedTensor, value: Node, is_out: bool = False, replaces: bool = False,
          unseen: bool = False) -> None:
    """`target` receives `value` in place; every alias sees it. `replaces`: what was there. `unseen`: its version
    counter stays."""
    spec, storage = target.spec, target.storage
    check_write(builder, target, value, is_out)
    writer = value.args[0] if value.op is GETITEM else value
    check_saved(builder, storage, writer, unseen, target.is_data)
    written = value
    value = layouts.conform(builder, value, target, spec)
    levels = [storage.base]
    for step in target.chain[:-1]:
        levels.append(views.apply_step(builder, step, levels[-1]))
    new = value
    for step, base in zip(reversed(target.chain), reversed(levels), strict=False):
        new = aliasing.write_back(builder, base, new, step)
    lost = storage.lost_grad
    if storage.base.tensor.requires_grad:
        if not builder.state.grad_enabled or target.is_detached:
            lost = True
        elif not new.tensor.requires_grad or replaces and shows(new, {value}):
            new = layouts.with_history(builder, storage.base, new)
            value = value if target.chain else new
    if target.chain:
        new = layouts.in_layout(builder, new, storage)
    if storage.input is None and new.tensor.requires_grad and not lost:
        # what is computed from the tensor from now on is computed from the one that the program sees
        owned = no_view(builder, new)
        value, new = owned if value is new else value, owned
    builder.save(storage)
    builder.save(target)
    storage.base, storage.written, storage.lost_grad = new, True, lost
    if storage.written_at is None:
        storage.written_at = builder.step()
    if lost or storage.leaf is not None:
        storage.lost_at = builder.step()
    storage.seen += not (target.is_data or unseen)
    if not target.is_detached and keeps_result(builder, writer, written):
        builder.speculation.keep(storage, written, writer)
    if storage.history is None and storage.input is not None and new.tensor.requires_grad and not lost:
        storage.history = builder.step()
    before = levels[0] if storage.input is None else builder.graph.inputs[storage.input]
    if new.tensor.requires_grad and not lost and not before.tensor.requires_grad and storage.turned is None:
        storage.turned = storage.generation + 1
    storage.values = (*storage.values, *dict.fromkeys((written, value, new)))
    if not unseen:
        storage.writers = (*storage.writers, writer)
    storage.generation += 1
    if target.chain and builder.state.grad_enabled and (new.tensor.requires_grad or spec.requires_grad):
        target.made = storage.generation  # its history begins anew, behind the write
        new.meta["through_view"] = True
        step = target.chain[-1]
        if id(step) not in builder.rebased:
            builder.put(builder.rebased, id(step), step)
    alike = value.tensor.stride == spec.stride if target.chain else layouts.same_layout(value.tensor, spec)
    if not alike or not lost and (
        new.tensor.requires_grad != value.tensor.requires_grad or target.chain and value.tensor.requires_grad
    ):
        return  # rebuilt from the base when it is read: with a history it is a view of that
    target.node, target.generation, target.anchored = value, storage.generation, not target.chain
    if not lost and storage.leaf is not target:
        target._spec = spec.with_(requires_grad=value.tensor.requires_grad)
    elif target.input is None:
        target._spec = spec


def check_write(builder: GraphBuilder, target: TracedTensor, value: Node, is_out: bool) -> None:
    spec, storage, grad = target.spec, target.storage, builder.state.grad_enabled
    shape = value.tensor.shape
    if len(shape) != len(spec.shape) or not all(
        builder.sizes.equal(a, b) for a, b in zip(shape, spec.shape, strict=True)
    ):
        raise Uncapturable("unsupported_op", "a write that changes a tensor's size")
    if may_overlap(builder, spec):
        raise Uncapturable("unsupported_op", "a write to a tensor whose elements share memory")
    if storage.inference and not builder.state.inference_mode:
        raise Uncapturable("input_mutation", NOT_OUTSIDE)
    if storage.unrecorded:
        raise Uncapturable("input_mutation", "a write to a view that was made under no_grad")
    if storage.frozen:
        raise Uncapturable("unsupported_op", "a write to memory of a tensor that was told to require grad")
    if builder.speculation.counts_versions(target):
        raise Uncapturable("unsupported_op", "a write to a tensor whose .data was assigned")
    base = storage.base.tensor
    if storage.leaf is target and spec.requires_grad and grad:
        raise Uncapturable("exception", _LEAF_WRITTEN)
    if base.requires_grad and (not grad or target.is_detached):
        # An input's copy-back is made with grad mode or without: not one after the other.
        if storage.input is None or any(
            node.tensor.requires_grad and node not in builder.speculation.leaves for node in storage.values[1:]
        ):
            raise Uncapturable(
                "unsupported_op", "a write under no_grad or through detach() to a tensor that requires grad"
            )
    if storage.split:
        builder.speculation.outdate(target)
    if target.is_detached:
        if value.tensor.requires_grad:
            raise Uncapturable("unsupported_op", "a write of a value that requires grad through detach()")
    elif grad and (base.requires_grad or spec.requires_grad or value.tensor.requires_grad):
        if target.is_unrecorded:
            raise Uncapturable("unsupported_op", "a write to a view that was made under no_grad")
        if storage.input is not None:
            check_write_under_grad(builder, builder.inputs[storage.input], target)
        elif target.is_leaf and spec.requires_grad:
            raise Uncapturable("exception", _LEAF_WRITTEN)
        if is_out:
            raise Uncapturable("unsupported_op", "out= with tensors that require grad")
        if storage.lost_grad:
            raise Uncapturable("unsupported_op", "a write to a tensor that was changed under no_grad")
        if storage.restricted:
            raise Uncapturable("unsupported_op", "a write to memory with views that autograd restricts")
    if storage.input is not None:
        check_input_write(builder, storage.input)


def may_overlap(builder: GraphBuilder, spec: TensorSpec) -> bool:
    """Whether elements may share memory: some axis steps to within what the axes below it reach."""
    sizes, strides = builder.sizes.hints(spec.shape), builder.sizes.hints(spec.stride)
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(strides, sizes, strict=True) if n != 1):
        if stride <= reach and 0 not in sizes:
            return True
        reach += (size - 1) * stride
    return False


def check_own_operands(builder: GraphBuilder, targets: list[Any], operands: list[Any], node: Node) -> None:
    """`x.mul_(x)`: autograd keeps the operand that the op itself overwrites, and eager's backward pass fails."""
    written = {t.storage for t in tensors_in(targets)}
    shared = {t.node for t in tensors_in(operands) if t.storage in written}
    if shared and not shared.isdisjoint(saved_values(builder, node)[0]):
        raise Uncapturable("unsupported_op", "a write to a tensor that autograd keeps for the backward pass")


def check_saved(builder: GraphBuilder, storage: Storage, writer: Node, unseen: bool, is_data: bool) -> None:
    """Eager's backward pass fails if a value that autograd keeps is overwritten; the graph's would not. Where it
    does not see that, it reads the new value, but for batch norms, which do not read it at all."""
    first = builder.first_grad_node
    if first is None:
        return
    nodes, start = builder.graph.nodes, storage.values[0]
    position = len(nodes)
    while position > first and nodes[position - 1] is not start:
        position -= 1
    spoiled = keepers(builder, storage.values, position, (*storage.writers, writer))
    if unseen:
        spoiled = [node for node in spoiled if node.op.target not in WRITES_STATISTICS]
    # what was written to an input, and is kept, is to be in its memory when that is written to through `.data`
    at = storage.written_at if is_data and storage.input is not None else None
    builder.speculation.spoil(spoiled, "a write to a tensor that autograd keeps for the backward pass", at)


def memory_of(builder: GraphBuilder, index: int) -> int:
    """The address of what holds an input's memory."""
    return builder.inputs[index].value.untyped_storage()._cdata


def shares_memory(builder: GraphBuilder, index: int) -> bool:
    """Whether another input shows the memory of this one."""
    return len(builder.inputs_by_memory.get(memory_of(builder, index), ())) > 1


def check_input_write(builder: GraphBuilder, index: int) -> None:
    entry = builder.inputs[index]
    real: torch.Tensor = entry.value
    if real.is_inference() and not builder.state.inference_mode:
        raise Uncapturable("input_mutation", NOT_OUTSIDE)
    if may_overlap(builder, builder.graph.inputs[index].tensor):
        raise Uncapturable("input_mutation", "a part of a tensor is changed whose elements share memory")
    if shares_memory(builder, index) or sharing_arrays(builder, real, entry.source):
        raise Uncapturable("input_mutation", "a tensor is changed whose memory another input shares")
    if any(other != index for other in related_views(builder, real)):
        raise Uncapturable("input_mutation", "a tensor is changed of which another input was a view")


def _with_grad(spec: Any, requires_grad: bool) -> Any:
    """The spec of new values of arguments: they require grad if any argument does."""
    if type(spec) is tuple:
        return tuple([_with_grad(s, requires_grad) for s in spec])
    if type(spec) is TensorSpec and (spec.dtype.is_floating_point or spec.dtype.is_complex):
        return spec.with_(requires_grad=requires_grad)
    return spec
