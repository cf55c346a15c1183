"""Exceptions that jitpy raises on purpose. What user code raises passes through unchanged."""

from __future__ import annotations

from typing import Any


class FullGraphError(RuntimeError):
    """`fullgraph=True`, and the graph breaks. `record` is the break (a `frontend.breaks.BreakRecord`)."""

    def __init__(self, record: Any) -> None:
        super().__init__(f"fullgraph=True, but the graph breaks:\n{record}")
        self.record = record


#: what `fullgraph=True` raises, under the name that says what happened
GraphBreakError = FullGraphError
