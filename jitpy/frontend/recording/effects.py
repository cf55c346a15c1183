"""Operators of the program's that do what cannot be undone: they return nothing, or write to tensors from outside.

A graph with such a node runs once: where it fails, plain Python cannot make up for it (`Graph.runs_once`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitpy.ir.failures import is_effect

from ..traced import Uncapturable, tensors_in
from .schemas import SchemaFacts

if TYPE_CHECKING:
    from .recorder import Recorder


def record_effect(recorder: Recorder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A call of what returns nothing."""
    op = recorder.op(overload)
    if is_effect(op):
        if recorder.sizes.has_unbacked:
            raise Uncapturable("unsupported_op", f"{overload}, which has effects, beside sizes that depend on data")
        note_act(recorder, overload)
    recorder.graph.add(op, recorder.to_node(args), recorder.to_node(kwargs), None, recorder.loc,
                       grad_enabled=recorder.state.grad_enabled)


def check_write(recorder: Recorder, facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Whether an op of the program's that writes may be recorded: not where autograd has a say."""
    targets = tensors_in([facts.argument(name, args, kwargs) for name in facts.mutated])
    if recorder.state.transforms:
        raise Uncapturable("unsupported_op", f"{facts.overload} writes, under a transform that may not know how")
    if recorder.state.grad_enabled and any(t.spec.requires_grad for t in tensors_in((args, kwargs))):
        raise Uncapturable("unsupported_op", f"{facts.overload} writes, and takes tensors that require grad")
    if any(target.storage.input is not None for target in targets):
        note_act(recorder, facts.overload)


def note_act(recorder: Recorder, what: Any) -> None:
    """The graph will do what cannot be undone, so that plain Python cannot make up for it where it fails."""
    if recorder.handles_errors:
        raise Uncapturable("unsupported_op", f"{what} behind operations whose errors the program handles")
    recorder.acts = True


def may_handle(recorder: Recorder, acts: bool) -> bool:
    """Whether the program may handle errors of a call that is to be recorded (`acts`: it does what cannot be undone):
    plain Python does that, when the graph has failed."""
    recorder.handles_errors = True
    return not (acts or recorder.acts)
