"""Operators of the program's that do what cannot be undone: they return nothing, or write to tensors from outside.

A graph with such a node runs once: where it fails, plain Python cannot make up for it (`Graph.runs_once`).
"""

from __future__ import annotations

from typing import Any

from jitpy.ir import Op, TensorSpec
from jitpy.ir import ops as table
from jitpy.ir.failures import is_effect
from jitpy.ir.ops import through_views
from jitpy.ir.ops.functional import in_place_of
from jitpy.ir.ops.schemas import SchemaFacts
from jitpy.ir.ops.through_views import at

from .traced import GraphBuilder, TracedTensor, Uncapturable, tensors_in


def record_effect(builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A call of what returns nothing."""
    op = builder.op(overload)
    if is_effect(op):
        if builder.sizes.has_unbacked:
            raise Uncapturable("unsupported_op", f"{overload}, which has effects, beside sizes that depend on data")
        note_act(builder, overload)
    builder.graph.add(op, builder.to_node(args), builder.to_node(kwargs), None, builder.loc,
                       grad_enabled=builder.state.grad_enabled)


def check_write(builder: GraphBuilder, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Whether an op of the program's that writes may be recorded: not where autograd has a say."""
    targets = tensors_in([facts.argument(name, args, kwargs) for name in facts.mutated])
    if builder.state.transforms:
        raise Uncapturable("unsupported_op", f"{facts.overload} writes, under a transform that may not know how")
    if builder.state.grad_enabled and any(t.spec.requires_grad for t in tensors_in((args, kwargs))):
        raise Uncapturable("unsupported_op", f"{facts.overload} writes, and takes tensors that require grad")
    if any(target.storage.input is not None for target in targets):
        note_act(builder, facts.overload)


def record_write(builder: GraphBuilder, facts: SchemaFacts, functional: Any, args: tuple[Any, ...],
                 kwargs: dict[str, Any], spec: Any) -> Any:
    """A call of an op of the program's that writes, as `functional`, which writes to copies."""
    targets = [at(args, kwargs, path) for path in in_place_of(builder.op(functional)).paths]  # type: ignore[union-attr]
    nodes, named = builder.to_node(args), builder.to_node(kwargs)
    op, call_args, call_kwargs, wholes = on_memory(
        builder, builder.op(functional), nodes, named, targets, list(tensors_in((args, kwargs))))
    if op.target is functional:
        node = builder.emit(functional, call_args, call_kwargs, spec)
    else:
        made = spec if spec is not None else table.infer(op, builder.sizes, call_args, call_kwargs, False)
        fresh = made[: len(made) - len(targets)] if isinstance(made, tuple) else ()
        new = tuple(whole.storage.base.tensor.with_(requires_grad=False, offset=0) if whole is not target else
                    target.spec.with_(requires_grad=False, offset=0)
                    for target, whole in zip(targets, wholes, strict=True))
        node = builder.graph.add(op, call_args, call_kwargs, (*fresh, *new), builder.loc,
                                  grad_enabled=builder.state.grad_enabled)
    count = 1 if type(node.spec) is TensorSpec else len(node.spec)  # type: ignore[arg-type]
    parts = [node] if type(node.spec) is TensorSpec else [builder.part(node, k) for k in range(count)]
    results = [builder.fresh(part) for part in parts[: count - len(targets)]]
    for whole, part in zip(wholes, parts[count - len(targets):], strict=True):
        builder.write(whole, part)
    given = {name: facts.argument(name, args, kwargs) for name in facts.returns if name is not None}
    ordered = [results.pop(0) if name is None else given[name] for name in facts.returns]
    return ordered[0] if len(ordered) == 1 else tuple(ordered) or None


def on_memory(builder: GraphBuilder, op: Op, args: Any, kwargs: Any, targets: list[TracedTensor],
              others: list[TracedTensor]) -> tuple[Op, Any, Any, list[TracedTensor]]:
    """A call of an op with the facet `in_place` that writes to views, as one that writes to what they show,
    and what is written then; the call itself where there are none. Its arguments are nodes already. `others` are all
    tensors that it takes.
    """
    in_place = in_place_of(op)
    assert in_place is not None
    geometries: list[Any] = []
    wholes: list[TracedTensor] = []
    for target, path in zip(targets, in_place.paths, strict=True):
        storage = target.storage
        base = storage.base
        memory = storage.values[0].tensor
        # (of other memory a pass may change the layout)
        is_fixed = storage.input is not None or storage.values[0].op.kind == "factory"
        shown = target.chain and is_fixed and target.dtype == memory.dtype and base.tensor.stride == memory.stride and \
            base.tensor.shape == memory.shape and \
            not any(other is not target and other.storage is storage for other in others)
        if not shown:
            geometries.append(None)
            wholes.append(target)
            continue
        args, kwargs = through_views.put(args, kwargs, path, base)
        spec = target.spec
        geometries.append((spec.shape, spec.stride, spec.offset - memory.offset, memory.stride))
        wholes.append(TracedTensor(builder, storage, (), base, base.tensor))
    if not any(geometries):
        return op, args, kwargs, targets
    return through_views.through_views(op), (args, kwargs, tuple(geometries)), {}, wholes


def note_act(builder: GraphBuilder, what: Any) -> None:
    """The graph will do what cannot be undone, so that plain Python cannot make up for it where it fails."""
    if builder.handles_errors:
        raise Uncapturable("unsupported_op", f"{what} behind operations whose errors the program handles")
    builder.acts, builder.own_step = True, builder.step()


def may_handle(builder: GraphBuilder, acts: bool) -> bool:
    """Whether the program may handle errors of a call that is to be recorded (`acts`: it does what cannot be undone):
    plain Python does that, when the graph has failed."""
    builder.handles_errors = True
    return not (acts or builder.acts)
