"""Non-aliasing guards: two objects, one of which the program changed, must be two in later calls as well."""

from __future__ import annotations

from typing import Any

from ..guards.source import Source
from ..values import TraceContext, Value


def guard_separate(context: TraceContext) -> None:
    """Two containers, iterators or tensors that were two objects must be two objects again, where one of them was
    changed: of tensors not what is in their memory, but which memory it is."""
    changed = {value.place() for value in context.dirty if value.source is not None
               and not (value.tensor is not None and value.data is None)}
    changed.discard(None)
    if not changed:
        return
    iterated = _iterated(context) if any(kind[0] not in ("iterator", "tensor") for kind in changed) else []
    found: dict[Any, list[Source]] = {}
    for value in context.values():
        kind = value.place()
        if value.source is None or kind is None:
            continue
        is_dict = issubclass(value.cls, dict)
        was_read = not is_dict or value.was_read or value in iterated
        kinds = [kind] if kind in changed and was_read else []
        if is_dict and value in iterated:  # which may be an instance's in later calls
            kinds += [other for other in changed if other != kind and "attributes" in (kind[0], other[0])]
        for kind in kinds:
            found.setdefault(kind, []).append(value.source)
    for sources in found.values():
        if len(sources) > 1:
            for source in sources:
                context.guard(source, "distinct")


def _iterated(context: TraceContext) -> list[Value]:
    """The containers of the iterators that were advanced."""
    containers = [value.container() for value in context.dirty]
    return [context.wrap(*found) for found in containers if found is not None]
