"""Tuples."""

from __future__ import annotations

from typing import Any

from ..guards.source import Source
from .instance import ObjectValue


class TupleValue(ObjectValue):
    """A tuple or an instance of a subclass (named tuples, torch.Size, torch.return_types)."""

    __slots__ = ("items",)

    def __init__(self, items: list[Any], source: Source | None = None, cls: type = tuple, real: Any = None) -> None:
        super().__init__(cls, source, real)
        self.items = items
