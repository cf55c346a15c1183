"""Exceptions that jitpy raises on purpose. Exceptions of user code pass through unchanged."""

from __future__ import annotations

from typing import Any


class FullGraphError(RuntimeError):
    """`fullgraph=True`, and the graph breaks. `record` is the break (a `frontend.breaks.BreakRecord`)."""

    def __init__(self, record: Any) -> None:
        super().__init__(f"fullgraph=True, but the graph breaks:\n{record}")
        self.record = record


class SpecializationError(ValueError):
    """A size that `mark_dynamic` asked to keep symbolic takes one value only in the program."""

    def __init__(self, function: str, pinned: list[tuple[Any, int, list[str]]], names: dict[Any, str]) -> None:
        lines = [f"{names[symbol]} is marked dynamic, but {function} works for {value} only: {'; '.join(why)}"
                 for symbol, value, why in pinned]
        super().__init__("\n".join([*lines, "Remove the mark (jitpy.mark_dynamic), or the condition."]))


class BackendError(RuntimeError):
    """A backend raised, or returned something of the wrong kind. `backend` is its name."""

    def __init__(self, backend: str, text: str) -> None:
        super().__init__(f"the backend {backend!r} {text}")
        self.backend = backend


#: what `fullgraph=True` raises, under the name that says what happened
GraphBreakError = FullGraphError
