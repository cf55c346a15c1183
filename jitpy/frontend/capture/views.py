"""Views: tensor objects that look at the memory of others, and how their values follow what is written there.

A view is a chain of steps from its storage's base. It is rebuilt from the base when it is read after a write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitpy.ir import Node, Spec, TensorSpec
from jitpy.ir import ops as table
from jitpy.ir.autograd_function import NAME as AUTOGRAD_FUNCTION
from jitpy.ir.graph import IN_INFERENCE_MODE, OWN_VERSIONS
from jitpy.ir.ops.schemas import SchemaFacts

from . import aliasing, layouts
from .inputs import check_write_under_grad
from .strided_views import strided_base
from .traced import GraphBuilder, TracedTensor, Uncapturable, ViewStep

_aten = torch.ops.aten

NOT_OUTSIDE = "an inference tensor is changed outside inference mode"


def refresh(builder: GraphBuilder, value: TracedTensor, view: Callable[[ViewStep, Node], Node] | None = None,
             owner: Node | None = None) -> None:
    """Rebuild an alias from its storage's base, or from what stands for that; `view` applies a step."""
    storage = value.storage
    builder.save(value)
    node = storage.base if owner is None else owner
    for step in value.chain:
        node = view(step, node) if view is not None else apply_step(builder, step, node)
    value.node, value.generation, value.anchored = node, storage.generation, True
    requires_grad = node.tensor.requires_grad or value._spec.requires_grad and (
        storage.lost_grad or storage.leaf is value or value.stands_for is not None)
    if requires_grad != value._spec.requires_grad:
        value._spec = value._spec.with_(requires_grad=requires_grad)
    if not value.unasked:
        value.is_leaf = value.is_leaf and (storage.input is not None or storage.leaf is value)


def apply_step(builder: GraphBuilder, step: ViewStep, base: Node, as_made: bool = False) -> Node:
    """The view of `base`; `as_made`: together with the views that were made at once with it."""
    # an autograd function connects its result with other tensors than the one that it looks at
    connected = base.tensor.requires_grad or step.op.name == AUTOGRAD_FUNCTION
    requires_grad = connected and step.grad_enabled and step.op.target is not _aten.detach.default
    if step.parts is not None and as_made:
        specs = tuple([s.with_(requires_grad=requires_grad) for s in step.parts.specs])
        whole = builder.graph.add(step.parts.op, (base, *step.parts.args), step.parts.kwargs, specs, builder.loc,
                               grad_enabled=step.grad_enabled)
        if step.inference:
            whole.meta[IN_INFERENCE_MODE] = True
        return builder.part(whole, step.parts.index)
    spec = step.spec
    if spec.requires_grad != requires_grad:
        spec = spec.with_(requires_grad=requires_grad)
    node = builder.graph.add(step.op, (base, *step.args), step.kwargs, spec, builder.loc,
                             grad_enabled=step.grad_enabled)
    if step.is_data:
        node.meta[OWN_VERSIONS] = step
    if step.inference:
        node.meta[IN_INFERENCE_MODE] = True
    return node


def record_view(builder: GraphBuilder, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any],
                spec: Spec | None) -> Any:
    base: TracedTensor = args[0] if args else kwargs["builder"]
    if not args:
        args, kwargs = (base,), {k: v for k, v in kwargs.items() if k != "builder"}
    overload = facts.overload
    if overload is _aten.as_strided.default:
        base, args, kwargs = strided_base(builder, base, args, kwargs)
    elif table.get(overload).reads_memory and True in base.lazy_bits:
        raise Uncapturable("exception", f"{overload} of a tensor whose conjugation or negation is pending")
    if base.storage.inference and overload is _aten.detach.default and not builder.state.inference_mode:
        raise Uncapturable("unsupported_op", "an inference tensor that is detached outside inference mode")
    source = builder.node(base, detached=overload is _aten.detach.default)
    if overload is _aten.as_strided.default and base.chain and (
            source.tensor.offset != base.spec.offset or not layouts.same_layout(source.tensor, base.spec)):
        raise Uncapturable("unsupported_op", "as_strided of a view that was written to")
    node = builder.emit(overload, (source, *builder.to_node(args[1:])), builder.to_node(kwargs), spec)
    shift = base.spec.offset - source.tensor.offset
    if spec is None and shift != 0:  # `source` is what was written to the base, not where the base lies
        node.spec = layouts.shifted(node.spec, shift)
    grad = builder.state.grad_enabled
    if type(node.spec) is TensorSpec:
        step = ViewStep(node.op, node.args[1:], node.kwargs, node.spec, grad, inference=in_block(builder, base, node))
        return alias(builder, base, step, node)
    if not node.op.is_split:
        raise Uncapturable("unsupported_op", f"{overload} returns several views")
    steps = aliasing.split_steps(builder, overload, base.spec, node.args[1:], node.kwargs, node.spec,
                                 in_block(builder, base, node))
    return tuple([alias(builder, base, step, builder.part(node, i)) for i, step in enumerate(steps)])


def in_block(builder: GraphBuilder, base: TracedTensor, view: Node) -> bool:
    """Whether a view of `base` that is made now remembers that it was made in inference mode."""
    found = builder.inference.is_inside() and not base.storage.inference
    if found:
        view.meta[IN_INFERENCE_MODE] = True
    return found


def alias(builder: GraphBuilder, base: TracedTensor, step: ViewStep, node: Node) -> TracedTensor:
    """A new tensor object: `base` looked at through `step`, whose present value is `node`."""
    if base.storage.leaf is base and node.tensor.requires_grad:
        base = builder.parameters.seen_by_views(base)
    elif base.storage.leaf is base and base._spec.requires_grad and step.op.target is not _aten.detach.default:
        builder.parameters.note_view(step)
    restricts = (step.multi or not step.grad_enabled) and step.op.target is not _aten.detach.default
    if restricts and (step.multi or not base.storage.restricted):
        builder.save(base.storage)
        base.storage.restricted = True
        if step.multi and step.grad_enabled and base.spec.requires_grad:
            base.storage.split = (*base.storage.split, step)
    result = TracedTensor(builder, base.storage, (*base.chain, step), node, node.tensor, base.anchored)
    result.generation = base.generation
    return result


def record_inplace_view(builder: GraphBuilder, facts: SchemaFacts, args: tuple[Any, ...],
                        kwargs: dict[str, Any]) -> TracedTensor:
    """`t_`, `squeeze_` and the like: this object looks at its memory in another way from now on."""
    target: TracedTensor = args[0]
    assert facts.functional is not None
    if facts.overload is _aten.detach_.default and not target.spec.requires_grad and not target.chain and \
            target.input is None:
        return target
    if target.storage.inference and not builder.state.inference_mode:
        raise Uncapturable("input_mutation", NOT_OUTSIDE)
    if target.input is not None:
        raise Uncapturable("input_mutation", f"{facts.overload} changes the sizes of a tensor from outside")
    if facts.overload is _aten.detach_.default:
        raise Uncapturable("unsupported_op", f"{facts.overload}")
    if builder.speculation.is_leaf(target) or target in builder.parameters.data:
        raise Uncapturable("unsupported_op", f"{facts.overload} changes the sizes of a tensor that requires grad")
    if builder.state.grad_enabled and target.chain and not target.is_detached and (
        target.spec.requires_grad or target.storage.base.tensor.requires_grad
    ):
        check_view_change(builder, target)
    view = builder.record(facts.functional, args, kwargs)
    builder.save(target)
    target.restore(view.state())
    return target


def check_view_change(builder: GraphBuilder, target: TracedTensor) -> None:
    """Autograd takes `view.t_()` for a write to the view."""
    storage = target.storage
    what = "an in-place operation on a view that autograd restricts"
    if target.is_unrecorded:  # eager says so first
        raise Uncapturable("unsupported_op", what)
    if storage.input is not None:
        check_write_under_grad(builder, builder.inputs[storage.input], target)
    if storage.split or storage.restricted or storage.lost_grad or storage.frozen:
        raise Uncapturable("unsupported_op", what)
