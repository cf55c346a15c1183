"""Objects that were two when the program was traced, one of which it changed, must be two in later calls as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..guards.source import Source, StepSource
from ..values import (
    CellValue,
    DictValue,
    IteratorValue,
    ListValue,
    ObjectValue,
    SetValue,
    TensorValue,
    TupleValue,
    Value,
)

if TYPE_CHECKING:
    from .trace_context import TraceContext


def guard_separate(context: TraceContext) -> None:
    """Two containers, iterators or tensors that were two objects must be two objects again, where one of them was
    changed: of tensors not what is in their memory, but which memory it is."""
    changed = {_kind(value) for value in context.dirty if value.source is not None
               and not (isinstance(value, TensorValue) and value.data is None)}
    changed.discard(None)
    if not changed:
        return
    iterated = _iterated(context) if any(kind[0] not in ("iterator", "tensor") for kind in changed) else []
    found: dict[Any, list[Source]] = {}
    for value in context.values():
        kind = _kind(value)
        if value.source is None or kind is None:
            continue
        kinds = [kind] if kind in changed and (_was_looked_at(value) or value in iterated) else []
        if isinstance(value, DictValue) and value in iterated:  # which may be an instance's in later calls
            kinds += [other for other in changed if other != kind and "attributes" in (kind[0], other[0])]
        for kind in kinds:
            found.setdefault(kind, []).append(value.source)
    for sources in found.values():
        if len(sources) > 1:
            for source in sources:
                context.guard(source, "distinct")


def _iterated(context: TraceContext) -> list[Value]:
    """What the iterators go over that were advanced."""
    containers = [value.container() for value in context.dirty if isinstance(value, IteratorValue)]
    return [context.wrap(*found) for found in containers if found is not None]


def _was_looked_at(value: Value) -> bool:
    """Whether tracing read anything in a container that a change of another one would have changed as well."""
    return not isinstance(value, DictValue) or bool(value.vals or value.log) or value.complete


def _kind(value: Value) -> Any:
    """What kind of place a change of a value goes to: only places of one kind can be the same place."""
    if isinstance(value, DictValue) and isinstance(value.source, StepSource) and value.source.kind == "dict":
        return "attributes", value.owner
    if isinstance(value, (ListValue, DictValue, SetValue, ObjectValue)) and not isinstance(value, TupleValue):
        return "object", value.cls
    if isinstance(value, IteratorValue):
        return "iterator", value.cls
    if isinstance(value, TensorValue):
        return "tensor", None
    return ("cell", None) if isinstance(value, CellValue) else None
