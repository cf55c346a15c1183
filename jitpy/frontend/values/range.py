"""Ranges and slices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..guards.source import Source
from .base import Value


class SliceValue(Value):
    """A slice object."""

    __slots__ = ("start", "step", "stop")
    cls = slice

    def __init__(self, start: Value, stop: Value, step: Value, source: Source | None = None) -> None:
        self.source = source
        self.start, self.stop, self.step = start, stop, step

    def children(self) -> Iterable[Any]:
        return self.start, self.stop, self.step


class RangeValue(Value):
    """A range whose bounds may be symbolic."""

    __slots__ = ("start", "step", "stop")
    cls = range

    def __init__(self, start: Value, stop: Value, step: Value, source: Source | None = None) -> None:
        self.source = source
        self.start, self.stop, self.step = start, stop, step

    def children(self) -> Iterable[Any]:
        return self.start, self.stop, self.step
