"""Shortcuts: torch calls that go straight to one table op, without running anything.

A functional composite op (linear, layer_norm, softmax, ...) is recorded whole, as the user called it, if its result is
new memory for these arguments; what it may do besides (return its argument, write to running statistics) is left to
the derived path.
"""

from __future__ import annotations

from typing import Any

import torch

from jitpy.ir import ScalarSpec, TensorSpec
from jitpy.ir import ops as table
from jitpy.ir.ops.oracle import ANSWERS, keep
from jitpy.ir.ops.schemas import SchemaFacts

from .composites import LOWERINGS
from .overloads import Plan, Reads, make_plan, signature
from .traced import DECLINED, GraphBuilder, StructPayload, TracedTensor

_aten = torch.ops.aten

def run(builder: GraphBuilder, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The payload of the call, or DECLINED; what it raises may decline, too (`tensor_calls._shortcut`)."""
    plan = plan_of(fn, args, kwargs)
    if type(plan) is not Plan:
        return DECLINED
    bound, keywords = plan.arguments(args, kwargs)
    facts = plan.facts
    lowering = LOWERINGS.get(facts.overload) if plan.composite else None
    if facts.on_host:
        result = _host_value(builder, facts, bound, keywords)
    elif lowering is not None:
        result = lowering(builder, facts.overload, bound, keywords)
    elif plan.composite and not table.get(facts.overload).is_new:
        result = _by_aliasing(builder, facts, bound, keywords)
    elif not plan.composite and facts.mutated:
        result = _write(builder, facts, bound, keywords)
    else:
        result = builder.record(facts.overload, bound, keywords)
    if type(result) is tuple:
        return StructPayload(plan.struct, result) if plan.struct is not None else plan.lists(result)
    return result


def plan_of(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | Reads | None:
    """How a call like this one is recorded, None where there is no shortcut."""
    try:
        key = signature(fn, args, kwargs)
        return ANSWERS[key]
    except KeyError:
        plan = make_plan(fn, args, kwargs)
        keep(ANSWERS, key, _usable(plan) if type(plan) is Plan else plan)
        return ANSWERS[key]
    except TypeError:
        return None


def _usable(plan: Plan) -> Plan | None:
    if plan.facts.on_host:
        return plan
    if (
        plan.facts.dynamic
        and not table.get(plan.facts.overload).sizes_by_data
        or table.get(plan.facts.overload).hides_writes
    ):
        return None
    overload = plan.facts.overload
    if plan.composite:
        op = table.get(overload)
        if overload in LOWERINGS or op.is_new:
            return plan
        return plan if not plan.facts.is_view and not plan.facts.mutated and op.infer is not None else None
    if plan.facts.mutated and (plan.facts.returns != ("self",) or plan.facts.functional is None):
        return None
    return plan


def _host_value(builder: GraphBuilder, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A question whose answer depends on data (equal, allclose): a number that the graph computes."""
    if facts.overload is not _aten.equal.default and facts.overload is not _aten.allclose.default:
        return DECLINED  # its arguments may be wrong in a way that only a run would tell
    if facts.overload is _aten.allclose.default:  # raises for arguments as isclose does
        isclose = table.get(_aten.isclose.default)
        table.infer(isclose, builder.sizes, builder.to_node(args), builder.to_node(kwargs))
    return builder.record(facts.overload, args, kwargs, ScalarSpec(bool))


def _write(builder: GraphBuilder, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An in-place call whose new value has the shape and (castable) dtype of its target; eager refuses others."""
    target: TracedTensor = args[0]
    if facts.overload is not _aten.copy_.default and not facts.inplace_view:
        call_args, call_kwargs = facts.functional_call(args, kwargs)
        spec = table.infer(
            table.get(facts.functional),
            builder.sizes,
            builder.seen_as_nodes(call_args),
            builder.seen_as_nodes(call_kwargs),
            builder.state.grad_enabled,
        )
        if type(spec) is not TensorSpec or spec.shape != target.shape or not torch.can_cast(spec.dtype, target.dtype):
            return DECLINED
    elif facts.overload is _aten.copy_.default:
        table.infer(table.get(_aten.expand.default), builder.sizes, (builder.node(args[1]), target.shape), {})
    return builder.record(facts.overload, args, kwargs)


def _by_aliasing(builder: GraphBuilder, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A composite op that the table knows: whole where its result is new memory, nothing where it is its argument."""
    op = table.get(facts.overload)
    found = table.aliasing(op, builder.sizes, builder.to_node(args), builder.to_node(kwargs))
    if found == "self":
        return args[0]
    return builder.record(facts.overload, args, kwargs) if found == "copy" else DECLINED
